"""What the tasks with cubes share: headings that repeat every 90 degrees, and where to look from."""

from __future__ import annotations

import math

import numpy as np

from dovetail.core.errors import RobotError
from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.rotations import Vector, quat_from_rotvec, quat_multiply, quat_to_matrix
from dovetail.robots.sim.world import DOWN, World

__all__ = [
    "about_z",
    "cube_heading",
    "nearest_quarter",
    "place_tcp",
    "pointing_down",
    "still_to_come",
    "table_camera",
    "tcp_heading",
]

_QUARTER = 0.5 * math.pi


def about_z(angle: float) -> tuple[float, float, float, float]:
    """The quaternion of a turn about the vertical."""
    return (math.cos(0.5 * angle), 0.0, 0.0, math.sin(0.5 * angle))


def cube_heading(quat: Vector) -> float:
    """Angle of a cube's side faces about the vertical, in (-pi/4, pi/4], whichever face it lies on."""
    axes = quat_to_matrix(quat)
    # the axis that lies flattest is a side face's normal, also after the cube has rolled over
    flattest = int(abs(axes[2]).argmin())
    return nearest_quarter(math.atan2(axes[1, flattest], axes[0, flattest]), 0.0)


def nearest_quarter(angle: float, reference: float) -> float:
    """`angle` plus the multiple of 90 degrees that brings it nearest to `reference`."""
    return angle - _QUARTER * round((angle - reference) / _QUARTER)


def tcp_heading(quat: Vector) -> float:
    """How far the gripper, seen from above, is turned from the arm's home heading."""
    axes = quat_to_matrix(quat)
    return math.atan2(axes[1, 0], axes[0, 0])


def pointing_down(heading: float) -> Vector:
    """The TCP's quaternion straight down, turned by `heading` about the vertical."""
    return quat_multiply(quat_from_rotvec((0.0, 0.0, heading)), DOWN)


def place_tcp(
    world: World,
    rng: np.random.Generator,
    *,
    centre: Vector,
    spread_m: float,
    height_m: tuple[float, float],
    turn_rad: float,
    gripper: float,
) -> None:
    """Reset only: the TCP somewhere over `centre`, pointing down; places out of reach are drawn again."""
    for attempts_left in reversed(range(20)):
        start = (*(centre + rng.uniform(-spread_m, spread_m, 2)), rng.uniform(*height_m))
        try:
            world.place_arm(start, pointing_down(rng.uniform(-turn_rad, turn_rad)), gripper=gripper)
            return
        except RobotError:
            if not attempts_left:
                raise


def still_to_come(world: World) -> Vector:
    """[3] m: how far the servos will yet move the TCP. An expert that plans from there does not overshoot."""
    return world.kinematics.pose(world.joint_targets())[0] - world.tcp_pose()[0]


def table_camera(arm: Arm) -> str:
    """A `front` camera closer to the table than the world's own: a 4 cm cube should be seen in 128 pixels."""
    x, y, _ = arm.workspace_center
    towards = np.array((-0.55, -0.42, -0.46))
    eye = np.array((x + 0.02, y, 0.05)) - towards
    right = np.cross(towards, (0.0, 0.0, 1.0))
    up = np.cross(right, towards)
    axes = " ".join(f"{value:.5f}" for value in (*right, *up))
    where = " ".join(f"{value:.5f}" for value in eye)
    return f'<camera name="front" pos="{where}" xyaxes="{axes}" fovy="46"/>'
