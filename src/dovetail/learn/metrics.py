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
        writer = self._open()
        for name, value in values.items():
            writer.add_scalar(f"{group}/{name}", value, step)

    def say(self, group: str, text: str, *, step: int) -> None:
        """Words, which TensorBoard shows as Markdown."""
        self._open().add_text(group, text, step)

    def _open(self) -> SummaryWriter:
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder))
        return self._writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
