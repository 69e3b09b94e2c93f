"""The simulated arms: names, limits and MJCF files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

__all__ = ["ARMS", "Arm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm with a parallel gripper. Joint, actuator, site and geom names are those of its MJCF file.

    Every arm's MJCF has: joints `joint_names` with one actuator each of the same name, two coupled finger
    joints with the actuator `gripper`, the site `tcp` between the finger tips (z: approach, y: the direction
    in which the fingers open), the geoms `left_pad` and `right_pad`, the body `hand`, the camera `wrist`.
    """

    name: str
    embodiment: str
    home: tuple[float, ...]  # rad, TCP straight down over the workspace
    lower: tuple[float, ...]  # rad
    upper: tuple[float, ...]  # rad
    max_velocity: tuple[float, ...]  # rad/s
    max_torque: tuple[float, ...]  # Nm
    max_opening_m: float
    max_grip_force_n: float
    reach_m: float  # from the shoulder to the TCP
    workspace_center: tuple[float, float, float]  # m, what the front camera looks at
    finger_joints: tuple[str, str] = ("finger_joint1", "finger_joint2")
    pads: tuple[str, str] = ("left_pad", "right_pad")

    @property
    def num_joints(self) -> int:
        return len(self.home)

    @property
    def joint_names(self) -> tuple[str, ...]:
        return tuple(f"joint{i + 1}" for i in range(self.num_joints))

    def xml(self) -> str:
        """The arm's MJCF document."""
        return resources.files("dovetail.robots.sim").joinpath(f"arms/{self.name}.xml").read_text("utf-8")


_PANDA = Arm(
    name="panda",
    embodiment="franka_panda",
    home=(0.0, 0.00859050, 0.0, -2.36187896, 0.0, 2.37046945, math.pi / 4),
    lower=(-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973),
    upper=(2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973),
    max_velocity=(2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61),
    max_torque=(87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0),
    max_opening_m=0.08,
    max_grip_force_n=60.0,
    reach_m=0.855,
    workspace_center=(0.45, 0.0, 0.12),
)

_X5 = Arm(
    name="x5",
    embodiment="arx_x5",
    home=(0.0, 1.6829578, 1.54133987, -1.4291784, 0.0, 0.0),
    lower=(-3.14, -0.05, -0.05, -1.9, -1.57, -2.9),
    upper=(3.14, 3.5, 3.3, 1.6, 1.57, 2.9),
    max_velocity=(3.14, 3.14, 3.14, 3.14, 3.14, 3.14),
    max_torque=(27.0, 27.0, 27.0, 7.0, 7.0, 7.0),
    max_opening_m=0.08,
    max_grip_force_n=40.0,
    reach_m=0.62,
    workspace_center=(0.27, 0.0, 0.10),
)

ARMS: Mapping[str, Arm] = MappingProxyType({arm.name: arm for arm in (_PANDA, _X5)})
