"""Builds the leader arm of an operator: a leader plugin, or any robot behind the safety filter."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dovetail.config.plugins import locate, resolve
from dovetail.core.abilities import Closes, Leader, LooksOnly
from dovetail.core.clock import RealClock, SimulatedClock
from dovetail.core.contracts import Clock, Robot, SimulatedRobot
from dovetail.core.errors import PluginError, RobotError, UsageError
from dovetail.core.types import Array
from dovetail.human.leader_pose import CARTESIAN, POSE_NAMES
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.runs.assembly.operators import parse_inner

__all__ = ["RobotLeader", "build_leader"]

_JOINTS = ("joint_target", "joint_velocity")


def build_leader(section: Any, *, clock: Clock) -> Leader:
    """From an `operator.leader` section. Its constructor does no I/O. `clock` is that of the robot that follows."""
    name = section.get("type") if isinstance(section, Mapping) else section
    if not isinstance(name, str):
        raise UsageError("operator.leader has no `type`. Name a leader plugin or a robot")
    if _is_leader(name):
        leader: Leader = parse_inner("leader", section, "operator.leader").build()
        return leader
    robot: Robot = parse_inner("robot", section, "operator.leader").build(task=None)
    if not isinstance(robot, SimulatedRobot):
        return RobotLeader(robot, RealClock())
    if not isinstance(clock, SimulatedClock):
        raise UsageError(f"the leader '{robot.spec.name}' is simulated, but the robot is not. Use another leader")
    simulated = RobotLeader(robot, clock)
    clock.on_advance(simulated.advance)
    return simulated


@runtime_checkable
class _MovedByHand(Protocol):
    """The member that a leader's class has and a robot's class does not."""

    def follow(self, positions: Array) -> None: ...

    def release(self) -> None: ...


def _is_leader(name: str) -> bool:
    try:
        return locate("leader", name).origin != "module" or isinstance(resolve("leader", name), _MovedByHand)
    except PluginError:
        return False


class RobotLeader:
    """A robot that a person moves by hand. Only `follow` commands it, and through the safety filter."""

    def __init__(self, robot: Robot, clock: Clock) -> None:
        # a hand may move it faster than its motors
        self._robot, self._safe = robot, SafeRobot(robot, SafetyConfig(check_jumps=False), clock)
        self._lock = threading.Lock()  # a simulated robot is advanced by another thread
        spec = robot.spec
        self._parts = [part for part in spec.parts if part.kind in (*_JOINTS, "gripper") and part.measured]
        arms = [part for part in spec.parts if part.kind in CARTESIAN and part.measured]
        if not arms and not any(part.kind in _JOINTS for part in self._parts):
            kinds = ", ".join(part.kind for part in spec.parts)
            raise UsageError(
                f"the leader '{spec.name}' has no measured joint targets, joint velocities or poses, but {kinds}. Set "
                "`measured` in its spec"
            )
        axes = [name for part in self._parts for name in part.names]
        self.name = spec.name
        self.poses = {part.name: len(axes) + len(POSE_NAMES) * number for number, part in enumerate(arms)}
        self.axes = (*axes, *(f"{part.name}.{name}" for part in arms for name in POSE_NAMES))
        units = [part.unit.removesuffix("/s") for part in self._parts for _ in part.names]
        self.units = (*units, *(unit for _ in arms for unit in ("m",) * 3 + ("1",) * 4))
        # what follows is sent as joint targets
        self.can_follow = not arms and all(part.kind != "joint_velocity" for part in self._parts)
        self._measured = [*self._parts, *arms]
        if isinstance(robot, LooksOnly):  # with torque, a person could not move it
            robot.look_only()
            self.can_follow = False

    def read(self) -> Array:
        with self._lock:
            observation = self._safe.observe()
        if self._safe.problem is not None:
            raise RobotError(f"leader '{self.name}': {self._safe.problem}")
        values = [
            observation.values[part.measured_key].reshape(-1)[part.measured_slice].astype(np.float64)
            for part in self._measured
        ]
        return np.concatenate(values)

    def follow(self, positions: Array) -> None:
        if not self.can_follow:
            return
        with self._lock:
            action, first = self._safe.holding_action(), 0
            for part in self._parts:
                action[self._robot.spec.slice_of(part.name)] = positions[first : first + part.num_axes]
                first += part.num_axes
            self._safe.send(action)

    def release(self) -> None:
        """Stop. Whether a person can move it then depends on the robot."""
        if not self.can_follow:
            return
        with self._lock:
            self._safe.stop()

    def advance(self, duration_ns: int) -> None:
        """Only for a simulated robot."""
        assert isinstance(self._robot, SimulatedRobot)
        with self._lock:
            self._robot.advance(duration_ns)

    def close(self) -> None:
        if isinstance(self._robot, Closes):
            self._robot.close()
