"""The endpoints of the server: those of the original, and the emulator's own under `/emulator/`."""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.emulators.franka.arm import EmulatedArm
from dovetail.emulators.franka.grippers import EmulatedGripper
from dovetail.emulators.franka.joint_reset import reset_joints
from dovetail.emulators.franka.misbehavior import Misbehavior
from dovetail.emulators.franka.settings import FrankaEmulatorConfig
from dovetail.robots.sim.rotations import quat_to_matrix

__all__ = ["Endpoints"]

Answer = str | Mapping[str, Any]


class Endpoints:
    """`call` returns status and body. An exception in an endpoint is a 500, as in the original."""

    def __init__(
        self, config: FrankaEmulatorConfig, arm: EmulatedArm, rules: Misbehavior, wait: Callable[[float], None]
    ) -> None:
        self._config, self._arm, self._rules, self._wait = config, arm, rules, wait
        self.token = ""
        self.num_calls: dict[str, int] = {}
        self._count_lock = threading.Lock()
        self._public: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
            "/getstate": lambda body: {**arm.state(), "gripper_pos": self._gripper.position()},
            "/getpos": lambda body: {"pose": arm.state()["pose"]},
            "/getpos_euler": lambda body: {"pose": _euler(arm.state()["pose"])},
            **{f"/get{key}": partial(self._one, key) for key in ("vel", "force", "torque", "q", "dq", "jacobian")},
            "/get_gripper": lambda body: {"gripper": self._gripper.position()},
            "/pose": self._pose,
            "/clearerr": lambda body: _said(arm.clear_error, "Clear"),
            "/jointreset": self._joint_reset,
            "/startimp": lambda body: _said(arm.start_impedance, "Started impedance"),
            "/stopimp": lambda body: _said(arm.hold, "Stopped impedance"),
            "/update_param": lambda body: _said(
                lambda: arm.set_parameters({name: float(value) for name, value in body.items()}),
                "Updated compliance parameters",
            ),
            "/open_gripper": lambda body: self._grip(lambda one: one.open(), "Opened"),
            "/close_gripper": lambda body: self._grip(lambda one: one.close(), "Closed"),
            "/move_gripper": self._move_gripper,
            "/activate_gripper": lambda body: self._grip(lambda one: one.activate(), "Activated"),
            "/reset_gripper": lambda body: self._grip(lambda one: one.reset(), "Reset"),
        }
        if config.server == "hil_serl":
            self._public["/set_load"] = self._set_load
            self._public["/close_gripper_slow"] = lambda body: self._grip(lambda one: one.close_slowly(), "Closed")
        self._private: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
            "/emulator/state": lambda body: {
                **arm.scene_state(),
                "lockstep": config.lockstep,
                "parameters": dict(arm.parameters),
                "num_calls": dict(self.num_calls),
            },
            "/emulator/reset": lambda body: _done(lambda: arm.place(body)),
            "/emulator/advance": self._advance,
            "/emulator/misbehave": self.misbehave,
        }

    def call(self, path: str, data: bytes, token: str | None) -> tuple[int, bytes]:
        is_private = path.startswith("/emulator/")
        found = (self._private if is_private else self._public).get(path)
        if found is None:
            return 404, b"Not Found"
        with self._count_lock:
            self.num_calls[path] = self.num_calls.get(path, 0) + 1
        if is_private and not hmac.compare_digest((token or "").encode(), self.token.encode()):
            return 403, b"Wrong token"
        try:
            body = json.loads(data) if data else {}
            answer = found(body)
        except UsageError as error:
            return 400, str(error).encode()
        except Exception:  # the border to a client: the original answers 500 to everything
            return 500, b"Internal Server Error"
        return 200, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()

    @property
    def _gripper(self) -> EmulatedGripper:
        if self._arm.gripper is None:
            raise RuntimeError("no gripper")
        return self._arm.gripper

    def _one(self, key: str, body: Mapping[str, Any]) -> Answer:
        return {key: self._arm.state()[key]}

    def _pose(self, body: Mapping[str, Any]) -> Answer:
        pose = np.array(body["arr"], np.float64)
        if pose.shape != (7,):
            raise ValueError("arr has another size")
        self._arm.set_pose(pose)
        return "Moved"

    def _joint_reset(self, body: Mapping[str, Any]) -> Answer:
        reset_joints(self._arm, np.array(self._config.reset_joints), self._wait)
        return "Reset Joint"

    def _set_load(self, body: Mapping[str, Any]) -> Answer:
        if len(body["F_x_center_load"]) != 3 or len(body["load_inertia"]) != 9:
            raise ValueError("wrong sizes")
        self._arm.set_load(float(body["mass"]))
        return "Set Load"

    def _grip(self, action: Callable[[EmulatedGripper], None], said: str) -> Answer:
        with self._arm.lock:
            action(self._gripper)
        return said

    def _move_gripper(self, body: Mapping[str, Any]) -> Answer:
        with self._arm.lock:
            self._gripper.move(float(body["gripper_pos"]))
        return "Moved Gripper"

    def _advance(self, body: Mapping[str, Any]) -> Answer:
        duration_ns = int(body["duration_ns"])
        if not self._config.lockstep:
            raise UsageError("the emulator's time passes by itself: start it with lockstep=true")
        if not 0 <= duration_ns <= 60_000_000_000:
            raise UsageError(f"duration_ns is {duration_ns}, expected 0 to 60 s")
        self._arm.advance_ns(duration_ns)
        return {"time_ns": self._arm.time_ns}

    def misbehave(self, body: Mapping[str, Any]) -> Answer:
        kind = str(body["kind"])
        special: dict[str, Callable[[], None]] = {
            "freeze": self._arm.freeze_state,
            "thaw": self._arm.thaw_state,
            "arm_error": self._arm.fail,
            "open_fingers": lambda: self._arm.push_fingers(0.08),
            "clear": self._rules.clear,
        }
        if kind in special:
            return _done(special[kind])
        self._rules.add(
            kind,
            path=str(body.get("path", "*")),
            count=int(body.get("count", 1)),
            seconds=float(body.get("seconds", 0.5)),
        )
        return {}


def _said(action: Callable[[], None], text: str) -> Answer:
    action()
    return text


def _done(action: Callable[[], None]) -> Answer:
    action()
    return {}


def _euler(pose: list[float]) -> list[float]:
    """x y z roll pitch yaw: rotations about the fixed axes x, then y, then z."""
    x, y, z, qx, qy, qz, qw = pose
    matrix = quat_to_matrix((qw, qx, qy, qz))
    pitch = float(np.arcsin(np.clip(-matrix[2, 0], -1.0, 1.0)))
    roll = float(np.arctan2(matrix[2, 1], matrix[2, 2]))
    yaw = float(np.arctan2(matrix[1, 0], matrix[0, 0]))
    return [x, y, z, roll, pitch, yaw]
