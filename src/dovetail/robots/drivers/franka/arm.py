"""One arm: its server, its equilibrium pose and its gripper."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dovetail.core.errors import RobotError
from dovetail.robots.drivers.franka.connection import Connection
from dovetail.robots.drivers.franka.following import FollowCheck
from dovetail.robots.drivers.franka.grippers import Gripper
from dovetail.robots.drivers.franka.poses import Vector, limited_lead, rotvec_between, turned
from dovetail.robots.drivers.franka.settings import FrankaConfig
from dovetail.robots.drivers.franka.state import ArmState, StateReader

__all__ = ["FrankaArm"]

_START_S = 20.0  # `/startimp` launches a process on the server


class FrankaArm:
    """Deltas add up to an equilibrium pose, which stays near the measured one. The first call connects."""

    def __init__(
        self,
        config: FrankaConfig,
        address: str,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`now_ns` is that of the clock of observations."""
        self._config, self._now_ns = config, now_ns
        self.connection = Connection(address, timeout_s=config.timeout_s)
        self.where = f"the Franka server at {address}"
        self._reader = StateReader(self.connection, has_gripper=config.gripper != "none", now_ns=now_ns)
        self.gripper = Gripper(config.gripper) if config.gripper != "none" else None
        self._following = FollowCheck(config)
        self._state: ArmState | None = None
        self._equilibrium: tuple[Vector, Vector] | None = None  # position, quaternion
        self._is_prepared = False

    @property
    def equilibrium(self) -> tuple[Vector, Vector] | None:
        """Position and quaternion that the controller pulls toward. None: where the arm is."""
        return self._equilibrium

    @property
    def height_m(self) -> float:
        """As measured last."""
        return float(self._state.position[2]) if self._state is not None else 0.0

    @property
    def lift_m(self) -> float:
        """How far to pull the arm up before a joint reset: further would not pull harder."""
        return self._following.clip_m

    def read(self) -> ArmState:
        self._state = state = self._reader.read()
        if self.gripper is not None:
            assert state.gripper_pos is not None
            self.gripper.measure(state.gripper_pos, where=self.where)
        self._following.check(state, self.error(), where=self.where)
        return state

    def error(self) -> Vector:
        """Equilibrium minus measured pose, [6] in m and rad, base frame."""
        if self._state is None or self._equilibrium is None:
            return np.zeros(6)
        position, quat = self._equilibrium
        return np.concatenate((position - self._state.position, rotvec_between(self._state.quat, quat)))

    def command(self, delta: Vector, gripper: float | None) -> None:
        """Move the equilibrium by a delta [6], and the gripper if it has an axis."""
        state, config = self._state, self._config
        if state is None:
            raise RobotError(f"{self.where} has not been read yet. Call observe() first")
        if not self._is_prepared:
            self._prepare()
        position, quat = self._equilibrium or (state.position, state.quat)
        self._equilibrium = position, quat = limited_lead(
            position + delta[:3],
            turned(quat, delta[3:]),
            here=state.position,
            here_quat=state.quat,
            max_m=config.max_lead_m,
            max_rad=config.max_lead_rad,
        )
        self._pull(position, quat)
        if self.gripper is not None and gripper is not None:
            path = self.gripper.next_path(gripper, self._now_ns())
            if path is not None:
                self.connection.post(path)

    def forget(self) -> None:
        """The arm was stopped or moved by other means: the equilibrium starts where the arm is measured next."""
        self._equilibrium = None
        self._following.restart()

    def clear_errors(self, *, is_off: bool) -> None:
        """Only after a person has acknowledged the fault. `is_off`: the impedance controller was switched off."""
        self.connection.post_once("/clearerr", timeout_s=_START_S)
        if is_off or self._following.has_failed:
            if not is_off:
                self.connection.post_once(
                    "/stopimp", timeout_s=_START_S
                )  # the server may start it only after a stop
            self.connection.post_once("/startimp", timeout_s=_START_S)
        self.forget()
        self._following.has_failed = False
        if self.gripper is not None:
            self.gripper.restart()

    def does_not_follow(self, *, pulled_m: float, needed_m: float) -> RobotError:
        """The error of an arm that was pulled up before a joint reset and did not rise as far as needed."""
        if pulled_m < needed_m:
            return RobotError(
                f"the safety filter lets the arm of {self.where} rise by {pulled_m:.2g} m only, so it cannot show before a "
                f"joint reset that it has no error. Move it {self.lift_m:g} m below the top of safety.workspace, or raise "
                "robot.max_lead_m"
            )
        self._following.has_failed = True
        return RobotError(
            f"the arm of {self.where} does not follow: pulled up by {pulled_m:.2g} m before a joint reset, it did not move. "
            "Look for an error at the arm and at the server. Acknowledging clears it and restarts the controller"
        )

    def reset_joints(self) -> None:
        """Let the server drive to its reset joints. Takes 20 to 41 s, with a stale state meanwhile."""
        self.forget()
        before = self._state
        self.connection.post_once("/jointreset", timeout_s=self._config.joint_reset_timeout_s)
        until_s = time.monotonic() + 5.0
        while True:  # the state from before the reset is not a measurement of now
            state = self._reader.read()
            if before is None or not state.same_values(before):
                self._state = state
                return
            if time.monotonic() > until_s:
                raise RobotError(f"{self.where} still sends the state from before the joint reset. Restart it")
            time.sleep(0.02)

    def close(self) -> None:
        self.connection.close()

    def _pull(self, position: Vector, quat: Vector) -> None:
        w, x, y, z = quat.tolist()
        self.connection.post("/pose", {"arr": [*position.tolist(), x, y, z, w]})

    def _prepare(self) -> None:
        """Before the first motion: the settings of the controller."""
        config = self._config
        if config.compliance:
            self.connection.post("/update_param", config.compliance, timeout_s=2.0)
        if config.load is not None:
            load = config.load
            self.connection.post(
                "/set_load",
                {
                    "mass": load.mass_kg,
                    "F_x_center_load": list(load.center_m),
                    "load_inertia": list(load.inertia),
                },
                timeout_s=2.0,
            )
        self._is_prepared = True
