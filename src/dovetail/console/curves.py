"""What a run's events come to: curves over practice, evaluations, the coach's advice. Read on, never anew."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from dovetail.console.handles import Run

__all__ = ["WINDOW", "Story"]

WINDOW = 20  # episodes that a smoothed curve looks back at
_MOST_POINTS = 400  # that a browser is sent of a curve
_CURVES = ("success", "return", "human_share")


class Story:
    """Everything that pages tell of a run, up to date at each `read`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._place = 0
        self._env_steps: list[float] = []
        self._places: dict[str, int] = {}  # of episodes in the curves
        self._values: dict[str, list[float]] = {name: [] for name in _CURVES}
        self._alone: list[int | None] = []  # which version acted in each with nobody's help
        self._early: dict[str, Mapping[str, Any]] = {}  # labels that were there before their episode's own line
        self._advice: dict[str, Mapping[str, Any]] = {}
        self.evaluations: list[Mapping[str, Any]] = []
        self.checkpoints: list[Mapping[str, Any]] = []

    @property
    def num_episodes(self) -> int:
        return len(self._env_steps)

    def by_version(self) -> dict[int, list[float]]:
        """Success of the episodes that each version acted in, alone, as far as it is known."""
        found: dict[int, list[float]] = {}
        for version, success in zip(self._alone, self._values["success"], strict=True):
            if version is not None and not math.isnan(success):
                found.setdefault(version, []).append(success)
        return found

    def read(self) -> None:
        events, self._place = self._run.events(self._place)
        for event in events:
            self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "episode":
            self._places[str(event.get("id"))] = len(self._env_steps)
            self._env_steps.append(float(event.get("env_steps", 0)))
            for name in _CURVES:
                self._values[name].append(float(event.get(name, math.nan)))
            is_alone = "policy_version" in event and not event.get("human_share")
            self._alone.append(int(event["policy_version"]) if is_alone else None)
            if (labelled := self._early.pop(str(event.get("id")), None)) is not None:
                self._correct(labelled)
        elif kind == "labelled":
            self._correct(event)
        elif kind == "practice":  # PPO's: a line a rollout, with the episodes that ended in it
            while self._env_steps and self._env_steps[-1] >= event["env_steps"]:  # done again, after a kill
                self._alone.pop()
                for values in (self._env_steps, *self._values.values()):
                    values.pop()
            for success in event.get("success", ()):
                self._env_steps.append(float(event["env_steps"]))
                self._alone.append(None)
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

    def _correct(self, event: Mapping[str, Any]) -> None:
        """What is said of an episode later than it ended, or while its own line was still to come."""
        place = self._places.get(event["id"])
        if place is None:
            self._early[event["id"]] = event
            return
        for name in ("success", "return"):
            known = event.get(name) is not None and not event.get("discard")
            self._values[name][place] = float(event[name]) if known else math.nan

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """(env steps, mean of the last episodes) by name."""
        return {name: thinned(self._smooth(name)) for name in _CURVES}

    def advice(self) -> list[dict[str, str]]:
        """The coach's, that has not been over since; the worst first."""
        told = [
            {key: str(one.get(key, "")) for key in ("severity", "message", "try")} for one in self._advice.values()
        ]
        return sorted(told, key=lambda one: one["severity"] != "warning")

    def _smooth(self, name: str) -> list[tuple[float, float]]:
        """Over the last episodes of which it is known: the labels of some are still to come."""
        points: list[tuple[float, float]] = []
        recent: deque[float] = deque(maxlen=WINDOW)
        for env_steps, value in zip(self._env_steps, self._values[name], strict=True):
            if not math.isnan(value):
                recent.append(value)
                points.append((env_steps, sum(recent) / len(recent)))
        return points


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Few enough to draw; the last one always."""
    every = -(-len(points) // _MOST_POINTS) or 1
    return points[::-1][::every][::-1]
