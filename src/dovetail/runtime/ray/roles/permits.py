"""Which arm may run the next online episode. Episodes are numbered over all arms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ArmBalance", "EpisodePermit", "EpisodePermits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePermit:
    index: int  # of the episode, over all arms
    robot_minutes: float
    streams: bool = False  # whether the store needs its steps while it runs


class EpisodePermits:
    """Keeps the update-to-data ratio: simulated arms wait for a learner that is behind. The store sets the counts."""

    def __init__(self, *, utd: float, start_after_steps: int, max_steps_ahead: int, max_steps: int) -> None:
        self._utd, self._start_after = utd, start_after_steps
        self._max_ahead, self._max_steps = max_steps_ahead, max_steps
        self.env_steps = 0
        self.trained_steps = 0  # of these, in episodes that the learner uses
        self.updates = 0
        self.learner_waits = False  # for data: then waiting for it would be endless
        self.next_index = 0
        self.streams = False

    @property
    def behind_steps(self) -> float:
        """Steps for which the learner has not done the updates. Less than a whole update is not waited for."""
        owed = math.floor(self._utd * max(0, self.trained_steps - self._start_after)) - self.updates
        return max(0, owed) / self._utd

    def request(self, *, real_time: bool, robot_minutes: float = 0.0) -> EpisodePermit | None:
        """A permit for one episode; None: ask again later. A real arm never waits."""
        if self.env_steps >= self._max_steps:
            return None
        if not real_time and not self.learner_waits and self.behind_steps > self._max_ahead:
            return None
        permit = EpisodePermit(index=self.next_index, robot_minutes=robot_minutes, streams=self.streams)
        self.next_index += 1
        return permit


class ArmBalance:
    """Keeps simulated arms with different tasks at similar numbers of steps: one that is `slack_steps` ahead waits.

    An arm that was silent for `silent_s` is not waited for. When it returns, or joins late, it starts level with the others.
    """

    def __init__(self, *, slack_steps: float, silent_s: float = 10.0) -> None:
        self._slack, self._silent_s = slack_steps, silent_s
        self._active: dict[
            str, tuple[float, int]
        ] = {}  # time of the last call, and steps that are added for a late start

    def mark_active(self, robot: str, steps: Mapping[str, int], now_s: float) -> None:
        """Note that an arm acts online; `steps` has the steps of each."""
        own, others = steps.get(robot, 0), self._levels(steps, now_s, without=robot)
        start = self._active.get(robot, (0.0, 0))[1]
        if others and own + start < min(others.values()) - 2 * self._slack and not self._is_active(robot, now_s):
            start = min(others.values()) - own
        self._active[robot] = (now_s, start)

    def is_ahead(self, robot: str, steps: Mapping[str, int], now_s: float) -> bool:
        levels = self._levels(steps, now_s)
        return robot in levels and levels[robot] > min(levels.values()) + self._slack

    def _is_active(self, robot: str, now_s: float) -> bool:
        return robot in self._active and now_s - self._active[robot][0] <= self._silent_s

    def _levels(self, steps: Mapping[str, int], now_s: float, *, without: str = "") -> dict[str, int]:
        return {
            name: steps.get(name, 0) + start
            for name, (_, start) in self._active.items()
            if name != without and self._is_active(name, now_s)
        }
