"""The emulated arm: a MuJoCo world, the controller that drives it now, and the time that passes.

In mode `impedance` the torques of the impedance law drive it. Modes `idle` and `joints` use the joint servos of the arm's
model, as the arm's own controller does: `idle` keeps the position after a stopped controller or an error.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.emulators.franka.grippers import make_gripper
from dovetail.emulators.franka.impedance import Impedance
from dovetail.emulators.franka.settings import FrankaEmulatorConfig
from dovetail.robots.drivers.franka.settings import COMPLIANCE
from dovetail.robots.sim.arm import ARMS
from dovetail.robots.sim.rotations import Vector, quat_to_matrix
from dovetail.robots.sim.world import EmptyScene, Scene, World

__all__ = ["CYCLE_NS", "EmulatedArm"]

CYCLE_NS = 1_000_000
_FORCE_NOISE_N, _TORQUE_NOISE_NM, _JOINT_NOISE_RAD, _SPEED_NOISE_RAD_S = 0.05, 0.01, 1e-6, 1e-4


class EmulatedArm:
    """All methods may be called from any thread."""

    def __init__(self, config: FrankaEmulatorConfig, scene: Scene | None) -> None:
        self._config = config
        self.lock = threading.RLock()
        self.world = world = World(arm=ARMS["panda"], scene=scene or EmptyScene(), timestep_s=CYCLE_NS * 1e-9)
        self.gripper = make_gripper(config.gripper, world, hil=config.server == "hil_serl")
        model = world.model
        self._servo = (
            model.actuator_gainprm[world.joint_ctrl].copy(),
            model.actuator_biasprm[world.joint_ctrl].copy(),
        )
        self._max_torque = np.array(world.arm.max_torque)
        self._leftover_ns = self._placed_ns = 0
        self._stale: dict[str, Any] | None = None
        self.has_error = False
        self._mode = "idle"
        if config.start == "reset":
            world.place_joints(config.reset_joints)
        self._impedance = Impedance(world)
        self.start_impedance()

    # ---- time

    @property
    def time_ns(self) -> int:
        return self.world.time_ns

    def advance_ns(self, duration_ns: int) -> None:
        with self.lock:
            num_cycles, self._leftover_ns = divmod(duration_ns + self._leftover_ns, CYCLE_NS)
            self.advance(int(num_cycles))

    def advance(self, num_cycles: int) -> None:
        with self.lock:
            world, gripper = self.world, self.gripper
            applied = world.data.qfrc_applied
            num = world.arm.num_joints
            for _ in range(num_cycles):
                if self._mode == "impedance":
                    torque = self._impedance.cycle()
                    np.minimum(np.maximum(torque, -self._max_torque), self._max_torque, out=applied[:num])
                if gripper is not None:
                    gripper.tick()
                world.advance(1)

    # ---- controllers

    @property
    def mode(self) -> str:
        return self._mode

    def start_impedance(self) -> None:
        """Without effect while the arm has an error."""
        with self.lock:
            if self.has_error:
                return
            world = self.world
            world.model.actuator_gainprm[world.joint_ctrl] = 0.0
            world.model.actuator_biasprm[world.joint_ctrl] = 0.0
            self._impedance.start()
            self._mode = "impedance"

    def hold(self, mode: str = "idle") -> None:
        """Let the arm's own controller keep the position."""
        with self.lock:
            world, data = self.world, self.world.data
            gains, biases = self._servo
            world.model.actuator_gainprm[world.joint_ctrl] = gains
            world.model.actuator_biasprm[world.joint_ctrl] = biases
            joints = world.joint_positions()
            data.ctrl[world.joint_ctrl] = joints
            data.act[world.joint_act] = joints
            data.qfrc_applied[:] = 0.0
            self._mode = mode

    def fail(self) -> None:
        """An error of the arm, such as a reflex: it stops, and ignores poses until the error is cleared."""
        with self.lock:
            if not self.has_error:
                self.has_error = True
                self.hold()

    def clear_error(self) -> None:
        """The impedance controller starts again where the arm is."""
        with self.lock:
            if self.has_error:
                self.has_error = False
                self.start_impedance()

    def set_joint_targets(self, joints: Vector) -> None:
        with self.lock:
            self.world.data.ctrl[self.world.joint_ctrl] = joints

    def set_pose(self, pose: Vector) -> None:
        """x y z qx qy qz qw. A pose that is not finite makes the controller fail."""
        with self.lock:
            if not np.isfinite(pose).all() or not np.linalg.norm(pose[3:]) > 1e-6:
                self.fail()
            elif self._mode == "impedance":
                self._impedance.set_pose(pose[:3], pose[[6, 3, 4, 5]])

    def set_parameters(self, values: Mapping[str, float]) -> None:
        """Unknown names are ignored and values clamped to their range, as dynamic_reconfigure does."""
        with self.lock:
            self._impedance.set_parameters(
                {
                    name: min(max(value, COMPLIANCE[name][0]), COMPLIANCE[name][1])
                    for name, value in values.items()
                    if name in COMPLIANCE
                }
            )

    @property
    def parameters(self) -> Mapping[str, float]:
        return self._impedance.parameters

    def set_load(self, mass_kg: float) -> None:
        with self.lock:
            self._impedance.load_kg = mass_kg

    # ---- state

    def state(self) -> dict[str, Any]:
        """`/getstate` without the gripper. Noise follows from the time, so that one moment has one state."""
        with self.lock:
            return dict(self._stale) if self._stale is not None else self._measure()

    def freeze_state(self) -> None:
        with self.lock:
            self._stale = self._measure()

    def thaw_state(self) -> None:
        with self.lock:
            self._stale = None

    def _measure(self) -> dict[str, Any]:
        world, law = self.world, self._impedance
        position, quat = law.measure_pose()
        rng = np.random.default_rng((self._config.noise_seed, world.time_ns - self._placed_ns))
        joints = world.joint_positions() + _JOINT_NOISE_RAD * rng.standard_normal(7)
        speeds = world.joint_velocities() + _SPEED_NOISE_RAD_S * rng.standard_normal(7)
        unturn = quat_to_matrix(quat).T
        wrench = law.external_wrench()
        w, x, y, z = quat.tolist()
        return {
            "pose": [*position.tolist(), x, y, z, w],
            "vel": (law.jacobian @ speeds).tolist(),
            "force": (unturn @ wrench[:3] + _FORCE_NOISE_N * rng.standard_normal(3)).tolist(),
            "torque": (unturn @ wrench[3:] + _TORQUE_NOISE_NM * rng.standard_normal(3)).tolist(),
            "q": joints.tolist(),
            "dq": speeds.tolist(),
            "jacobian": law.jacobian.tolist(),
        }

    # ---- the scene

    def scene_state(self) -> dict[str, Any]:
        with self.lock:
            data = self.world.data
            return {
                "time_ns": self.world.time_ns,
                "qpos": data.qpos.tolist(),
                "qvel": data.qvel.tolist(),
                "mode": self._mode,
                "has_error": self.has_error,
            }

    def place(self, state: Mapping[str, Any]) -> None:
        """Put arm and objects at the positions of a scene state. An error of the arm stays."""
        with self.lock:
            world, data = self.world, self.world.data
            arrays = {name: np.array(state[name], np.float64) for name in ("qpos", "qvel", "act", "ctrl")}
            fixtures = np.array(state["fixtures"], np.float64).reshape(-1, 7)
            for name, target in (("qpos", data.qpos), ("qvel", data.qvel), ("act", data.act), ("ctrl", data.ctrl)):
                if arrays[name].shape != target.shape or not np.isfinite(arrays[name]).all():
                    raise UsageError(
                        f"'{name}' should be {target.shape[0]} finite numbers: is the emulator's task the same?"
                    )
            if len(fixtures) != len(world.fixtures) or not np.isfinite(fixtures).all():
                raise UsageError(
                    f"'fixtures' should be {len(world.fixtures)} poses: is the emulator's task the same?"
                )
            data.qpos[:], data.qvel[:] = arrays["qpos"], arrays["qvel"]
            data.act[:], data.ctrl[:] = arrays["act"], arrays["ctrl"]
            world.model.body_pos[world.fixtures], world.model.body_quat[world.fixtures] = (
                fixtures[:, :3],
                fixtures[:, 3:],
            )
            data.qfrc_applied[:] = 0.0
            data.qacc_warmstart[:] = 0.0
            world.forward()
            self._leftover_ns, self._placed_ns = 0, world.time_ns
            if self.gripper is not None:
                self.gripper.placed()
            if self._mode == "impedance":
                self._impedance.start()
            else:
                self.hold(self._mode)

    def push_fingers(self, opening_m: float) -> None:
        """Move the fingers by other means than the server, which does not learn of it."""
        with self.lock:
            self.world.data.ctrl[self.world.gripper_ctrl] = 0.5 * opening_m
