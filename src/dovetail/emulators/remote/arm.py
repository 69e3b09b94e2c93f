"""The emulated arm: a robot class as it is written for the server on a robot's computer, which misbehaves on request."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from dovetail.emulators.remote.bodies import Body

__all__ = ["ARM_FAULTS", "EmulatedArm"]

ARM_FAULTS = (
    "nan",  # a joint is not a number
    "missing",  # an observation has no joints
    "wrong_shape",
    "future",  # a time stamp ahead of the clock
    "frozen",  # values and time stamps do not change any more
    "error",  # observe() raises
    "hang_observe",
    "hang_send",
    "send_error",
    "wrong_executed",
)
_HANG_POLL_S = 0.005


class EmulatedArm:
    """`fault` names one of ARM_FAULTS while the arm misbehaves. `commands` records what reached it."""

    def __init__(self, body: Body, *, control_hz: float, name: str = "emulated_arm") -> None:
        self._body, self._control_hz, self._name = body, control_hz, name
        self.fault = ""
        self.commands: list[tuple[int, Any]] = []  # monotonic time in ns, action
        self.stops_ns: list[int] = []
        self._frozen: dict[str, Any] | None = None
        self._lock = threading.Lock()

    @property
    def spec(self) -> dict[str, Any]:
        body, joints = self._body, len(self._body.low) - 1
        _, pictures = body.read()
        observation: dict[str, Any] = {"joint_pos": {"shape": [joints]}, "gripper": {"shape": [1]}}
        for key, picture in pictures.items():
            observation[key] = {"shape": list(picture.shape), "dtype": "uint8"}
        limits = {"low": body.low[:-1], "high": body.high[:-1], "max_speed": body.max_speed[:-1]}
        arm = {"name": "arm", "kind": "joint_target", "unit": "rad", "measured": "joint_pos", **limits}
        gripper = {"name": "gripper", "kind": "gripper", "unit": "1", "low": 0.0, "high": 1.0, "max_speed": 1.5}
        return {
            "name": self._name,
            "control_hz": self._control_hz,
            "observation": observation,
            "action": [arm, {**gripper, "measured": "gripper"}],
        }

    def observe(self) -> dict[str, Any]:
        self._hang("hang_observe")
        if self.fault == "error":
            raise OSError("the arm's bus does not answer")
        time_ns = time.monotonic_ns()
        position, pictures = self._body.read()
        values: dict[str, Any] = {"joint_pos": position[:-1], "gripper": position[-1:], **pictures}
        values["time_ns"] = time_ns
        values["captured_ns"] = dict.fromkeys(pictures, time_ns)
        return self._spoiled(values)

    def send(self, action: Any) -> Any:
        with self._lock:
            self.commands.append((time.monotonic_ns(), action))
        self._hang("hang_send")
        if self.fault == "send_error":
            raise OSError("the arm's bus does not answer")
        self._body.command(action.astype(np.float64))
        return action[:1] if self.fault == "wrong_executed" else action

    def stop(self) -> None:
        self._body.hold()
        self.stops_ns.append(time.monotonic_ns())

    def close(self) -> None:
        self.fault = ""
        self._body.close()

    def position(self) -> Any:
        """What the body does, whatever the arm reports."""
        return self._body.read()[0]

    def _hang(self, name: str) -> None:
        while self.fault == name:
            time.sleep(_HANG_POLL_S)

    def _spoiled(self, values: dict[str, Any]) -> dict[str, Any]:
        if self.fault == "nan":
            values["joint_pos"][2] = np.nan
        elif self.fault == "missing":
            del values["joint_pos"]
        elif self.fault == "wrong_shape":
            values["joint_pos"] = values["joint_pos"][:-1]
        elif self.fault == "future":
            values["time_ns"] += 10_000_000_000
        elif self.fault == "frozen":
            self._frozen = self._frozen or values
            return dict(self._frozen)
        self._frozen = None
        return values
