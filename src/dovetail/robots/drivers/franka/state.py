"""One measurement of an arm, read from the server and checked. A missing, short or non-finite value is a RobotError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dovetail.core.errors import RobotError, shown
from dovetail.robots.drivers.franka.connection import Connection, ServerError
from dovetail.robots.drivers.franka.poses import Vector

__all__ = ["ArmState", "StateReader", "read_pose"]

_SINGLE = {
    "pose": "/getpos",
    "vel": "/getvel",
    "force": "/getforce",
    "torque": "/gettorque",
    "q": "/getq",
    "dq": "/getdq",
}
_LARGEST = float(np.finfo(np.float32).max)  # observations are float32
_SIZES = {"pose": 7, "vel": 6, "force": 3, "torque": 3, "q": 7, "dq": 7}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmState:
    """`time_ns` is our monotonic clock in the middle of the request."""

    time_ns: int
    position: Vector  # [3] m, base frame
    quat: Vector  # [4] (w, x, y, z)
    twist: Vector  # [6] m/s and rad/s, base frame
    force: Vector  # [3] N, stiffness frame
    torque: Vector  # [3] Nm, stiffness frame
    joints: Vector  # [7] rad
    joint_velocities: Vector  # [7] rad/s
    gripper_pos: float | None  # as the server reports it

    def same_values(self, other: ArmState) -> bool:
        """Whether nothing at all has changed. Sensors have noise, so this means that no new measurement has arrived."""
        return all(
            np.array_equal(a, b)
            for a, b in (
                (self.joints, other.joints),
                (self.joint_velocities, other.joint_velocities),
                (self.position, other.position),
                (self.quat, other.quat),
                (self.twist, other.twist),
                (self.force, other.force),
                (self.torque, other.torque),
            )
        )


class StateReader:
    """Reads `/getstate`. A server without a gripper answers that with 500: then the values are read one by one."""

    def __init__(self, connection: Connection, *, has_gripper: bool, now_ns: Callable[[], int]) -> None:
        self._connection, self._has_gripper, self._now_ns = connection, has_gripper, now_ns
        self._is_single = False
        self._last: ArmState | None = None

    def read(self) -> ArmState:
        """An unchanged answer keeps the time of the first one like it, so that the safety filter sees a stale state."""
        began_ns = self._now_ns()
        answer = self._answer()
        middle_ns = (began_ns + self._now_ns()) // 2
        where = f"the Franka server at {self._connection.address}"
        state = parse_state(answer, time_ns=middle_ns, has_gripper=self._has_gripper, where=where)
        if self._last is not None and state.same_values(self._last):
            state = replace(state, time_ns=self._last.time_ns)
        self._last = state
        return state

    def _answer(self) -> Mapping[str, Any]:
        connection = self._connection
        if not self._is_single:
            try:
                return connection.post_json("/getstate")
            except ServerError as error:
                if self._has_gripper or error.status != 500:
                    raise
                self._is_single = True
        return {key: connection.post_json(path).get(key) for key, path in _SINGLE.items()}


def parse_state(answer: Mapping[str, Any], *, time_ns: int, has_gripper: bool, where: str) -> ArmState:
    values = {key: _numbers(answer, key, size, where) for key, size in _SIZES.items()}
    position, quat = _pose(values["pose"], where)
    return ArmState(
        time_ns=time_ns,
        position=position,
        quat=quat,
        twist=values["vel"],
        force=values["force"],
        torque=values["torque"],
        joints=values["q"],
        joint_velocities=values["dq"],
        gripper_pos=float(_numbers(answer, "gripper_pos", 0, where)[0]) if has_gripper else None,
    )


def read_pose(connection: Connection, *, timeout_s: float | None = None) -> list[float]:
    """The measured pose as the server writes it: x y z qx qy qz qw."""
    where = f"the Franka server at {connection.address}"
    values = _numbers(connection.post_json("/getpos", timeout_s=timeout_s), "pose", 7, where)
    _pose(values, where)
    return [float(value) for value in values]


def _numbers(answer: Mapping[str, Any], key: str, size: int, where: str) -> Vector:
    """A vector of the answer. Size 0: a single number."""
    found = answer.get(key)
    if found is None:
        raise RobotError(f"{where} sent a state without '{key}'. Check its version")
    listed = found if isinstance(found, list) else [found]
    expected = f"{size} numbers" if size else "a number"
    if isinstance(found, list) != bool(size) or len(listed) != (size or 1):
        raise RobotError(f"{where} sent '{key}' with {len(listed)} values, expected {expected}")
    if not all(type(value) in (int, float) for value in listed):
        raise RobotError(f"{where} sent '{key}' as {shown(found, max_chars=60)}, expected {expected}")
    try:
        values = np.array(listed, np.float64)
    except OverflowError as error:
        raise RobotError(f"{where} sent '{key}' with a number that is too large") from error
    if not (np.abs(values) <= _LARGEST).all():  # false for NaN, too
        raise RobotError(f"{where} sent '{key}' that is not finite or too large: {shown(found, max_chars=60)}")
    return values


def _pose(values: Vector, where: str) -> tuple[Vector, Vector]:
    quat = values[[6, 3, 4, 5]]
    length = float(np.linalg.norm(quat))
    if abs(length - 1.0) > 0.01:
        raise RobotError(f"{where} sent a pose whose quaternion has length {length:.3f}, expected 1")
    quat = quat / length
    # q and -q are the same rotation. This choice is smooth for a gripper that points down, as in the simulated robot.
    return values[:3], -quat if quat[1] < 0.0 else quat
