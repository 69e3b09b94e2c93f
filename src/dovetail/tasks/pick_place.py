"""Pick up a cube and put it into a tray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.rotations import quat_from_matrix, quat_to_matrix, quat_to_rotvec
from dovetail.robots.sim.world import World
from dovetail.tasks._cubes import (
    about_z,
    cube_heading,
    nearest_quarter,
    place_tcp,
    pointing_down,
    still_to_come,
    table_camera,
    tcp_heading,
)
from dovetail.tasks.base import Goal, SimTask, Vector
from dovetail.tasks.settings import PickPlaceConfig

__all__ = ["PickPlace", "PickPlaceConfig"]

_HALF = 0.018  # m: half the cube's edge
_FLOOR = 0.004  # m: the tray's floor
_INNER = 0.056  # m: half the tray's inside
_WALL = 0.004  # m: half a wall's thickness
_RIM = 0.022  # m: the walls' height
_CARRY_Z = 0.085  # m: TCP height at which a held cube passes over the walls
_RELEASE_Z = 0.034  # m: TCP height for the release: open pads clear the walls, the cube falls 1 cm
_CUBE_REGION = (0.22, 0.22)  # m: extent along x and y
_TRAY_REGION = (0.12, 0.06)  # m: the same for the tray's center
_TRAY_TURN_RAD = 0.25  # the tray is turned by up to this
_START_M, _START_RAD = 0.05, 0.2  # the TCP starts within this of the center, turned by up to this


class PickPlace(SimTask):
    """Cube and tray start in separate regions, so that the fingers always fit around the cube."""

    Config: ClassVar = PickPlaceConfig
    name: ClassVar[str] = "pick_place"
    prompt: ClassVar[str] = "pick up the cube and put it into the tray"
    state_names: ClassVar[tuple[str, ...]] = (
        *(f"cube_from_tcp_{axis}" for axis in "xyz"),
        *(f"tray_from_cube_{axis}" for axis in "xyz"),
        *("cube_heading_sin4", "cube_heading_cos4"),
        *(f"tcp_turn_{axis}" for axis in "xyz"),
        *("tcp_height", "grasped"),
    )

    def __init__(self, config: PickPlaceConfig) -> None:
        super().__init__(config)
        self.config: PickPlaceConfig = config
        self._start_reach = self._start_distance = 1.0  # m, at reset; the scale of completion

    def xml(self, arm: Arm) -> str:
        side, height = _INNER + _WALL, 0.5 * _RIM
        walls = "".join(
            f'<geom class="tray" pos="{x} {y} {height}" size="{along_x} {along_y} {height}"/>'
            for x, y, along_x, along_y in (
                (side, 0, _WALL, _INNER),
                (-side, 0, _WALL, _INNER),
                (0, side, side + _WALL, _WALL),
                (0, -side, side + _WALL, _WALL),
            )
        )
        return f"""
        <mujoco>
          <default><default class="tray">
            <geom type="box" rgba="0.86 0.72 0.52 1" friction="0.7 0.005 0.0001" solref="0.008 1"
                  solimp="0.95 0.99 0.001"/>
          </default></default>
          <worldbody>
            {table_camera(arm)}
            <body name="tray" pos="0.4 0.2 0">
              <geom name="tray_floor" class="tray" pos="0 0 {_FLOOR / 2}" size="{side} {side} {_FLOOR / 2}"
                    rgba="0.92 0.82 0.66 1"/>
              {walls}
            </body>
            <body name="cube" pos="0.4 -0.1 {_HALF}">
              <freejoint/>
              <geom name="cube" type="box" size="{_HALF} {_HALF} {_HALF}" mass="0.08" rgba="0.76 0.33 0.28 1"
                    friction="0.8 0.01 0.0001" condim="4" solref="0.008 1" solimp="0.95 0.99 0.001"/>
            </body>
          </worldbody>
        </mujoco>"""

    def place(self, world: World, rng: np.random.Generator) -> None:
        middle = np.array((world.arm.workspace_center[0] + 0.01, 0.0))
        cube = middle + (0.0, -0.10) + rng.uniform(-0.5, 0.5, 2) * _CUBE_REGION
        tray = middle + (0.0, 0.175) + rng.uniform(-0.5, 0.5, 2) * _TRAY_REGION
        index = world.body_id("tray")
        world.model.body_pos[index] = (*tray, 0.0)
        world.model.body_quat[index] = about_z(rng.uniform(-1.0, 1.0) * _TRAY_TURN_RAD)
        world.set_free_body("cube", (*cube, _HALF), about_z(rng.uniform(-math.pi, math.pi)))
        place_tcp(
            world,
            rng,
            center=middle,
            spread_m=_START_M,
            height_m=(0.11, 0.15),
            turn_rad=_START_RAD,
            gripper=1.0,
        )
        self._start_reach = float(np.linalg.norm(world.tcp_pose()[0] - self._cube(world)))
        self._start_distance = float(np.linalg.norm(tray - cube))

    def solved(self, world: World) -> bool:
        if not self._in_tray(world) or self._held(world) or world.gripper_opening() < 0.06:
            return False
        if float(np.linalg.norm(self._velocity(world))) > 0.03:
            return False
        return bool(world.tcp_pose()[0][2] - self._cube(world)[2] > 0.05)

    def failed(self, world: World) -> bool:
        cube = self._cube(world)
        away = np.abs(cube[:2] - (world.arm.workspace_center[0] + 0.01, 0.0))
        return bool(cube[2] < -0.02 or away[0] > 0.20 or away[1] > 0.32)

    def completion(self, world: World) -> float:
        """0.25 for reaching the cube, 0.1 for the grasp, 0.5 for the transport, the rest for the release."""
        tcp, cube, tray = world.tcp_pose()[0], self._cube(world), self._tray(world)
        if self._in_tray(world) and not self._held(world):
            return 0.85 + 0.15 * min(1.0, max(0.0, float(tcp[2] - cube[2])) / 0.05)
        reached = 1.0 - min(1.0, float(np.linalg.norm(tcp - cube)) / self._start_reach)
        carried = 1.0 - min(1.0, float(np.linalg.norm((tray - cube)[:2])) / self._start_distance)
        return 0.25 * reached + 0.1 * self._held(world) + 0.5 * max(0.0, carried)

    def goal(self, world: World) -> Goal:
        tcp, quat = world.tcp_pose()
        heading = self._heading(world, tcp_heading(quat))
        if self._held(world):
            position, gripper = self._put_down(world, tcp)
            turn = quat  # the cube's orientation in the tray does not matter
        elif self._in_tray(world) and float(np.linalg.norm(tcp - self._cube(world))) < 0.12:
            position, gripper, turn = np.append(tcp[:2], tcp[2] + 0.03), 1.0, quat
        else:
            position, gripper = self._pick_up(world, tcp, turn_left=abs(heading - tcp_heading(quat)))
            turn = pointing_down(heading)
        return Goal(position=position - still_to_come(world), quat=turn, gripper=gripper)

    def _pick_up(self, world: World, tcp: Vector, *, turn_left: float) -> tuple[Vector, float]:
        """Move above the cube with open, aligned fingers, then down, and close."""
        cube = self._cube(world)
        beside = float(np.linalg.norm(tcp[:2] - cube[:2]))
        above = float(tcp[2] - cube[2])
        if beside < 0.010 and abs(above) < 0.008 and turn_left < 0.15:
            return cube, 0.0
        over = float(cube[2]) + 0.050  # the pads' ends clear the cube's top by 2 cm
        if above < 0.035 and beside > 0.012:
            return np.append(tcp[:2], over), 1.0  # low beside the cube: move up first
        ready = beside < 0.010 and turn_left < 0.15 and world.gripper_opening() > 0.065
        return np.append(cube[:2], cube[2] if ready else max(over, cube[2] + 0.8 * beside)), 1.0

    def _put_down(self, world: World, tcp: Vector) -> tuple[Vector, float]:
        """Move up, over the tray, down into it, and open."""
        grip = tcp - self._cube(world)
        target = self._tray(world)[:2] + grip[:2]
        beside = float(np.linalg.norm(target - tcp[:2]))
        release = _RELEASE_Z + float(grip[2])
        if beside < 0.02:
            return np.append(target, release), 1.0 if tcp[2] < release + 0.008 else 0.0
        # near the tray rise steeply, because of its walls; far away rise on the way
        safe = tcp[2] > _CARRY_Z - 0.025 or (beside > 0.16 and tcp[2] > 0.035)
        return np.append(target if safe else tcp[:2], _CARRY_Z), 0.0

    def read_state(self, world: World) -> NDArray[np.float32]:
        tcp, quat = world.tcp_pose()
        cube = self._cube(world)
        angle = 4.0 * (cube_heading(world.body_pose("cube")[1]) - tcp_heading(quat))
        turn = quat_to_rotvec(quat_from_matrix(self.reset_rotation.T @ quat_to_matrix(quat)))
        return np.concatenate(
            (
                self.in_reset_frame(cube - tcp),
                self.in_reset_frame(self._tray(world) - cube),
                (math.sin(angle), math.cos(angle)),
                turn,
                (tcp[2], float(self._held(world))),
            )
        ).astype(np.float32)

    def metrics(self, world: World) -> Mapping[str, float]:
        apart = self._tray(world) - self._cube(world)
        return {"distance_mm": 1e3 * float(np.linalg.norm(apart[:2])), "grasped": float(self._held(world))}

    # ---- geometry

    def _cube(self, world: World) -> Vector:
        return np.asarray(world.data.xpos[world.body_id("cube")])

    def _tray(self, world: World) -> Vector:
        """Position of the cube's center in the middle of the tray."""
        place = world.model.body_pos[world.body_id("tray")]
        return np.append(place[:2], _FLOOR + _HALF)

    def _velocity(self, world: World) -> Vector:
        dof = int(world.model.body_dofadr[world.body_id("cube")])
        return np.asarray(world.data.qvel[dof : dof + 3])

    def _held(self, world: World) -> bool:
        return world.gripper_opening() < 3.2 * _HALF and world.grasping("cube")

    def _in_tray(self, world: World) -> bool:
        """Whether the cube is between the walls and on the floor, not on a wall."""
        apart = self._cube(world) - self._tray(world)
        local = quat_to_matrix(world.model.body_quat[world.body_id("tray")]).T @ apart
        inside = _INNER - 0.9 * _HALF
        return bool(max(abs(local[0]), abs(local[1])) < inside and local[2] < 0.006)

    def _heading(self, world: World, now: float) -> float:
        """The one of four equivalent grasps with the smallest rotation within the wrist's range."""
        return nearest_quarter(cube_heading(world.body_pose("cube")[1]), 0.6 * now)
