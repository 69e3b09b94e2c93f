"""A leader arm as an operator: a person moves it by hand, and the robot's joints follow.

    operator: {type: leader, leader: {type: my_lab.arms:Gello, port: /dev/ttyUSB0}, key: KEY_B}

The leader is a plugin for leaders or any robot, which is only observed unless `feedback` is on. Its axes drive the axes of
the action with the same names; `joints` maps others, with a scale and an offset. A robot with Cartesian actions follows the
leader's end effector, which the leader measures or `kinematics` computes. A key or pedal is the dead-man switch, or a
squeeze of the leader's gripper starts the takeover.

The follower never jumps at a takeover. With `handover: match` it stands still until the leader is within the tolerance; with
`blend` it moves to the leader slowly. With `feedback`, a leader with motors follows the robot while the policy drives.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.abilities import Leader
from dovetail.core.contracts import Task
from dovetail.core.problem_report import report_line
from dovetail.core.specs import RobotSpec
from dovetail.core.types import HumanInput, Observation
from dovetail.human.device import Device, DeviceOperator, DeviceReader, Reading
from dovetail.human.drive_settings import KinematicsConfig
from dovetail.human.leader_mapping import JointMap, LeaderMapping
from dovetail.human.leader_pose import PosedLeader
from dovetail.human.leader_reader import LeaderReader
from dovetail.human.mailbox import Control, DriveCommand
from dovetail.human.pedal import PedalConfig, PedalDevice
from dovetail.human.selections import driven_parts

__all__ = ["LeaderConfig", "LeaderOperator", "SqueezeDevice"]

_SAY_S = 2.0
_SQUEEZED, _OPEN = 0.15, 0.4  # share of the gripper's range


class LeaderConfig(Config):
    """A leader arm."""

    BASIC: ClassVar[Collection[str]] = ("leader", "handover")

    leader: dict[str, Any]
    """The leader, as a section with `type`: a leader plugin, or any robot."""
    part: str | None = None
    """Arm to drive, with its gripper. Null: all parts that have an axis of the leader."""
    joints: dict[str, JointMap] = Field(default_factory=dict)
    """The leader's axis for an axis of the action, by the action's axis. An axis that is not listed has the same name."""
    kinematics: KinematicsConfig | None = None
    """Geometry of a leader with joints, to lead an end effector; its `part` is the arm that follows. Null: none."""
    scale: float = Field(default=1.0, gt=0.0, le=10.0)
    """How far an end effector moves when the leader's moves by 1. Rotations are not scaled."""
    switch: Literal["key", "squeeze"] = "key"
    """What starts a takeover: a key or pedal that is held, or a squeeze of the leader's gripper, once per episode."""
    key: str = "KEY_B"
    """Key or pedal that is held to drive, by name or number."""
    path: str | None = None
    """Device of the key, such as /dev/input/by-id/...-event-kbd. Null: the first one with this key."""
    stop_key: str | None = None
    """Key of the same device that is the emergency stop, by name or number. Null: none."""
    handover: Literal["match", "blend"] = "match"
    """Before the robot follows: match waits until the leader is near; blend moves the robot to the leader slowly."""
    tolerance_rad: float = Field(default=0.15, gt=0.0, le=3.2)
    """Largest difference between leader and robot with `match`, for each joint in rad; for a slide 0.05 m for each 0.15."""
    blend_speed: float = Field(default=0.2, gt=0.0, le=1.0)
    """Speed with which the remaining difference is blended out, relative to the robot's limits."""
    speed: float = Field(default=1.0, gt=0.0, le=1.0)
    """Largest speed of the robot, relative to its limits."""
    feedback: bool = False
    """Whether a leader with motors follows the robot while the policy drives. It moves by itself then."""


class SqueezeDevice:
    """The leader's gripper as a switch: a squeeze presses it, and it stays pressed until `rest`. It must be open before."""

    def __init__(self, reader: LeaderReader, mapping: LeaderMapping) -> None:
        self._reader, self._mapping = reader, mapping
        self._held = self._was_open = False
        self._num_presses = 0

    def open(self) -> None:
        self._held = self._was_open = False

    def rest(self) -> None:
        """A new episode begins."""
        self.open()

    def read(self) -> Reading | None:
        newest = self._reader.newest()
        if newest is not None and (opening := self._mapping.opening(newest[0])) is not None:
            self._was_open |= opening > _OPEN
            if self._was_open and opening < _SQUEEZED:
                self._held, self._was_open = True, False
                self._num_presses += 1
        return Reading(held=self._held, axes=np.zeros(0, np.float32), num_presses=self._num_presses)

    def close(self) -> None:
        pass


class LeaderOperator(DeviceOperator):
    """See the module. `leader` is not connected before the first episode."""

    Config: ClassVar[type[LeaderConfig]] = LeaderConfig
    name = "leader"

    def __init__(
        self,
        config: LeaderConfig,
        *,
        robot: RobotSpec,
        leader: Leader,
        task: Task | None = None,
        device: Device | DeviceReader | None = None,
    ) -> None:
        self._config = config
        if config.kinematics is not None:
            leader = PosedLeader(leader, config.kinematics)
        self._leader = LeaderReader(leader)
        mapping = LeaderMapping(
            robot,
            leader,
            parts=driven_parts(robot, config.part, name=self.name),
            joints=config.joints,
            waits=config.handover == "match",
            tolerance_rad=config.tolerance_rad,
            blend_speed=config.blend_speed,
            speed=config.speed,
            scale=config.scale,
        )
        self._leader_mapping = mapping
        self._squeeze = SqueezeDevice(self._leader, mapping) if config.switch == "squeeze" else None
        if self._squeeze is not None:
            mapping.check_gripper()
        switch = device or self._squeeze or self.make_device(config)
        assert switch is not None
        super().__init__(switch, robot=robot, mapping=mapping)
        self._num_leader_losses = 0
        self._said_s = 0.0

    @classmethod
    def make_device(cls, config: LeaderConfig) -> Device | None:
        """The key that is the switch. None: the leader itself is the switch, and has no STOP."""
        if config.switch == "squeeze":
            return None
        keys = PedalConfig(path=config.path, key=config.key, stop_key=config.stop_key)
        return PedalDevice(keys, kernel=cls.kernel(), operator=cls.name)

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._leader.open()
        if self._squeeze is not None:
            self._squeeze.rest()
        super().reset(rng=rng, robot_minutes=robot_minutes)

    def poll(self, observation: Observation) -> HumanInput:
        polled = super().poll(observation)
        if self._handover.control is Control.POLICY and self._config.feedback:
            self._leader.follow(self._leader_mapping.leader_positions(observation, self._leader.positions()))
        else:
            self._leader.release()
        self._say()
        return polled

    def check_device(self) -> None:
        super().check_device()
        try:
            self._leader.open()
        finally:
            self._leader.close()

    def close(self) -> None:
        super().close()
        self._leader.close()

    def _next_command(self) -> DriveCommand | None:
        command = super()._next_command()
        if command is None or not command.held:
            self._num_leader_losses = self._leader.num_losses
            return command
        newest = self._leader.newest()
        if newest is None or self._leader.num_losses != self._num_leader_losses:
            self._num_leader_losses = self._leader.num_losses
            return replace(command, axes=np.zeros(0, np.float32), is_valid=False)
        positions, time_ns = newest
        is_valid = command.is_valid and bool(np.isfinite(positions).all())
        return replace(command, axes=positions, time_ns=min(command.time_ns, time_ns), is_valid=is_valid)

    def _say(self) -> None:
        """Tell the person why the robot does not follow yet."""
        why, now_s = self._leader_mapping.waiting, time.monotonic()
        if why is not None and now_s - self._said_s > _SAY_S:
            self._said_s = now_s
            report_line(f"operator 'leader': move the leader to the robot: {why}")
