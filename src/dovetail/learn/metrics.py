"""Write scalars to TensorBoard files and, if configured, to Weights & Biases."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from dovetail.core.errors import UsageError

__all__ = ["MetricsLog"]


class MetricsLog:
    """Opens its files at the first write, so that a run that never starts leaves none.

    With the name of a `wandb` project, the same values go there, over `env_steps`. wandb's files are in the same folder, and
    its environment variables configure server and account (WANDB_MODE=offline: upload later).
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

    def write_text(self, group: str, text: str, *, step: int) -> None:
        """Write text, which TensorBoard shows as Markdown."""
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
        # the id is the run's name, so that a resumed run continues its curves
        self._run = self._wandb.init(
            project=self._project,
            name=self._name,
            id=self._name,
            resume="allow",
            dir=str(self._folder),
            config=self._config,
        )
        self._run.define_metric("*", step_metric="env_steps")  # evaluations and episodes share this axis


def _import_wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise UsageError(
            "run.wandb is set, but wandb is not installed. Run pip install 'dovetail[wandb]', or set run.wandb=null"
        ) from error
