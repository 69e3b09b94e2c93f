"""Franka arms behind the HTTP server of SERL and HIL-SERL: one arm, or a left and a right one.

    robot = FrankaRobot(FrankaConfig(address="172.16.0.1:5000", gripper="hil_serl_franka"))
    robot.observe()                    # one /getstate per arm
    executed = robot.send(action)      # one /pose per arm, and a gripper command if it changed

An action moves the equilibrium pose of the impedance controller, in the base frame. `ee_error` is the equilibrium minus the
measured pose, as of the simulated robot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from dovetail.core.contracts import GuardedRobot
from dovetail.core.errors import RobotError
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.drivers.franka.arm import FrankaArm
from dovetail.robots.drivers.franka.settings import FrankaConfig
from dovetail.robots.drivers.franka.state import ArmState
from dovetail.robots.drivers.franka.stopping import FrankaStop

__all__ = ["FrankaRobot", "franka_spec"]

_LIFT_S, _MIN_LIFT_TICKS = 2.0, 4
_LIFTED = 0.2  # of the lift: the arm obeys
_AXES = ("dx", "dy", "dz", "drx", "dry", "drz")
_OBSERVED: dict[str, tuple[str, ...]] = {
    "joint_pos": tuple(f"joint{i + 1}" for i in range(7)),
    "joint_vel": tuple(f"joint{i + 1}" for i in range(7)),
    "ee_pose": ("x", "y", "z", "qw", "qx", "qy", "qz"),
    "ee_twist": ("vx", "vy", "vz", "vrx", "vry", "vrz"),
    "ee_error": ("ex", "ey", "ez", "erx", "ery", "erz"),
    "force": ("fx", "fy", "fz"),
    "torque": ("tx", "ty", "tz"),
    "gripper": ("opening", "command"),
}


class FrankaRobot:
    """See the Robot contract. The first call connects."""

    Config: ClassVar[type[FrankaConfig]] = FrankaConfig

    def __init__(self, config: FrankaConfig, *, task: Any = None) -> None:
        self._config = config
        self._addresses = [one for one in (config.address, config.right_address) if one is not None]
        self._arms = [FrankaArm(config, address, now_ns=self._now_ns) for address in self._addresses]
        self._stopper = FrankaStop(self._addresses)
        self._spec = franka_spec(config)
        self._low, self._high = self._spec.action.bounds
        self._is_held = self._is_resetting = False
        self._num_resets = 0

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def observe(self) -> Observation:
        states = [arm.read() for arm in self._arms]
        return self._observation(states)

    def send(self, action: Array) -> Array:
        """Move the equilibrium. The executed action is the action within its limits, also if the lead limits the motion."""
        executed = np.asarray(np.clip(action, self._low, self._high), np.float32)
        if executed.shape != self._spec.action.shape or not np.isfinite(executed).all():
            raise RobotError(
                f"the action is {executed.tolist()}, expected {self._spec.action.shape[0]} finite numbers"
            )
        self._is_held = False
        size = len(executed) // len(self._arms)
        for number, arm in enumerate(self._arms):
            own = executed[number * size : (number + 1) * size].astype(np.float64)
            arm.command(own[:6], float(own[6]) if size > 6 else None)
            if size > 6 and arm.gripper is not None and arm.gripper.command is not None:
                executed[number * size + 6] = arm.gripper.command
        return executed

    def stop(self) -> None:
        """Hold the arms where they are, over a connection of its own (see `stopping`)."""
        if self._is_resetting:
            raise RobotError("a joint reset cannot be stopped over HTTP. Use the arm's emergency stop")
        was_held, self._is_held = self._is_held, True
        for arm in self._arms:
            arm.forget()
        try:
            self._stopper.stop(again=was_held)
        except RobotError:
            self._is_held = False
            raise

    def open_stop(self) -> FrankaStop:
        stopper = FrankaStop(self._addresses)
        stopper.open()
        return stopper

    def acknowledged(self) -> None:
        """A person has confirmed the fault: clear the arms' errors, and start a controller that was switched off."""
        for number, arm in enumerate(self._arms):
            arm.clear_errors(is_off=self._stopper.controller_is_off(number))
            self._stopper.controller_was_started(number)

    def prepare_reset(self, robot: GuardedRobot, *, tick: Callable[[], None]) -> None:
        """Before each n-th episode, let the server drive to its reset joints, if that is configured."""
        every = self._config.joint_reset_every
        if every and self._num_resets % every == 0:
            self._reset_joints(robot, tick)
        self._num_resets += 1

    def _reset_joints(self, robot: GuardedRobot, tick: Callable[[], None]) -> None:
        """Drive all arms to the reset joints of their servers, one after another. `stop()` cannot interrupt it.

        The server clears errors on the way. So each arm must show first that it has none.
        """
        for number, arm in enumerate(self._arms):
            self._check_obeys(number, robot, tick)
            self._is_resetting = True
            try:
                if self._is_held:  # a stop came first
                    raise RobotError("the arm was stopped before its joint reset")
                arm.reset_joints()
            finally:
                self._is_resetting = False
            robot.reset()

    def _check_obeys(self, number: int, robot: GuardedRobot, tick: Callable[[], None]) -> None:
        """Lift an arm a little, through the filter. Raises RobotError if it does not move: it may have an error, which the
        server does not report, and which its joint reset would clear."""
        arm, up = self._arms[number], number * self._spec.action.shape[0] // len(self._arms) + 2
        robot.observe()
        start_m, pulled_m, needed_m = arm.height_m, 0.0, _LIFTED * arm.lift_m
        for _ in range(max(_MIN_LIFT_TICKS, round(_LIFT_S * self._spec.control_hz))):
            action = robot.holding_action()
            action[up] = max(arm.lift_m - pulled_m, 0.0)
            pulled_m += float(robot.send(action)[up])
            tick()
            robot.observe()
            if arm.height_m - start_m > needed_m:
                robot.hold()  # refused after a stop, like every command
                return
        raise arm.does_not_follow(pulled_m=pulled_m, needed_m=needed_m)

    def close(self) -> None:
        for arm in self._arms:
            arm.close()
        self._stopper.close()

    def _now_ns(self) -> int:
        return time.monotonic_ns()

    def _observation(self, states: Sequence[ArmState]) -> Observation:
        columns: dict[str, list[Array]] = {key: [] for key in self._spec.observation if key in _OBSERVED}
        for arm, state in zip(self._arms, states, strict=True):
            values = {
                "joint_pos": state.joints,
                "joint_vel": state.joint_velocities,
                "ee_pose": np.concatenate((state.position, state.quat)),
                "ee_twist": state.twist,
                "ee_error": arm.error(),
                "force": state.force,
                "torque": state.torque,
            }
            if arm.gripper is not None:
                values["gripper"] = np.array((arm.gripper.opening, arm.gripper.command or 0.0))
            for key, column in columns.items():
                column.append(values[key])
        return Observation(
            time_ns=min(state.time_ns for state in states),
            values={key: np.concatenate(column).astype(np.float32) for key, column in columns.items()},
        )


def franka_spec(config: FrankaConfig) -> RobotSpec:
    """Known from the settings alone. With two arms, all vectors are those of the left arm, then of the right one."""
    sides = ("",) if config.right_address is None else ("left_", "right_")
    has_axis = config.gripper != "none" and config.gripper_axis
    observed = {key: names for key, names in _OBSERVED.items() if key != "gripper" or config.gripper != "none"}
    parts: list[ActionPart] = []
    for number, side in enumerate(sides):
        parts.append(_arm_part(config, side, number))
        if has_axis:
            parts.append(_gripper_part(config, side, number))
    return RobotSpec(
        name="franka",
        embodiment="franka_panda" if len(sides) == 1 else "franka_panda_pair",
        observation={
            key: ArraySpec(
                shape=(len(names) * len(sides),), names=tuple(f"{side}{name}" for side in sides for name in names)
            )
            for key, names in observed.items()
        },
        parts=tuple(parts),
        control_hz=config.control_hz,
    )


def _arm_part(config: FrankaConfig, side: str, number: int) -> ActionPart:
    largest = (config.max_step_m,) * 3 + (config.max_turn_rad,) * 3
    # The filter keeps the equilibrium within one tick at this speed of the measured pose: that is the lead.
    lead = (max(config.max_lead_m, config.max_step_m),) * 3 + (max(config.max_lead_rad, config.max_turn_rad),) * 3
    return ActionPart(
        name=f"{side}arm",
        kind="ee_delta",
        unit="m+rad",
        names=tuple(f"{side}{axis}" for axis in _AXES),
        low=tuple(-value for value in largest),
        high=largest,
        max_speed=tuple(value * config.control_hz for value in lead),
        hold="zero",
        frame="base",
        measured=f"ee_pose[{7 * number}:{7 * number + 7}]",
    )


def _gripper_part(config: FrankaConfig, side: str, number: int) -> ActionPart:
    return ActionPart(
        name=f"{side}gripper",
        kind="gripper",
        unit="1",
        names=(f"{side}gripper",),
        low=(0.0,),
        high=(1.0,),
        max_speed=(config.control_hz,),  # it opens or closes at once
        hold="last",
        measured=f"gripper[{2 * number + 1}:{2 * number + 2}]",  # the command: an object may keep the fingers apart
    )
