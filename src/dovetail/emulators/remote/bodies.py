"""Bodies of the emulated arm. Their time is real: each call first moves the body to the present."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Body", "SimpleBody", "make_body"]

Vector = npt.NDArray[np.float64]
_NS_PER_S = 1_000_000_000
_MAX_STEP_NS = _NS_PER_S  # a longer pause is not simulated
_SPEED = 1.5  # rad/s, and openings per second


class Body(Protocol):
    """An arm whose last axis is a gripper from 0 to 1."""

    low: Vector
    high: Vector
    max_speed: Vector

    def read(self) -> tuple[Vector, dict[str, Any]]:
        """Measured position of each axis, and the pictures."""

    def command(self, target: Vector) -> None: ...

    def hold(self) -> None: ...

    def close(self) -> None: ...


class SimpleBody:
    """Axes that move to their targets with a constant speed. Its pictures are noise and a bar at the first joint's angle."""

    def __init__(self, *, num_joints: int, cameras: tuple[str, ...], image_size: tuple[int, int]) -> None:
        self.low = np.array([-2.5] * num_joints + [0.0])
        self.high = np.array([2.5] * num_joints + [1.0])
        self.max_speed = np.full(num_joints + 1, _SPEED)
        self._position = np.zeros(num_joints + 1)
        self._target = self._position.copy()
        self._time_ns = time.monotonic_ns()
        self._lock = threading.Lock()
        self._cameras = cameras
        width, height = image_size
        self._noise = np.random.default_rng(0).integers(0, 60, (height, width, 3), np.uint8)

    def read(self) -> tuple[Vector, dict[str, Any]]:
        with self._lock:
            self._advance()
            position = self._position.copy()
        return position, {name: self._picture(position) for name in self._cameras}

    def command(self, target: Vector) -> None:
        with self._lock:
            self._advance()
            self._target = np.clip(target, self.low, self.high)

    def hold(self) -> None:
        with self._lock:
            self._advance()
            self._target = self._position.copy()

    def close(self) -> None:
        pass

    def _advance(self) -> None:
        now_ns = time.monotonic_ns()
        step = self.max_speed * ((now_ns - self._time_ns) / _NS_PER_S)
        self._position = self._position + np.clip(self._target - self._position, -step, step)
        self._time_ns = now_ns

    def _picture(self, position: Vector) -> Any:
        picture = np.roll(self._noise, time.monotonic_ns() // 10_000_000 % len(self._noise), axis=0)
        at = int((position[0] - self.low[0]) / (self.high[0] - self.low[0]) * (picture.shape[1] - 4))
        picture[:, max(at, 0) : at + 4] = 255
        return picture


class MujocoBody:
    """One of our MuJoCo arms in an empty scene."""

    def __init__(self, *, arm: str, cameras: tuple[str, ...], image_size: tuple[int, int]) -> None:
        from dovetail.robots.sim import SimRobot, SimRobotConfig  # loads MuJoCo

        config = {"arm": arm, "action": "joint", "images": cameras, "image_size": image_size}
        self._robot = SimRobot(SimRobotConfig.from_mapping(config))
        self._robot.world.reset()
        self._robot.reset_reference()
        body = self._robot.world.arm
        self.low, self.high = np.array([*body.lower, 0.0]), np.array([*body.upper, 1.0])
        self.max_speed = np.array([*np.minimum(body.max_velocity, _SPEED), _SPEED])
        self._cameras = cameras
        self._time_ns = time.monotonic_ns()
        self._lock = threading.Lock()

    def read(self) -> tuple[Vector, dict[str, Any]]:
        with self._lock:
            self._advance()
            values = self._robot.observe().values
        position = np.concatenate((values["joint_pos"], values["gripper"][:1])).astype(np.float64)
        return position, {name: values[name] for name in self._cameras}

    def command(self, target: Vector) -> None:
        with self._lock:
            self._advance()
            self._robot.send(target.astype(np.float32))

    def hold(self) -> None:
        with self._lock:
            self._advance()
            self._robot.stop()

    def close(self) -> None:
        self._robot.close()

    def _advance(self) -> None:
        now_ns = time.monotonic_ns()
        self._robot.advance(min(now_ns - self._time_ns, _MAX_STEP_NS))
        self._time_ns = now_ns


def make_body(name: str, *, cameras: tuple[str, ...], image_size: tuple[int, int]) -> Body:
    if name == "simple":
        return SimpleBody(num_joints=6, cameras=cameras, image_size=image_size)
    return MujocoBody(arm=name, cameras=cameras, image_size=image_size)
