"""Settings that all operators with sticks, keys or a page share: speed, part and geometry of the arm."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dovetail.config.model import Config

__all__ = ["DriveConfig", "KinematicsConfig"]


class KinematicsConfig(Config):
    """The geometry of an arm with joint actions, for Cartesian jog by inverse kinematics."""

    file: str
    """MJCF or URDF file of the arm. Meshes are not read."""
    end_effector: str
    """Site or body (in a URDF: link) that is moved."""
    part: str | None = None
    """Action part of the arm. Null: the only part with joints."""
    joints: tuple[str, ...] = ()
    """Joints in the file, in the order of the part's axes. Empty: they have the names of the axes."""
    base: str | None = None
    """Body whose frame is the base frame. Null: the world of the file."""
    angle: Literal["degree", "radian"] | None = None
    """Unit of angles in an MJCF file without `<compiler angle>`. Null: MuJoCo's default, degree."""
    max_speed_m_s: float = Field(default=0.2, gt=0.0, le=2.0)
    """Translation at full deflection, in m/s."""
    max_turn_rad_s: float = Field(default=0.8, gt=0.0, le=6.0)
    """Rotation at full deflection, in rad/s."""


class DriveConfig(Config):
    """What an operator drives."""

    speed: float = Field(default=1.0, gt=0.0, le=1.0)
    """Speed at full deflection, relative to the robot's limits."""
    part: str | None = None
    """Arm or base to drive, with its gripper; the policy keeps the others. Null: the whole robot."""
    kinematics: KinematicsConfig | tuple[KinematicsConfig, ...] = ()
    """Geometry of arms with joint actions, for Cartesian jog: one mapping, or a list with one for each arm."""

    @property
    def known_arms(self) -> tuple[KinematicsConfig, ...]:
        """The geometry of each arm that is known."""
        return (self.kinematics,) if isinstance(self.kinematics, KinematicsConfig) else self.kinematics
