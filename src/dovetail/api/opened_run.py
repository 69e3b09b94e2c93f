"""A run folder: its config, report, episodes, metrics and policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dovetail.api.episodes import Episodes
from dovetail.api.names import RUNS_DIR, find_run
from dovetail.config.schema import RunConfig
from dovetail.core.types import Array
from dovetail.runs.folder import RunFolder

if TYPE_CHECKING:  # they load torch
    from dovetail.api.policy import RunPolicy
    from dovetail.reports.report import Report

__all__ = ["Curve", "Metrics", "Run", "open"]


class Curve(NamedTuple):
    """One metric over a run."""

    steps: Array  # [N] int64
    values: Array  # [N] float64
    unix_s: Array  # [N] float64


class Metrics(Mapping[str, Curve]):
    """The curves that a run wrote for TensorBoard, by name: `metrics["learner/q"].values`."""

    def __init__(self, logs: Path) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self._events = EventAccumulator(str(logs), size_guidance={"scalars": 0})  # 0: every point
        if logs.is_dir():
            self._events.Reload()

    def __getitem__(self, name: str) -> Curve:
        points = self._events.Scalars(name)
        return Curve(
            steps=np.array([point.step for point in points], np.int64),
            values=np.array([point.value for point in points], np.float64),
            unix_s=np.array([point.wall_time for point in points], np.float64),
        )

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._events.Tags()["scalars"]))

    def __len__(self) -> int:
        return len(self._events.Tags()["scalars"])


class Run:
    """A run: finished, interrupted, or still running in another process. Everything is read from its folder."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def name(self) -> str:
        return self.path.absolute().name

    @property
    def config(self) -> RunConfig:
        """The resolved settings: `run.config.algorithm.config.batch_size`."""
        return self.folder.config

    @property
    def report(self) -> Report:
        """The figures of the run so far: success rates before and after, robot minutes, interventions, ..."""
        from dovetail.reports.report import read_report

        return read_report(self.folder)

    @property
    def episodes(self) -> Episodes:
        """The recorded episodes, oldest first."""
        return Episodes(self.path)

    @cached_property
    def metrics(self) -> Metrics:
        """The curves, as they were when this was first read."""
        return Metrics(self.folder.logs)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """The events of these kinds in events.jsonl, oldest first: `episode`, `checkpoint`, `evaluated`, ..."""
        return list(self.folder.events(*kinds))

    def policy(self, *, version: int | None = None, best: bool = False) -> RunPolicy:
        """The trained policy: the newest weights, a published `version`, or the `best` checkpoint."""
        from dovetail.api.policy import load_policy
        from dovetail.api.weights import find_weights

        return load_policy(find_weights(self.path, version=version, best=best))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def open(run: str | Path, *, runs_dir: Path | str = RUNS_DIR) -> Run:
    """Open a run by its name in `runs_dir`, or by its path."""
    return Run(RunFolder.open(find_run(run, Path(runs_dir))))
