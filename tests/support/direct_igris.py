"""The body of the emulated igris_b in simulated time, without DDS: a whole run of the recipe `igris-b` takes minutes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dovetail.core.clock import NS_PER_S
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.emulators.igris_b.body import NUM_ARM, Body, ReachTargets
from dovetail.robots.drivers.ros2.settings import Ros2Config
from dovetail.robots.drivers.ros2.topics import robot_spec

_NOISE_RAD = 2e-4  # as the emulator
_LEFT_FIRST = np.r_[6:12, 0:6]  # and back


class DirectIgrisConfig(Ros2Config):
    """The robot of the recipe, without its connection."""

    target_seed: int = 0
    """Seed of noise and of the targets to reach."""


class DirectIgris:
    """Takes and gives the left side first, as the recipe's slices do. The body has the right side first."""

    Config: ClassVar[type[DirectIgrisConfig]] = DirectIgrisConfig

    def __init__(self, config: DirectIgrisConfig, *, task: Any = None) -> None:
        self._spec = robot_spec(config)
        self._rng = np.random.default_rng(config.target_seed)
        self._body = Body(at_start_pose=True)
        self._reach = ReachTargets(self._rng)
        self._time_ns = NS_PER_S

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def observe(self) -> Observation:
        self._reach.look_at(self._body)
        noise = self._rng.normal(0.0, _NOISE_RAD, len(self._body.position))
        target = self._reach.position
        values = {
            "joint_pos": self._body.arms + noise[:NUM_ARM],
            "joint_effort": self._body.effort,
            "finger_pos": self._body.fingers + noise[NUM_ARM:],
            "finger_current": self._body.finger_current,
            "arm_target": target[:NUM_ARM],
            "finger_target": target[NUM_ARM:],
        }
        left_first = {key: value[_LEFT_FIRST].astype(np.float32) for key, value in values.items()}
        return Observation(time_ns=self._time_ns, values=left_first)

    def send(self, action: Array) -> Array:
        low, high = self._spec.action.bounds
        executed = np.clip(np.asarray(action, np.float32), low, high)
        arms, fingers = executed[:NUM_ARM], executed[NUM_ARM:]
        self._body.target[:] = np.concatenate((arms[_LEFT_FIRST], fingers[_LEFT_FIRST]))
        return executed

    def stop(self) -> None:
        self._body.target[:NUM_ARM] = self._body.arms

    def advance(self, duration_ns: int) -> None:
        self._body.advance(duration_ns / NS_PER_S)
        self._time_ns += duration_ns
