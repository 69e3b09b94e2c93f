"""Settings of the safety filter. The filter itself is `dovetail.robots.safety`; it cannot be replaced."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from dovetail.config.model import Config

__all__ = ["SafetyConfig", "Workspace"]


class Workspace(Config):
    """A box in the robot's base frame, in meters."""

    low: tuple[float, float, float]
    """Smallest x, y and z of the end effector, in meters."""
    high: tuple[float, float, float]
    """Largest x, y and z of the end effector, in meters."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not all(low < high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError(f"workspace is empty: low {self.low} is not below high {self.high}")
        return self


class SafetyConfig(Config):
    """Limits that every action passes before the robot receives it."""

    BASIC: ClassVar[Collection[str]] = ("workspace", "max_velocity")

    type: Literal["filter"] = "filter"
    """The safety filter cannot be replaced. Configs of 0.6 name it here."""
    workspace: Workspace | None = None
    """Box for the end effector; needs `ee_delta` or `ee_target` actions. Null: no box."""
    max_step: float | tuple[float, ...] | None = None
    """Largest motion in one tick, from the measured state: one number, or one per axis. Not for grippers."""
    max_velocity: float | tuple[float, ...] | None = None
    """Largest speed in m/s and rad/s: one number, or one per axis. Joint targets without any limit get 1.75 rad/s."""
    max_bad_actions: int = Field(default=5, ge=1)
    """Consecutive actions with NaN or infinity before the filter latches a fault. Until then the robot holds."""
    stale_after_s: float | None = Field(default=None, gt=0)
    """The robot holds while its last observation is older than this. Null: three control ticks."""
    stop_after_s: float | None = Field(default=None, gt=0)
    """The robot stops with a fault when its last observation is older than this. Null: ten control ticks."""
    camera_stale_after_s: float = Field(default=0.5, gt=0)
    """The robot holds while a camera's newest frame is older than this, and at once without a possible capture time."""
    camera_stop_after_s: float = Field(default=2.0, gt=0)
    """The robot stops with a fault when a camera's newest frame is older than this."""
    camera_repeat_after_s: float | None = Field(default=None, gt=0)
    """The robot holds while a camera repeats one picture for longer than this. Null: 1 s; never if it is simulated."""
    check_jumps: bool | None = None
    """Whether a measured position that the robot cannot have reached is invalid. Null: yes; no if it is simulated."""
    jump_speed_margin: float = Field(default=0.5, ge=0)
    """A measured motion may exceed the speed limit by this fraction, in one tick more than has passed."""
    jump_allowance: float = Field(default=0.05, ge=0)
    """A measured motion may exceed the limit and its margin by this distance, in m or rad."""
    jump_stop_after_s: float = Field(default=0.1, ge=0)
    """The robot holds while a measurement is not possible, and stops with a fault after this time."""
    delay_s: float | None = Field(default=None, ge=0)
    """Longest time until a command shows in the observations. Null: three control ticks. Not for arms with a reference."""
    hold_action: tuple[float, ...] | None = None
    """Action that holds still, for an unknown kind of action. Null: a real robot with such actions is refused."""
    ee_pose_key: str = "ee_pose"
    """Observation with the measured pose [x, y, z, qw, qx, qy, qz] of each arm."""
    joint_key: str = "joint_pos"
    """Observation with the measured joint positions."""
    gripper_key: str = "gripper"
    """Observation with the measured gripper positions."""
    reference_key: str = "ee_error"
    """Observation with the servo target minus the measured pose, in the reset frame. Both stay in the workspace."""
    stop_confirm_s: float = Field(default=0.05, gt=0)
    """Seconds within which the control loop must have stopped the arm after a STOP. Then the guard stops it."""
    guard_speed_margin: float = Field(default=0.5, ge=0)
    """The guard stops the arm when a measured speed exceeds its limit by more than this fraction."""
    guard_position_margin: float = Field(default=0.05, ge=0)
    """The guard stops the arm when a measured position is outside its limits by more than this, in m or rad."""
    controller_watchdog: bool = False
    """Whether the arm's own controller stops it when commands cease. Only then may a real arm use `one_process`."""
