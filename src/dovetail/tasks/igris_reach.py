"""Both arms of igris_b reach joint and finger targets that its emulator shows.

The emulator publishes a new target each time the arms come back to the start pose: `actor.home` is the reset of this task.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.contracts import Robot
from dovetail.core.specs import TaskSpec
from dovetail.core.types import Array, Observation, Outcome, Verdict

__all__ = ["IgrisReach", "IgrisReachConfig", "ReachExpert"]

_KEYS = ("joint_pos", "finger_pos", "arm_target", "finger_target")
_SIDES = {"left": slice(0, 6), "right": slice(6, 12)}
_STEP_RAD, _STEP_FINGER = 0.087, 0.15  # per tick
_NS_PER_S = 1e9


class IgrisReachConfig(Config):
    """Settings of the task `igris_reach`."""

    BASIC: ClassVar[Collection[str]] = ("time_limit_s", "tolerance_rad")

    time_limit_s: float = Field(default=6.0, gt=0.0)
    """Seconds after which an episode is a timeout."""
    tolerance_rad: float = Field(default=0.05, gt=0.0)
    """Largest difference between a joint and its target."""
    finger_tolerance: float = Field(default=0.1, gt=0.0)
    """Largest difference between a finger and its target."""
    hold_s: float = Field(default=0.2, ge=0.0)
    """Seconds for which all joints and fingers must be at the target."""
    takeover_side: Literal["both", "worse"] = "both"
    """What a scripted operator takes over: both sides, or only the side that is further from its target."""


class IgrisReach:
    """Reach targets with two arms and two hands."""

    Config: ClassVar[type[IgrisReachConfig]] = IgrisReachConfig

    def __init__(self, config: IgrisReachConfig) -> None:
        self.config = config
        self._there_since_ns: int | None = None
        self._first_ns: int | None = None

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(name="igris_reach", observation_keys=_KEYS, embodiments=("igris_b",))

    @property
    def prompt(self) -> str:
        return "move both arms and hands to the targets"

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        """`actor.home` has moved the arms, and the emulator has drawn a target."""
        self._there_since_ns = self._first_ns = None

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        now_ns = observation.time_ns
        error_rad, finger_error = errors(observation)
        is_there = error_rad <= self.config.tolerance_rad and finger_error <= self.config.finger_tolerance
        if not is_there:
            self._there_since_ns = None
        elif self._there_since_ns is None:
            self._there_since_ns = now_ns
        self._first_ns = now_ns if self._first_ns is None else self._first_ns
        outcome = None
        if self._there_since_ns is not None and now_ns - self._there_since_ns >= self.config.hold_s * _NS_PER_S:
            outcome = Outcome.SUCCESS
        elif now_ns - self._first_ns >= self.config.time_limit_s * _NS_PER_S:
            outcome = Outcome.TIMEOUT
        return Verdict(
            outcome=outcome,
            rewards={"success": float(outcome is Outcome.SUCCESS)},
            metrics={"error_rad": error_rad, "finger_error": finger_error},
        )

    def expert(self) -> ReachExpert:
        return ReachExpert(self.config)


class ReachExpert:
    """Moves towards the targets in steps, with noise."""

    def __init__(self, config: IgrisReachConfig) -> None:
        self._config = config
        self._rng = np.random.default_rng(0)
        self._noise, self._pace = 0.0, 1.0

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None:
        self._rng, self._noise = rng, noise
        self._pace = 1.0 - 0.3 * noise * float(rng.random())

    def act(self, observation: Observation) -> Array:
        values = observation.values
        arms = self._towards(values["joint_pos"], values["arm_target"], _STEP_RAD)
        fingers = self._towards(values["finger_pos"], values["finger_target"], _STEP_FINGER)
        return np.concatenate((arms, np.clip(fingers, 0.0, 1.0))).astype(np.float32)

    def takeover_axes(self, observation: Observation) -> Array | None:
        """Mask, bool [24], of the axes to take over; None: all. The policy keeps the others."""
        if self._config.takeover_side == "both":
            return None
        worse = _SIDES[self._worse_side(observation)]
        side = np.zeros(12, np.bool_)
        side[worse] = True
        return np.concatenate((side, side))

    def progress(self, observation: Observation) -> float:
        """Never 1: the task judges success."""
        error_rad, finger_error = errors(observation)
        return min(0.99, float(np.exp(-2.0 * error_rad - 0.5 * finger_error)))

    def _worse_side(self, observation: Observation) -> str:
        """By joints and fingers, relative to their tolerances."""
        values, config = observation.values, self._config
        arms = np.abs(values["joint_pos"] - values["arm_target"]) / config.tolerance_rad
        fingers = np.abs(values["finger_pos"] - values["finger_target"]) / config.finger_tolerance
        off = np.maximum(arms, fingers)
        return max(_SIDES, key=lambda side: float(off[_SIDES[side]].max()))

    def _towards(self, here: Array, target: Array, step: float) -> Array:
        move = np.clip(target - here, -step * self._pace, step * self._pace)
        noise = self._rng.normal(size=here.shape) * (0.33 * self._noise * step)
        return np.asarray(here + move + noise, np.float64)


def errors(observation: Observation) -> tuple[float, float]:
    """The largest difference of a joint, in rad, and of a finger."""
    values = observation.values
    arms = np.abs(values["joint_pos"] - values["arm_target"])
    fingers = np.abs(values["finger_pos"] - values["finger_target"])
    return float(arms.max()), float(fingers.max())
