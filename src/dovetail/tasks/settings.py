"""Settings of the simulated tasks. This module loads no simulator, so that a wrong setting is refused at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from dovetail.config.model import Config

__all__ = [
    "CapTighteningConfig",
    "InsertionConfig",
    "PickPlaceConfig",
    "PushByPromptConfig",
    "PushCubeConfig",
    "SimTaskConfig",
    "TableCleanupConfig",
]


class SimTaskConfig(Config):
    """Settings of all simulated tasks."""

    RENAMED: ClassVar[Mapping[str, str]] = {"tremor_s": "noise_correlation_s"}
    BASIC: ClassVar[Collection[str]] = ("time_limit_s", "reward")

    reward: Literal["sparse", "dense"] = "sparse"
    """sparse: 1 at success. dense: the progress of each step, plus 1 at success."""
    time_limit_s: float = Field(default=10.0, gt=0.0)
    """Seconds after which an episode is a timeout."""
    hold_s: float = Field(default=0.2, ge=0.0)
    """Seconds for which the success predicate must stay true."""
    noise_correlation_s: float = Field(default=0.0, ge=0.0)
    """Correlation time of the expert's noise in seconds; 0: independent noise in each step."""


class PushCubeConfig(SimTaskConfig):
    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("cube_region_m", "mark_region_m", "start_m", "start_rad"), "it is a constant of the task now"
    )

    time_limit_s: float = Field(8.0, gt=0.0)
    """Seconds after which an episode is a timeout."""
    push_m: tuple[float, float] = (0.07, 0.14)
    """Shortest and longest distance from the cube's start to the mark."""
    tolerance_m: float = Field(0.015, gt=0.0)
    """Largest distance between the centers of cube and mark, in meters."""


class PushByPromptConfig(PushCubeConfig):
    cubes: tuple[Literal["red", "blue"], ...] = Field(("red", "blue"), min_length=1)
    """Cubes that the prompt may name; each episode draws one."""
    swap_prompt: bool = False
    """Name the other cube in the prompt. It tests whether a policy follows the words: it should then push the wrong cube."""


class PickPlaceConfig(SimTaskConfig):
    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("cube_region_m", "tray_region_m", "tray_turn_rad", "start_m", "start_rad"),
        "it is a constant of the task now",
    )

    time_limit_s: float = Field(12.0, gt=0.0)
    """Seconds after which an episode is a timeout."""


class TableCleanupConfig(SimTaskConfig):
    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("closed_deg", "apart_m", "box_range_m", "start_range_m", "start_range_deg"),
        "it is a constant of the task now",
    )

    time_limit_s: float = Field(35.0, gt=0.0)
    """Seconds after which an episode is a timeout."""
    region_m: tuple[float, float] = (0.28, 0.19)
    """Extent of the area with objects along x and y, in meters."""


class CapTighteningConfig(SimTaskConfig):
    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("tolerance_deg", "min_turn_deg", "max_turn_deg", "bottle_range_m", "start_range_m", "start_range_deg"),
        "it is a constant of the task now",
    )

    time_limit_s: float = Field(12.0, gt=0.0)
    """Seconds after which an episode is a timeout."""


class InsertionConfig(SimTaskConfig):
    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(("socket_yaw_deg",), "it is a constant of the task now")

    start_range_m: float = Field(0.03, ge=0.0, le=0.05)
    """Largest distance of the tool's tip from the socket at the start, in x and y, in meters."""
    start_height_m: tuple[float, float] = (0.025, 0.05)
    """Smallest and largest height of the tool's tip above the socket at the start, in meters."""
    start_yaw_deg: float = Field(10.0, ge=0.0, le=30.0)
    """Largest rotation of the gripper relative to the socket at the start, in degrees."""
    start_tilt_deg: float = Field(3.0, ge=0.0, le=10.0)
    """Largest tilt of the gripper at the start, about x and y, in degrees."""
    socket_range_m: float = Field(0.03, ge=0.0, le=0.05)
    """Largest displacement of the socket, in x and y, in meters."""
    hidden_offset_m: float = Field(0.0, ge=0.0, le=0.005)
    """Largest error of the socket's position in `task_state`, in x and y, in meters; random in each episode. Only the expert
    knows the true position."""
