"""Push a cube over the table onto a mark, with the gripper closed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.core.errors import ConfigError
from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.rotations import quat_from_matrix, quat_to_matrix, quat_to_rotvec
from dovetail.robots.sim.world import World
from dovetail.tasks._cubes import (
    about_z,
    place_tcp,
    still_to_come,
    table_camera,
)
from dovetail.tasks.base import Goal, SimTask, Vector
from dovetail.tasks.settings import PushCubeConfig

__all__ = ["CUBE_STATE", "MARK_XML", "PushCube", "PushCubeConfig", "cube_xml"]

_HALF = 0.02  # m: half the cube's edge
_TOUCH = _HALF + 0.011  # m: TCP to cube center with the pads on a face
_NEAR = _TOUCH - 0.009  # m: closer than this, the pads are not behind the cube
_STANDOFF = 0.050  # m: where the pads come down, clear of the cube in any orientation
_BEHIND = _TOUCH + 0.007  # m: the same for any orientation of the cube
_CLEAR_Z = 0.070  # m: TCP height at which the pads pass over the cube
# m: TCP height while pushing. The fingers stay above the cube; only the pads touch it
_PUSH_Z = {"panda": 0.026, "x5": 0.021}
_CUBE_REGION_M = 0.18  # edge of the square in which the cube starts
_MARK_REGION_M = 0.22  # edge of the square in which the mark lies
_START_M, _START_RAD = 0.04, 0.2  # the TCP starts within this of the center, turned by up to this

CUBE_STATE = (
    *(f"cube_from_tcp_{axis}" for axis in "xyz"),
    *(f"mark_from_cube_{axis}" for axis in "xy"),
    *(f"cube_velocity_{axis}" for axis in "xy"),
    *(f"way_{axis}" for axis in "xy"),  # unit vector from the cube to the mark
    *(f"start_from_tcp_{axis}" for axis in "xy"),  # where the push begins
    *("behind", "aside"),  # the TCP relative to that line
)

MARK_XML = """<body name="mark">
            <geom name="mark" type="cylinder" size="0.026 0.0004" pos="0 0 0.0004" rgba="0.36 0.62 0.52 1"
                  contype="0" conaffinity="0"/>
            <geom type="cylinder" size="0.020 0.0005" pos="0 0 0.0005" rgba="0.93 0.94 0.93 1"
                  contype="0" conaffinity="0"/>
            <geom type="cylinder" size="0.014 0.0006" pos="0 0 0.0006" rgba="0.36 0.62 0.52 1"
                  contype="0" conaffinity="0"/>
          </body>"""


def cube_xml(name: str, rgb: str) -> str:
    # friction 0.6 has priority over the table's 0.8: pushed above its center, the cube does not topple, and it
    # stops within 3 mm of a push at full speed. Pads have the same priority, so their friction counts
    return f"""<body name="{name}" pos="0.4 0 {_HALF}">
            <freejoint/>
            <geom name="{name}" type="box" size="{_HALF} {_HALF} {_HALF}" mass="0.25" rgba="{rgb} 1"
                  friction="0.6 0.01 0.0001" priority="1" condim="4" solref="0.008 1"
                  solimp="0.95 0.99 0.001"/>
          </body>"""


@dataclass(frozen=True, slots=True)
class _Way:
    """The line along which to push the cube, and the TCP's position relative to it."""

    ahead: Vector  # [2] unit vector from the cube to the mark; shorter only if they coincide
    distance: float  # m, left to push
    behind: float  # m, of the TCP behind the cube's center
    aside: float  # m, of the TCP to the left of the line


class PushCube(SimTask):
    """The fingers push where the line from the mark through the cube's center leaves the cube, on any face or edge."""

    Config: ClassVar = PushCubeConfig
    name: ClassVar[str] = "push_cube"
    prompt: ClassVar[str] = "push the cube onto the round mark"
    fixed_gripper: ClassVar[float | None] = 0.0
    state_names: ClassVar[tuple[str, ...]] = (*CUBE_STATE, *(f"tcp_turn_{axis}" for axis in "xyz"))

    def __init__(self, config: PushCubeConfig) -> None:
        super().__init__(config)
        self.config: PushCubeConfig = config
        self._pushed = "cube"  # the body to push
        self._start_distance = self._start_reach = 1.0  # m, at reset; the scale of completion

    def xml(self, arm: Arm) -> str:
        return f"""
        <mujoco><worldbody>
          {table_camera(arm)}
          {MARK_XML}
          {cube_xml("cube", "0.27 0.45 0.68")}
        </worldbody></mujoco>"""

    def place(self, world: World, rng: np.random.Generator) -> None:
        config, center = self.config, self._center(world.arm)
        shortest, longest = config.push_m
        cube = center + rng.uniform(-0.5, 0.5, 2) * _CUBE_REGION_M
        for _ in range(1000):
            # the cube is drawn first and kept, so that its start is uniform in the square
            bearing, distance = rng.uniform(-math.pi, math.pi), rng.uniform(shortest, longest)
            mark = cube + distance * np.array((math.cos(bearing), math.sin(bearing)))
            if (np.abs(mark - center) <= 0.5 * _MARK_REGION_M).all():
                break
        else:
            raise ConfigError(
                f"no mark lies {shortest} to {longest} m from the cube within {_MARK_REGION_M} m: "
                "make push_m shorter"
            )
        world.model.body_pos[world.body_id("mark")] = (*mark, 0.0)
        world.set_free_body("cube", (*cube, _HALF), about_z(rng.uniform(-math.pi, math.pi)))
        self._place_arm(world, rng)
        self._start_distance, self._start_reach = distance, self._reach(world)

    def _place_arm(self, world: World, rng: np.random.Generator) -> None:
        place_tcp(
            world,
            rng,
            center=self._center(world.arm),
            spread_m=_START_M,
            height_m=(0.09, 0.13),
            turn_rad=_START_RAD,
            gripper=0.0,
        )

    def solved(self, world: World) -> bool:
        if self._distance(world) > self.config.tolerance_m:
            return False
        return float(np.linalg.norm(self._velocity(world))) < 0.02 and self._cube(world)[2] < 1.5 * _HALF

    def failed(self, world: World) -> bool:
        return self._is_lost(self._cube(world), world)

    def completion(self, world: World) -> float:
        near, pushed = (max(0.0, share) for share in self._shares(world))
        return max(pushed, 0.3 * near + 0.7 * pushed)

    def potential(self, world: World) -> float:
        # not clipped at 0: bringing back a cube that was pushed the wrong way earns reward at once
        near, pushed = self._shares(world)
        return 0.3 * near + 0.7 * pushed

    def _shares(self, world: World) -> tuple[float, float]:
        """Finished fraction of the way to the cube and of the cube's way to the mark: 0 at the start, 1 at the end."""
        near = 1.0 - self._reach(world) / self._start_reach
        # zero where the predicate holds
        left = max(0.0, self._distance(world) - self.config.tolerance_m)
        return near, 1.0 - left / (self._start_distance - self.config.tolerance_m)

    def goal(self, world: World) -> Goal:
        """Behind the cube high, down, then along with it to the mark: one motion without a jump in it, from where things are
        now. A choice, say of the face to press on, is one that who learns from demonstrations sees go either way.
        """
        tcp, _ = world.tcp_pose()
        height, way = _PUSH_Z[world.arm.name], self._way(world, tcp)
        low = _share(tcp[2], height + 0.020, height + 0.008)
        # high, the pads need space to come down; low, they may touch
        lost = math.hypot(way.aside, max(0.0, low * _NEAR + (1.0 - low) * _STANDOFF - way.behind))
        across = np.array((-way.ahead[1], way.ahead[0]))
        there = (way.behind - _STANDOFF) * way.ahead - way.aside * across
        # close the gap, move the cube its remaining distance, and return to the line
        push = (max(0.0, way.behind - _TOUCH) + way.distance - 0.005) * way.ahead - 0.4 * way.aside * across
        push *= _share(
            way.distance, 0.3 * self.config.tolerance_m, 0.5 * self.config.tolerance_m
        )  # there, it stops
        # low at a wrong place: move away from the cube and up before crossing it
        away = tcp[:2] - self._cube(world)[:2]
        back = 0.012 * _share(float(np.linalg.norm(away)), 0.07, 0.05) * _unit(away)
        right = _share(lost, 0.028, 0.018)
        step = low * (right * push + (1.0 - right) * back) + (1.0 - low) * there
        rise = (_CLEAR_Z - height) * _share(lost, 0.014, 0.026)
        position = np.append(tcp[:2] + step, height + rise) - still_to_come(world)
        return Goal(position=position, quat=quat_from_matrix(self.reset_rotation), gripper=0.0)

    def read_state(self, world: World) -> NDArray[np.float32]:
        return np.concatenate((self._cube_state(world, self._pushed), self._turn(world))).astype(np.float32)

    def _cube_state(self, world: World, body: str) -> Vector:
        """[13]: where a cube is and where to push it from. See `CUBE_STATE`."""
        tcp, _ = world.tcp_pose()
        cube = self._cube(world, body)
        flat, way = np.append(self._mark(world) - cube[:2], 0.0), self._way(world, tcp, body)
        ahead = np.append(way.ahead, 0.0)
        return np.concatenate(
            (
                self.in_reset_frame(cube - tcp),
                self.in_reset_frame(flat)[:2],
                self.in_reset_frame(np.append(self._velocity(world, body), 0.0))[:2],
                self.in_reset_frame(ahead)[:2],
                self.in_reset_frame(cube - tcp - _STANDOFF * ahead)[:2],
                (way.behind, way.aside),
            )
        )

    def _turn(self, world: World) -> Vector:
        """[3] rad: rotation of the TCP since the reset."""
        _, quat = world.tcp_pose()
        return quat_to_rotvec(quat_from_matrix(self.reset_rotation.T @ quat_to_matrix(quat)))

    def metrics(self, world: World) -> Mapping[str, float]:
        return {"distance_mm": 1e3 * self._distance(world)}

    # ---- geometry

    def _is_lost(self, cube: Vector, world: World) -> bool:
        return bool(cube[2] < -0.01 or (np.abs(cube[:2] - self._center(world.arm)) > 0.19).any())

    def _reach(self, world: World) -> float:
        """Distance of the TCP from the place behind the cube. Continuous over changes of the face."""
        cube = self._cube(world)
        behind = cube[:2] - _BEHIND * _unit(self._mark(world) - cube[:2])
        return float(np.linalg.norm(world.tcp_pose()[0] - (*behind, _PUSH_Z[world.arm.name])))

    def _way(self, world: World, tcp: Vector, body: str | None = None) -> _Way:
        cube = self._cube(world, body)[:2]
        remaining, away = self._mark(world) - cube, tcp[:2] - cube
        distance = float(np.linalg.norm(remaining))
        ahead = remaining / max(distance, 0.005)
        return _Way(ahead, distance, -float(away @ ahead), float(away[1] * ahead[0] - away[0] * ahead[1]))

    def _center(self, arm: Arm) -> Vector:
        # the short arm works further away from its base
        return np.array((arm.workspace_center[0] + 0.02, 0.0))

    def _cube(self, world: World, body: str | None = None) -> Vector:
        """[3] m: the center of a cube, by default of the one to push."""
        return np.asarray(world.data.xpos[world.body_id(body or self._pushed)])

    def _mark(self, world: World) -> Vector:
        return np.asarray(world.model.body_pos[world.body_id("mark")][:2])

    def _velocity(self, world: World, body: str | None = None) -> Vector:
        """[2] m/s over the table."""
        dof = int(world.model.body_dofadr[world.body_id(body or self._pushed)])
        return np.asarray(world.data.qvel[dof : dof + 2])

    def _distance(self, world: World) -> float:
        return float(np.linalg.norm(self._mark(world) - self._cube(world)[:2]))


def _share(value: float, none: float, all_: float) -> float:
    """Linear from 0 at `none` to 1 at `all_`, clipped."""
    return min(max((value - none) / (all_ - none), 0.0), 1.0)


def _unit(vector: Vector) -> Vector:
    return vector / max(float(np.linalg.norm(vector)), 1e-9)
