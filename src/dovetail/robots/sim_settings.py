"""Settings of the simulated arm. This module loads no simulator, so that a wrong setting is refused at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from dovetail.config.model import Config

__all__ = ["SimRobotConfig"]


class SimRobotConfig(Config):
    """A simulated arm: its actions, cameras and limits."""

    BASIC: ClassVar[Collection[str]] = ("arm", "control_hz", "images", "image_size")
    RENAMED: ClassVar[Mapping[str, str]] = {"leash_m": "max_lead_m", "leash_rad": "max_lead_rad"}
    REMOVED: ClassVar[Mapping[str, str]] = {
        "max_joint_step_rad": "it is 0.2 rad now",
        "sticky_gripper": "the gripper always opens or closes fully",
    }

    arm: Literal["panda", "x5"] = "panda"
    """Arm model."""
    action: Literal["ee_delta", "joint"] = "ee_delta"
    """End effector motion per tick, or joint targets."""
    control_hz: float = Field(default=10.0, gt=0.0, le=500.0)
    """Control ticks per second."""
    timestep_s: float = Field(default=0.002, gt=0.0, le=0.01)
    """Physics time step in seconds."""
    images: tuple[str, ...] = ()
    """Cameras to observe, such as `wrist` and `front`."""
    image_size: tuple[int, int] = (128, 128)
    """Width and height of the images in pixels."""
    realtime: bool = False
    """Run at the speed of the real clock."""
    viewer: bool = False
    """Show MuJoCo's viewer window."""
    max_step_m: float = Field(default=0.02, gt=0.0)
    """Largest translation of one action, per axis in meters."""
    max_turn_rad: float = Field(default=0.1, gt=0.0)
    """Largest rotation of one action, per axis in rad."""
    max_lead_m: float = Field(default=0.02, gt=0.0)
    """Largest distance of the servo reference from the measured pose, per axis in meters. Bounds the contact force."""
    max_lead_rad: float = Field(default=0.15, gt=0.0)
    """Largest rotation of the servo reference from the measured pose, per axis in rad."""
