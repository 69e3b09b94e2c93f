"""Curves of online learning, evaluations and the coach's advice, from the events of a run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from dovetail.console.run_files import RunFiles

__all__ = ["WINDOW", "RunHistory", "thinned"]

WINDOW = 20  # episodes that a curve averages
_MAX_POINTS = 400  # of a curve in the browser
_CURVES = ("success", "return", "human_share")


class RunHistory:
    """What the pages show of the events; `read` adds the new ones."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._num_read = 0
        self._env_steps: list[float] = []
        self._rows: dict[str, int] = {}  # episode -> row in the curves
        self._values: dict[str, list[float]] = {name: [] for name in _CURVES}
        self._autonomous: list[int | None] = []  # version that acted in each episode without help
        self._early_labels: dict[str, Mapping[str, Any]] = {}  # labels that came before the event of their episode
        self._advice: dict[str, Mapping[str, Any]] = {}
        self.evaluations: list[Mapping[str, Any]] = []
        self.checkpoints: list[Mapping[str, Any]] = []

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
        events, self._num_read = self._files.events(self._num_read)
        for event in events:
            self._add(event)

    def _add(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "episode":
            self._rows[str(event.get("id"))] = len(self._env_steps)
            self._env_steps.append(float(event.get("env_steps", 0)))
            for name in _CURVES:
                self._values[name].append(float(event.get(name, math.nan)))
            is_autonomous = "policy_version" in event and not event.get("human_share")
            self._autonomous.append(int(event["policy_version"]) if is_autonomous else None)
            if (labels := self._early_labels.pop(str(event.get("id")), None)) is not None:
                self._apply_labels(labels)
        elif kind == "labelled":
            self._apply_labels(event)
        elif kind == "practice":  # of PPO: one event per rollout, with the episodes that ended in it
            while self._env_steps and self._env_steps[-1] >= event["env_steps"]:  # repeated after a crash
                self._autonomous.pop()
                for values in (self._env_steps, *self._values.values()):
                    values.pop()
            for success in event.get("success", ()):
                self._env_steps.append(float(event["env_steps"]))
                self._autonomous.append(None)
                for name, value in zip(_CURVES, (float(success), float(success), 0.0), strict=True):
                    self._values[name].append(value)
        elif kind in ("evaluated", "eval"):
            self.evaluations.append(event)
        elif kind in ("checkpoint", "best checkpoint"):
            self.checkpoints.append(event)
        elif kind == "coach":
            self._advice[str(event.get("name"))] = event
        elif kind == "coach: over":
            self._advice.pop(str(event.get("name")), None)

    def _apply_labels(self, event: Mapping[str, Any]) -> None:
        """Apply labels that came after an episode ended, or before its own event."""
        row = self._rows.get(event["id"])
        if row is None:
            self._early_labels[event["id"]] = event
            return
        for name in ("success", "return"):
            known = event.get(name) is not None and not event.get("discard")
            self._values[name][row] = float(event[name]) if known else math.nan

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """(env steps, mean of the last episodes) by name."""
        return {name: thinned(self._smooth(name)) for name in _CURVES}

    def advice(self) -> list[dict[str, str]]:
        """The coach's current advice, warnings first."""
        shown = [
            {key: str(one.get(key, "")) for key in ("severity", "message", "try")} for one in self._advice.values()
        ]
        return sorted(shown, key=lambda one: one["severity"] != "warning")

    def _smooth(self, name: str) -> list[tuple[float, float]]:
        """The mean over the last episodes with a known value: some are not labeled yet."""
        points: list[tuple[float, float]] = []
        recent: deque[float] = deque(maxlen=WINDOW)
        for env_steps, value in zip(self._env_steps, self._values[name], strict=True):
            if not math.isnan(value):
                recent.append(value)
                points.append((env_steps, sum(recent) / len(recent)))
        return points


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `_MAX_POINTS` points, with the last one."""
    every = -(-len(points) // _MAX_POINTS) or 1
    return points[::-1][::every][::-1]
