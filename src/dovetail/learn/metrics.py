"""Curves for people: scalars into TensorBoard files, and to Weights & Biases where a run asks for it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from dovetail.core.errors import UsageError

__all__ = ["MetricsLog"]


class MetricsLog:
    """Opens its file with the first number, so that a run that never starts leaves nothing behind.

    With `wandb`, the name of a project, the same numbers go there too, over `env_steps`; its own files lie beside
    TensorBoard's, and its own environment variables say where to and as whom (WANDB_MODE=offline: nowhere yet).
    """

    def __init__(
        self, folder: Path, *, wandb: str | None = None, name: str = "", config: Mapping[str, Any] | None = None
    ) -> None:
        self._folder, self._project, self._name, self._config = folder, wandb, name, dict(config or {})
        self._writer: SummaryWriter | None = None
        self._wandb = None if wandb is None else _import_wandb()
        self._run: Any = None

    def write(self, group: str, values: Mapping[str, float], *, step: int) -> None:
        writer = self._open()
        for name, value in values.items():
            writer.add_scalar(f"{group}/{name}", value, step)
        if self._run is not None and values:
            self._run.log({f"{group}/{name}": value for name, value in values.items()} | {"env_steps": step})

    def say(self, group: str, text: str, *, step: int) -> None:
        """Words, which TensorBoard shows as Markdown."""
        self._open().add_text(group, text, step)

    def _open(self) -> SummaryWriter:
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder))
            self._start_wandb()
        return self._writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _start_wandb(self) -> None:
        if self._wandb is None:
            return
        # by its name, so that a resumed run goes on with its curves
        self._run = self._wandb.init(
            project=self._project,
            name=self._name,
            id=self._name,
            resume="allow",
            dir=str(self._folder),
            config=self._config,
        )
        self._run.define_metric("*", step_metric="env_steps")  # evaluations come between the episodes' numbers


def _import_wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise UsageError(
            "run.wandb is set, but wandb is not installed: pip install 'dovetail[wandb]', or set run.wandb=null"
        ) from error
