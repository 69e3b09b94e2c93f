"""Who may practise next: episodes are numbered over all arms, and simulated ones wait for a learner that is behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ArmBalance", "EpisodePermit", "EpisodePermits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePermit:
    index: int  # of the episode, over all arms
    robot_minutes: float
    streams: bool = False  # its steps are wanted while it runs


class EpisodePermits:
    """The update-to-data ratio of all arms together. The counts are kept up to date by whoever has them."""

    def __init__(self, *, utd: float, start_after_steps: int, max_behind_steps: int, max_steps: int) -> None:
        self._utd, self._start_after = utd, start_after_steps
        self._max_behind, self._max_steps = max_behind_steps, max_steps
        self.env_steps = 0  # of all that was delivered
        self.trained_steps = 0  # of what is learned from
        self.updates = 0
        self.waits = False  # the learner, for data: however far behind, it is no use to wait for it
        self.next_index = 0
        self.streams = False  # whether anybody learns from an episode that is still running

    @property
    def behind_steps(self) -> float:
        """Steps that the learner has not done the updates for."""
        return max(0.0, max(0, self.trained_steps - self._start_after) - self.updates / self._utd)

    def take(self, *, real_time: bool, robot_minutes: float = 0.0) -> EpisodePermit | None:
        """None: not now."""
        if self.env_steps >= self._max_steps:
            return None
        if not real_time and not self.waits and self.behind_steps > self._max_behind:
            return None
        ticket = EpisodePermit(index=self.next_index, robot_minutes=robot_minutes, streams=self.streams)
        self.next_index += 1
        return ticket


class ArmBalance:
    """Where time is simulated, arms that do different things keep step, however long each takes to simulate: who is more
    than `slack_steps` ahead waits. One that has been silent for long is not waited for; when it comes back, or comes late,
    it begins where the others are."""

    def __init__(self, *, slack_steps: float, silent_s: float = 10.0) -> None:
        self._slack, self._silent_s = slack_steps, silent_s
        self._heard: dict[str, tuple[float, int]] = {}  # when, and steps that it was given for a start

    def hear(self, robot: str, steps: Mapping[str, int], now_s: float) -> None:
        """That this arm practises; `steps` are those that each has done."""
        own, others = steps.get(robot, 0), self._counted(steps, now_s, but=robot)
        start = self._heard.get(robot, (0.0, 0))[1]
        if others and own + start < min(others.values()) - 2 * self._slack and not self._is_there(robot, now_s):
            start = min(others.values()) - own
        self._heard[robot] = (now_s, start)

    def is_ahead(self, robot: str, steps: Mapping[str, int], now_s: float) -> bool:
        counted = self._counted(steps, now_s)
        return robot in counted and counted[robot] > min(counted.values()) + self._slack

    def _is_there(self, robot: str, now_s: float) -> bool:
        return robot in self._heard and now_s - self._heard[robot][0] <= self._silent_s

    def _counted(self, steps: Mapping[str, int], now_s: float, *, but: str = "") -> dict[str, int]:
        return {
            name: steps.get(name, 0) + start
            for name, (_, start) in self._heard.items()
            if name != but and self._is_there(name, now_s)
        }
