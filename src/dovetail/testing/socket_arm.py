"""Drivers of the emulated arm (`dovetail.testing.socket_arm_process`): an arm and a gripper, on a real clock.

A driver blocks in `observe` or `send` while the file `block_file` names that call, so a test can stop it there.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.errors import RobotError, UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.testing.socket_arm_process import Lines

__all__ = ["SocketArm", "SocketArmConfig", "SocketArmWithStop", "block_while", "is_named"]

_STOP_S = 1.0
_BLOCK_POLL_S = 0.005
_IMAGE = (24, 32, 3)
_UPRIGHT = np.array((1.0, 0.0, 0.0, 0.0), np.float32)  # quaternion
_MAX_STEP_M, _MAX_TURN_RAD = 0.02, 0.1


def block_while(file: str | None, name: str) -> None:
    """Block while the file contains the word `name`. None: never. FILE.name shows that a call has blocked."""
    if not is_named(file, name):
        return
    Path(f"{file}.{name}").touch()
    while is_named(file, name):
        time.sleep(_BLOCK_POLL_S)


def is_named(file: str | None, name: str) -> bool:
    """Whether the file contains the word."""
    try:
        return file is not None and name in Path(file).read_text().split()
    except FileNotFoundError:
        return False


class SocketArmConfig(Config):
    """An emulated arm behind a socket."""

    address: str
    """HOST:PORT of the arm's motion port."""
    stop_address: str | None = None
    """HOST:PORT of the arm's stop port, for SocketArmWithStop. Null: none."""
    control_hz: float = Field(default=20.0, gt=0.0)
    """Control ticks per second."""
    action: Literal["joint_target", "ee_delta"] = "joint_target"
    """What an action is. With ee_delta the first three axes of the arm are x, y, z; it does not rotate."""
    joints: int = Field(default=6, ge=6)
    """Number of joints, without the gripper."""
    limit: float = Field(default=1.5, gt=0.0)
    """Largest joint angle in rad."""
    camera: bool = False
    """Whether the arm has a camera `front`."""
    timeout_s: float | None = None
    """Seconds after which a missing answer is an error. Null: wait for ever."""
    block_file: str | None = None
    """File that names the calls in which the driver blocks: observe, send. Null: none."""


class SocketArm:
    """An emulated arm behind a socket. Its first call connects."""

    Config: ClassVar[type[SocketArmConfig]] = SocketArmConfig

    def __init__(self, config: SocketArmConfig, *, task: Any = None) -> None:
        self._config = config
        self._lines: Lines | None = None
        self._num_requests = 0
        self._lock = threading.Lock()  # held during a request
        self._write_lock = threading.Lock()  # held while a message is written: stop() does not wait for a request
        self._spec = _spec(config)
        self._position = np.zeros(config.joints + 1, np.float32)  # as measured last

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def observe(self) -> Observation:
        block_while(self._config.block_file, "observe")
        answer = self._request({"observe": True})
        position = self._position = np.array(answer["position"], np.float32)
        values: dict[str, Array] = {"gripper": position[-1:]}
        if self._is_cartesian:
            values["ee_pose"] = np.concatenate((position[:3], _UPRIGHT))
        else:
            values["joint_pos"] = position[:-1]
        if self._config.camera:
            values["front"] = np.full(_IMAGE, answer["picture"], np.uint8)
        return Observation(time_ns=answer["time_ns"], values=values)

    def send(self, action: Array) -> Array:
        block_while(self._config.block_file, "send")
        executed = np.clip(action, *self._spec.action.bounds).astype(np.float32)
        target = executed.copy()
        if self._is_cartesian:
            target[:3] += self._position[:3]
        self._request({"send": target.tolist()})
        return executed

    def stop(self) -> None:
        """Stop the arm. Uses the open connection; without one, opens one for this command."""
        lines = self._lines
        if lines is None:
            self._stop_over(Lines.connect(self._config.address, timeout_s=_STOP_S))
        elif self._lock.acquire(blocking=False):
            try:
                self._exchange(lines, {"stop": True}, timeout_s=_STOP_S)
            finally:
                self._lock.release()
        else:  # another thread waits for an answer on this connection
            self._write(lines, {"stop": True, "pid": os.getpid()})

    @property
    def _is_cartesian(self) -> bool:
        return self._config.action == "ee_delta"

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
        self._lines = None

    def _stop_over(self, lines: Lines) -> None:
        try:
            lines.write({"stop": True, "pid": os.getpid(), "id": 0})
            if lines.read() is None:
                raise RobotError("the arm closed the connection instead of stopping. Use its emergency stop")
        except OSError as error:
            raise RobotError(f"the arm did not confirm the stop: {error}. Use its emergency stop") from error
        finally:
            lines.close()

    def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            if self._lines is None:
                self._lines = Lines.connect(self._config.address, timeout_s=self._config.timeout_s)
            return self._exchange(self._lines, message, timeout_s=self._config.timeout_s)

    def _exchange(self, lines: Lines, message: dict[str, Any], *, timeout_s: float | None) -> dict[str, Any]:
        self._num_requests += 1
        try:
            lines.socket.settimeout(timeout_s)
            self._write(lines, {**message, "id": self._num_requests, "pid": os.getpid()})
            while (answer := lines.read()) is not None:
                if answer["id"] == self._num_requests:
                    return answer
        except OSError as error:
            self.close()
            raise RobotError(f"the arm at {self._config.address} does not answer: {error}") from error
        self.close()
        raise RobotError(f"the arm at {self._config.address} closed the connection")

    def _write(self, lines: Lines, message: dict[str, Any]) -> None:
        with self._write_lock:
            lines.write(message)


class SocketArmWithStop(SocketArm):
    """An emulated arm with a second port that only stops it."""

    def open_stop(self) -> StopPort:
        if self._config.stop_address is None:
            raise UsageError("SocketArmWithStop needs stop_address: HOST:PORT of the arm's stop port")
        return StopPort(Lines.connect(self._config.stop_address, timeout_s=_STOP_S))


class StopPort:
    """The second connection."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def stop(self) -> None:
        self._lines.write({"stop": True, "pid": os.getpid()})
        if self._lines.read() is None:
            raise RobotError("the arm has closed its stop port. Use its emergency stop")

    def close(self) -> None:
        self._lines.close()


def _spec(config: SocketArmConfig) -> RobotSpec:
    observation = {"gripper": ArraySpec(shape=(1,))}
    if config.camera:
        observation["front"] = ArraySpec(shape=_IMAGE, dtype="uint8")
    if config.action == "joint_target":
        names = tuple(f"joint{i + 1}" for i in range(config.joints))
        observation["joint_pos"] = ArraySpec(shape=(config.joints,), names=names)
        reach = (config.limit,) * config.joints
    else:
        names = ("dx", "dy", "dz", "drx", "dry", "drz")
        observation["ee_pose"] = ArraySpec(shape=(7,), names=("x", "y", "z", "qw", "qx", "qy", "qz"))
        reach = (_MAX_STEP_M,) * 3 + (_MAX_TURN_RAD,) * 3
    return RobotSpec(
        name="socket_arm",
        embodiment="socket_arm",
        observation=observation,
        action=ArraySpec(
            shape=(len(reach) + 1,),
            names=(*names, "gripper"),
            low=(*(-value for value in reach), 0.0),
            high=(*reach, 1.0),
        ),
        action_kind=config.action,
        control_hz=config.control_hz,
    )
