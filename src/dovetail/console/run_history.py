"""Curves of online learning, evaluations and the coach's advice, from the events of a run."""

from __future__ import annotations

import contextlib
import math
import threading
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dovetail.console.run_files import RunFiles

__all__ = ["WINDOW", "RunHistory", "thinned"]

WINDOW = 20  # episodes that a curve averages
_MAX_POINTS = 400  # of a curve in the browser
_MAX_EVALUATIONS = 200
_MAX_KEPT = 10_000  # evaluations, and labels of episodes that have no event yet
_MAX_ADVICE = 100
_CURVES = ("success", "return", "human_share")
_COLUMNS = (*_CURVES, "duration_s")

T = TypeVar("T")


class RunHistory:
    """What the pages show of the events; `read` adds the new ones.

    `summary` may be called from any thread. It costs only what has happened since the last call.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._offset = 0  # place in the events after the last one that was read
        self._lock = threading.Lock()
        self._cached: tuple[int, dict[str, Any]] | None = None  # place in the events, summary
        self._env_steps = array("d")
        self._rows: dict[str, int] = {}  # episode -> row in the curves
        self._values = {name: array("d") for name in _COLUMNS}
        self._autonomous: list[int | None] = []  # version that acted in each episode without help
        self._early_labels: dict[str, Mapping[str, Any]] = {}  # labels that came before the event of their episode
        self._advice: dict[str, Mapping[str, Any]] = {}
        self.evaluations: deque[Mapping[str, Any]] = deque(maxlen=_MAX_KEPT)
        self.checkpoints: dict[str, Mapping[str, Any]] = {}  # the newest of each kind

    @property
    def num_episodes(self) -> int:
        return len(self._env_steps)

    def by_version(self) -> dict[int, list[float]]:
        """Success of the episodes in which each version acted without help, as far as it is known."""
        found: dict[int, list[float]] = {}
        for version, success in zip(self._autonomous, self._values["success"], strict=True):
            if version is not None and not math.isnan(success):
                found.setdefault(version, []).append(success)
        return found

    def read(self) -> None:
        for event, after in self._files.events(self._offset):
            self._offset = after
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):  # not written by a run
                self._add(event)

    def summary(self) -> dict[str, Any]:
        """All that the pages show, with the events that came since the last call."""
        with self._lock:
            self.read()
            if self._cached is None or self._cached[0] != self._offset:
                found = {
                    "curves": self.curves(),
                    "num_episodes": self.num_episodes,
                    "advice": self.advice(),
                    "evaluations": list(self.evaluations)[-_MAX_EVALUATIONS:],
                    "rated": {
                        one["version"]: one for one in self.evaluations if isinstance(one.get("version"), int)
                    },
                    "checkpoints": dict(self.checkpoints),
                    "by_version": self.by_version(),
                }
                self._cached = (self._offset, found)
            return self._cached[1]

    def _add(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "episode":
            is_autonomous = "policy_version" in event and not event.get("human_share")
            version = int(event["policy_version"]) if is_autonomous else None
            values = [float(event.get(name, math.nan)) for name in _COLUMNS]
            self._append(float(event.get("env_steps", 0)), values, version)
            self._rows[str(event.get("id"))] = len(self._env_steps) - 1
            if (labels := self._early_labels.pop(str(event.get("id")), None)) is not None:
                self._apply_labels(labels)
        elif kind == "labelled":
            self._apply_labels(event)
        elif kind == "practice":  # of PPO: one event per rollout, with the episodes that ended in it
            env_steps, successes = float(event["env_steps"]), list(event.get("success", ()))
            returns = event.get("returns") or successes  # old events have no returns
            step_s = 60.0 * float(event.get("robot_minutes", math.nan)) / env_steps
            while self._env_steps and self._env_steps[-1] >= env_steps:  # repeated after a crash
                self._autonomous.pop()
                for column in (self._env_steps, *self._values.values()):
                    column.pop()
            lengths = event.get("length") or [math.nan] * len(successes)
            for success, total, length in zip(successes, returns, lengths, strict=True):
                solved = math.nan if success is None else float(success)
                self._append(env_steps, [solved, float(total), 0.0, step_s * length], None)
        elif kind in ("evaluated", "eval"):
            self.evaluations.append(event)
        elif kind in ("checkpoint", "best checkpoint"):
            self.checkpoints[kind] = event
        elif kind == "coach":
            if len(self._advice) < _MAX_ADVICE:
                self._advice[str(event.get("name"))] = event
        elif kind == "coach: over":
            self._advice.pop(str(event.get("name")), None)

    def _append(self, env_steps: float, values: Sequence[float], version: int | None) -> None:
        self._env_steps.append(env_steps)
        self._autonomous.append(version)
        for name, value in zip(_COLUMNS, values, strict=True):
            self._values[name].append(value)

    def _apply_labels(self, event: Mapping[str, Any]) -> None:
        """Apply labels that came after an episode ended, or before its own event."""
        row = self._rows.get(str(event["id"]))
        if row is None:
            self._early_labels[str(event["id"])] = {
                key: event.get(key) for key in ("id", "success", "return", "discard")
            }
            if len(self._early_labels) > _MAX_KEPT:
                del self._early_labels[next(iter(self._early_labels))]
            return
        for name in ("success", "return"):
            known = event.get(name) is not None and not event.get("discard")
            self._values[name][row] = float(event[name]) if known else math.nan

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """(env steps, mean of the last episodes) by name. The cycle time is that of successful episodes."""
        columns = {name: np.array(values) for name, values in self._values.items()}
        cycle_time_s = np.where(columns["success"] == 1.0, columns["duration_s"], math.nan)
        shown = {name: columns[name] for name in _CURVES} | {"cycle_time_s": cycle_time_s}
        return {name: self._smooth(values) for name, values in shown.items()}

    def advice(self) -> list[dict[str, str]]:
        """The coach's current advice, warnings first."""
        shown = [
            {key: str(one.get(key, "")) for key in ("severity", "message", "try")} for one in self._advice.values()
        ]
        return sorted(shown, key=lambda one: one["severity"] != "warning")

    def _smooth(self, values: NDArray[np.float64]) -> list[tuple[float, float]]:
        """The mean over the last episodes with a known value: some are not labeled yet. Only of points that are shown."""
        known = np.flatnonzero(np.isfinite(values))
        points: list[tuple[float, float]] = []
        for end in thinned(range(len(known))):
            recent = values[known[max(0, end + 1 - WINDOW) : end + 1]]
            points.append((self._env_steps[known[end]], float(recent.mean())))
        return points


def thinned(points: Sequence[T]) -> Sequence[T]:
    """At most `_MAX_POINTS` points, with the last one."""
    every = -(-len(points) // _MAX_POINTS) or 1
    return points[::-1][::every][::-1]
