"""Helpers of the tasks with cubes: headings that repeat every 90 degrees, start poses and the camera."""

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
    """Quaternion of a rotation about the vertical axis."""
    return (math.cos(0.5 * angle), 0.0, 0.0, math.sin(0.5 * angle))


def cube_heading(quat: Vector) -> float:
    """Angle of a cube's side faces about the vertical axis, in (-pi/4, pi/4], for any face down."""
    axes = quat_to_matrix(quat)
    # the most horizontal axis is the normal of a side face, even if the cube has rolled over
    flattest = int(abs(axes[2]).argmin())
    return nearest_quarter(math.atan2(axes[1, flattest], axes[0, flattest]), 0.0)


def nearest_quarter(angle: float, reference: float) -> float:
    """`angle` plus the multiple of 90 degrees that brings it nearest to `reference`."""
    return angle - _QUARTER * round((angle - reference) / _QUARTER)


def tcp_heading(quat: Vector) -> float:
    """Rotation of the gripper from the arm's home heading, seen from above."""
    axes = quat_to_matrix(quat)
    return math.atan2(axes[1, 0], axes[0, 0])


def pointing_down(heading: float) -> Vector:
    """Quaternion of a TCP that points straight down, rotated by `heading` about the vertical axis."""
    return quat_multiply(quat_from_rotvec((0.0, 0.0, heading)), DOWN)


def place_tcp(
    world: World,
    rng: np.random.Generator,
    *,
    center: Vector,
    spread_m: float,
    height_m: tuple[float, float],
    turn_rad: float,
    gripper: float,
) -> None:
    """Reset only: put the TCP at a random pose above `center`, pointing down. Retries if out of reach."""
    for attempts_left in reversed(range(20)):
        start = (*(center + rng.uniform(-spread_m, spread_m, 2)), rng.uniform(*height_m))
        try:
            world.place_arm(start, pointing_down(rng.uniform(-turn_rad, turn_rad)), gripper=gripper)
            return
        except RobotError:
            if not attempts_left:
                raise


def still_to_come(world: World) -> Vector:
    """[3] m: the remaining motion of the TCP to its servo target. An expert subtracts it to avoid overshoot."""
    return world.kinematics.pose(world.joint_targets())[0] - world.tcp_pose()[0]


def table_camera(arm: Arm) -> str:
    """A `front` camera close to the table, so that a 4 cm cube is visible in 128 pixels."""
    x, y, _ = arm.workspace_center
    towards = np.array((-0.55, -0.42, -0.46))
    eye = np.array((x + 0.02, y, 0.05)) - towards
    right = np.cross(towards, (0.0, 0.0, 1.0))
    up = np.cross(right, towards)
    axes = " ".join(f"{value:.5f}" for value in (*right, *up))
    where = " ".join(f"{value:.5f}" for value in eye)
    return f'<camera name="front" pos="{where}" xyaxes="{axes}" fovy="46"/>'
