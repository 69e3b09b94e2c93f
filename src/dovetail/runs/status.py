"""The status of a run: counters and figures that the runtime updates and a status listener shows."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dovetail.core.stats import Rate
from dovetail.core.types import Labels
from dovetail.episodes.log import EpisodeInfo
from dovetail.learn.coach import Advice

__all__ = ["RECENT", "ArmStatus", "RunStatus", "StatusListener", "ignore_status"]

RECENT = 20  # episodes in a live figure
_MAX_RECENT = 1000  # episodes that are kept


@dataclass(slots=True, kw_only=True)
class ArmStatus:
    """Online figures of one arm."""

    task: str
    control_hz: float
    env_steps: int = 0
    episodes: int = 0
    interventions: int = 0
    human_steps: int = 0
    recent_ids: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))
    recent_success: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))  # NaN: no labels yet
    recent_human: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))

    @property
    def robot_minutes(self) -> float:
        return self.env_steps / self.control_hz / 60.0

    def count(self, info: EpisodeInfo, labels: Labels | None) -> None:
        self.episodes += 1
        self.env_steps += info.num_steps
        self.interventions += info.num_interventions
        self.human_steps += info.num_human_steps
        self.recent_ids.append(info.id)
        self.recent_success.append(_success(labels))
        self.recent_human.append(info.num_human_steps / info.num_steps)

    def correct(self, episode_id: str, labels: Labels | None) -> None:
        if episode_id in self.recent_ids:
            self.recent_success[self.recent_ids.index(episode_id)] = _success(labels)

    def unassisted_rate(self, window: int) -> float:
        return _unassisted_rate(self.recent_success, self.recent_human, window)

    def to_json(self) -> dict[str, object]:
        known = [value for value in list(self.recent_success)[-RECENT:] if not math.isnan(value)]
        return {
            "task": self.task,
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "robot_minutes": round(self.robot_minutes, 3),
            "interventions": self.interventions,
            "human_share": round(self.human_steps / max(1, self.env_steps), 3),
            "recent_success": round(sum(known) / len(known), 3) if known else None,
        }


@dataclass(slots=True, kw_only=True)
class RunStatus:
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
    recent_ids: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))
    recent_success: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))
    recent_return: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))
    recent_human: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))
    success_steps: deque[int] = field(
        default_factory=lambda: deque(maxlen=RECENT)
    )  # lengths of successful episodes
    rates: dict[str, Rate] = field(default_factory=dict)
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
        self.recent_ids.append(info.id)
        self.recent_success.append(_success(labels))
        self.recent_return.append(_return(labels))
        self.recent_human.append(info.num_human_steps / info.num_steps)
        if labels is not None and labels.success:
            self.success_steps.append(info.num_steps)

    def correct(self, episode_id: str, labels: Labels | None) -> None:
        """Apply new labels of an episode, if it is recent enough."""
        if episode_id in self.recent_ids:
            place = self.recent_ids.index(episode_id)
            self.recent_success[place], self.recent_return[place] = _success(labels), _return(labels)
        for arm in self.robots.values():
            arm.correct(episode_id, labels)

    @property
    def evaluating(self) -> bool:
        """Whether the figures of online episodes stand still."""
        return self.phase.startswith("evaluating")

    def recent(self, values: deque[float]) -> float | None:
        """Mean over the latest episodes with a known value; None before the first."""
        latest = [value for value in list(values)[-RECENT:] if not math.isnan(value)]
        return sum(latest) / len(latest) if latest else None

    def unassisted_rate(self, window: int) -> float:
        """Share of the last `window` episodes that succeeded without intervention. Missing episodes and labels count as
        failures."""
        return _unassisted_rate(self.recent_success, self.recent_human, window)

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


def _unassisted_rate(success: deque[float], human: deque[float], window: int) -> float:
    pairs = list(zip(success, human, strict=True))[-window:]
    return sum(s for s, share in pairs if not share and not math.isnan(s)) / window


def _success(labels: Labels | None) -> float:
    return math.nan if labels is None or labels.discard else float(labels.success)


def _return(labels: Labels | None) -> float:
    return math.nan if labels is None or labels.discard else float(labels.rewards.sum())


class StatusListener(Protocol):
    def __call__(self, status: RunStatus) -> None: ...


def ignore_status(status: RunStatus) -> None:
    """A listener that does nothing."""
