"""Curves for people: scalars into TensorBoard files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

__all__ = ["MetricsLog"]


class MetricsLog:
    """Opens its file with the first number, so that a run that never starts leaves nothing behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def write(self, group: str, values: Mapping[str, float], *, step: int) -> None:
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder))
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
