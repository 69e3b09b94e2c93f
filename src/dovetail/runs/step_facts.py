"""Facts for the coach from the steps of one online episode. They are taken when it ends, because it leaves memory then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, Labels, Source
from dovetail.policies.normalizer import CLIP
from dovetail.robots.safety import Reason

__all__ = ["StepFacts", "delay_ticks"]

_LIMITS = {"step": Reason.STEP, "workspace": Reason.WORKSPACE}
_MAX_DELAY_TICKS = 12
_MIN_CORRELATION = 0.6
_SAME_CORRELATION = 0.1  # of two delays that fit equally well, the shorter one counts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """`known` are fields of EpisodeFacts; `for_labels` adds those that depend on the labels."""

    known: Mapping[str, Any] = field(default_factory=dict)
    task_rewards: Array = field(default_factory=lambda: np.zeros(0))  # [T] the sum of the task's reward components

    @staticmethod
    def of(
        episode: Episode, *, statistics: Mapping[str, tuple[Array, Array]], versions_behind: int | None
    ) -> StepFacts:
        """`statistics` are mean and standard deviation of each normalized observation."""
        rewards = [episode.column(name) for name in episode.segments[0].columns if name.startswith("reward/")]
        total = np.asarray(np.sum(rewards, axis=0, dtype=np.float64)) if rewards else np.zeros(0)
        human = episode.column("source") == Source.HUMAN
        executed = episode.column("executed")
        return StepFacts(
            known={
                "saturated": _saturated(episode),
                "outside": _outside(episode, statistics),
                "versions_behind": versions_behind,
                "task_total": float(total.sum()) if rewards else None,
                "first_help": float(human.argmax() / len(human)) if human.any() else None,
                "human_saturated": _at_limits(episode.robot, executed[human]) if human.any() else None,
                "clipped": _clipped(episode),
                "clip_ratio": _clip_ratio(episode),
                "delay_ticks": delay_ticks(episode),
                **_timing(episode),
            },
            task_rewards=total,
        )

    def for_labels(self, labels: Labels) -> dict[str, Any]:
        """All fields of EpisodeFacts that are known from the steps."""
        before = self.task_rewards[:-1]  # the last step has the reward for success
        if not len(before):
            return dict(self.known)
        unused = bool(np.ptp(before) > 1e-6) and not np.ptp(labels.rewards[:-1]) > 1e-6
        return {**self.known, "unused_reward": unused}


def _at_limits(robot: RobotSpec, actions: Array) -> float:
    """Share of the steps with an axis at a limit. Grippers do not count: they are open or closed."""
    moving = ~robot.axes_of("gripper")
    return float(robot.action.at_limits(actions)[:, moving].any(axis=1).mean()) if moving.any() else 0.0


def _saturated(episode: Episode) -> float | None:
    """Share of the policy's action values at a limit."""
    proposed = episode.column("proposed")[episode.column("source") == Source.POLICY]
    return float(episode.robot.action.at_limits(proposed).mean()) if len(proposed) else None


def _outside(episode: Episode, statistics: Mapping[str, tuple[Array, Array]]) -> dict[str, float]:
    """Share of the values of each observation that the normalizer clips."""
    outside = {}
    for key, (mean, std) in statistics.items():
        away = np.abs(episode.column(f"observation/{key}") - mean) / std
        outside[key] = float((away >= CLIP).mean())
    return outside


def _clipped(episode: Episode) -> dict[str, float]:
    """Share of the steps in which a limit of the safety filter changed the action."""
    if "extra/safety_reasons" not in episode.segments[0].columns:
        return {}
    reasons = episode.column("extra/safety_reasons")
    return {name: float((reasons & int(reason) != 0).mean()) for name, reason in _LIMITS.items()}


def _clip_ratio(episode: Episode) -> float | None:
    """How much larger the proposed actions were than the executed ones, for most of those that the step limit changed."""
    if "extra/safety_reasons" not in episode.segments[0].columns:
        return None
    changed = episode.column("extra/safety_reasons") & int(Reason.STEP) != 0
    proposed, executed = np.abs(episode.column("proposed")[changed]), np.abs(episode.column("executed")[changed])
    known = executed > 1e-6
    return float(np.quantile(proposed[known] / executed[known], 0.9)) if known.any() else None


def _timing(episode: Episode) -> dict[str, float]:
    """Median time between two observations by the robot's clock, and the share of late ticks."""
    ticks_s = np.diff(episode.column("time_ns")) / 1e9
    if len(ticks_s) < 3:
        return {}
    late = ticks_s > 1.5 / episode.robot.control_hz
    return {"period_s": float(np.median(ticks_s)), "late": float(late.mean())}


def delay_ticks(episode: Episode) -> float | None:
    """Ticks until a command shows in the observations: the shift at which commanded and measured motion correlate best.

    None if they do not correlate, as in contact, or if the kind of action or the measured state is not known.
    """
    keys = {"ee_delta": "observation/ee_pose", "joint_target": "observation/joint_pos"}
    key = keys.get(episode.robot.action_kind, "")
    if key not in episode.segments[0].columns or len(episode) < 3 * _MAX_DELAY_TICKS // 2:
        return None
    executed, state = episode.column("executed").astype(np.float64), episode.column(key).astype(np.float64)
    if episode.robot.action_kind == "ee_delta":
        commanded, state = np.linalg.norm(executed[:, :3], axis=1), state[:, :3]
    else:
        moving = ~episode.robot.axes_of("gripper")
        commanded = np.linalg.norm(np.diff(executed[:, moving], axis=0, prepend=executed[:1, moving]), axis=1)
    measured = np.linalg.norm(np.diff(state, axis=0), axis=1)  # [T - 1]
    found = [
        _correlation(commanded[: len(measured) - shift], measured[shift:]) for shift in range(_MAX_DELAY_TICKS)
    ]
    best = max(found)
    if best < _MIN_CORRELATION:
        return None
    return 1.0 + next(shift for shift, one in enumerate(found) if one >= best - _SAME_CORRELATION)


def _correlation(a: Array, b: Array) -> float:
    if len(a) < 6 or a.std() < 1e-9 or b.std() < 1e-9:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
