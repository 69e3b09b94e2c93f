"""The status of a run: counters and figures that the runtime updates and a status listener shows."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dovetail.core.figures import Performance
from dovetail.core.types import Labels
from dovetail.episodes.log import EpisodeInfo
from dovetail.learn.coach import Advice
from dovetail.runs.recent_episodes import RECENT, RecentEpisodes

__all__ = ["RECENT", "ArmStatus", "RunStatus", "StatusListener", "ignore_status"]


@dataclass(slots=True, kw_only=True)
class ArmStatus(RecentEpisodes):
    """Online figures of one arm."""

    task: str
    control_hz: float
    env_steps: int = 0
    episodes: int = 0
    interventions: int = 0
    human_steps: int = 0

    @property
    def robot_minutes(self) -> float:
        return self.env_steps / self.control_hz / 60.0

    def count(self, info: EpisodeInfo, labels: Labels | None) -> None:
        self.episodes += 1
        self.env_steps += info.num_steps
        self.interventions += info.num_interventions
        self.human_steps += info.num_human_steps
        self.remember(info, labels)

    def to_json(self) -> dict[str, object]:
        known = [value for value in list(self.recent_success)[-RECENT:] if not math.isnan(value)]
        recent = self.performance()
        return {
            "task": self.task,
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "robot_minutes": round(self.robot_minutes, 3),
            "interventions": self.interventions,
            "human_share": round(self.human_steps / max(1, self.env_steps), 3),
            "recent_success": round(sum(known) / len(known), 3) if known else None,
            "has_success": self.has_success,
            "recent": recent.to_json() if recent else None,
        }


@dataclass(slots=True, kw_only=True)
class RunStatus(RecentEpisodes):
    """Counters of a run. `phase` is the present phase, and `done` of `total` its progress."""

    name: str
    phase: str = ""
    done: int = 0
    total: int = 0
    phase_started_s: float = field(default_factory=time.monotonic)
    phase_started_at: int = 0  # `done` at the start of the phase
    env_steps: int = 0
    episodes: int = 0
    updates: int = 0
    interventions: int = 0
    trained_steps: int = 0  # of `env_steps`, those in the replay; other episodes have no labels yet
    waiting: Mapping[str, int] = field(default_factory=dict)  # episodes without final labels, by reason
    robot_minutes: float = 0.0
    robots: dict[str, ArmStatus] = field(default_factory=dict)  # by name
    success_steps: deque[int] = field(
        default_factory=lambda: deque(maxlen=RECENT)
    )  # lengths of successful episodes
    evaluations: dict[str, Performance] = field(default_factory=dict)  # by name
    metrics: dict[str, float] = field(default_factory=dict)
    telemetry: Mapping[str, float] = field(default_factory=dict)  # of the control loop
    advice: tuple[Advice, ...] = ()  # of the coach, the most severe first

    def begin(self, phase: str, total: int, *, done: int = 0) -> None:
        self.phase, self.total, self.done, self.phase_started_at = phase, total, done, done
        self.phase_started_s = time.monotonic()

    def count(self, info: EpisodeInfo, labels: Labels | None) -> None:
        """Count an online episode. Without labels, its success and return are NaN."""
        self.episodes += 1
        self.env_steps += info.num_steps
        self.interventions += info.num_interventions
        robot = info.robot
        arm = self.robots.setdefault(robot.name, ArmStatus(task=info.task, control_hz=robot.control_hz))
        arm.count(info, labels)
        self.robot_minutes = sum(one.robot_minutes for one in self.robots.values())
        self.remember(info, labels)
        if labels is not None and labels.success:
            self.success_steps.append(info.num_steps)

    def correct(self, info: EpisodeInfo, labels: Labels | None) -> None:
        """Apply new labels of an episode, if it is recent enough."""
        for one in (self, *self.robots.values()):
            one.correct_recent(info, labels)

    @property
    def evaluating(self) -> bool:
        """Whether the figures of online episodes stand still."""
        return self.phase.startswith("evaluating")

    def recent(self, values: deque[float]) -> float | None:
        """Mean over the latest episodes with a known value; None before the first."""
        latest = [value for value in list(values)[-RECENT:] if not math.isnan(value)]
        return sum(latest) / len(latest) if latest else None

    @property
    def usual_steps(self) -> float | None:
        """Median length of recent successful episodes; None until there are 5."""
        return statistics.median(self.success_steps) if len(self.success_steps) >= 5 else None

    @property
    def seconds_left(self) -> float | None:
        """Remaining time of this phase at its speed so far."""
        elapsed_s = time.monotonic() - self.phase_started_s
        done = self.done - self.phase_started_at
        if not done or elapsed_s < 0.5:
            return None
        return elapsed_s * (self.total - self.done) / done


class StatusListener(Protocol):
    def __call__(self, status: RunStatus) -> None: ...


def ignore_status(status: RunStatus) -> None:
    """A listener that does nothing."""
