"""Put all objects on the table into a box, then close its lid.

The objects may come in any order, the lid comes last. The open lid leans behind the box; the gripper moves over it and
pushes it from behind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.rotations import clip_norm, quat_from_axis_angle, quat_multiply, rotate
from dovetail.robots.sim.world import DOWN, World
from dovetail.tasks.base import Goal, SimTask, Vector
from dovetail.tasks.settings import TableCleanupConfig

__all__ = ["TableCleanup", "TableCleanupConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Thing:
    name: str
    geom: str  # MJCF attributes
    height_m: float  # of its center at rest
    period: float  # symmetry of its grasp in rad; 0 for a round object
    slot: float  # where it is dropped along the box, so that objects do not pile up under the lid


_THINGS = (
    _Thing(name="cube", geom='type="box" size="0.016 0.016 0.016" rgba="0.82 0.42 0.33 1"',
           height_m=0.016, period=math.pi / 2, slot=0.070),
    # rolling friction, so that a can does not roll forever
    _Thing(name="can", geom='type="cylinder" size="0.017 0.018" rgba="0.36 0.55 0.66 1" condim="6"',
           height_m=0.018, period=0.0, slot=-0.070),
    _Thing(name="bar", geom='type="box" size="0.028 0.011 0.011" rgba="0.88 0.70 0.36 1"',
           height_m=0.011, period=math.pi, slot=0.0),
)  # fmt: skip

# the box's frame: x along the hinge, y away from the hinge, z up from the table
_INNER_M = (0.110, 0.070)  # half
_WALL_M = 0.004  # half
_TOP_M = 0.054  # higher than the objects, and low enough for the gripper to reach over
_LID_M = 0.145
_LID_OPEN_RAD = math.radians(112.0)
_HINGE = np.array((0.0, -_INNER_M[1] - _WALL_M, _TOP_M + 0.004))
_CARRY_Z_M = 0.095  # fingertips and a held object clear the walls
_HOVER_Z_M = 0.075  # fingertips clear the objects on the table
_MIN_GRASP_Z_M = 0.013  # fingertips clear the table
_DROP_Y_M = 0.015  # away from the lid, which the gripper must not touch
_CLOSED_DEG = 5.0  # the lid is closed below this angle
_APART_M = 0.105  # between any two objects, so that the fingers fit
_BOX_RANGE_M = 0.02
_START_RANGE_M, _START_RANGE_DEG = 0.03, 10.0


class TableCleanup(SimTask):
    Config: ClassVar[type[TableCleanupConfig]] = TableCleanupConfig
    name: ClassVar[str] = "table_cleanup"
    prompt: ClassVar[str] = "Put the cube, the can and the bar into the box, then close its lid."
    arms: ClassVar[tuple[str, ...]] = ("franka_panda",)
    state_names: ClassVar[tuple[str, ...]] = (
        *(f"{thing.name}_{axis}" for thing in _THINGS for axis in ("x", "y", "z", "in_box")),  # from the TCP
        "cube_sin",  # of four times the angle to its faces: equal for all faces
        "cube_cos",
        "bar_sin",
        "bar_cos",
        *(f"box_{axis}" for axis in "xyz"),  # from the TCP to the middle of the box's opening
        *(f"lid_{axis}" for axis in "xyz"),  # from the TCP to the lid's edge
        *(f"next_{axis}" for axis in "xyz"),  # from the TCP to the grasp of the held or nearest object
        "next_turn",  # rad, rotation of the wrist for that grasp
        *(f"slot_{axis}" for axis in "xyz"),  # from the TCP to above the drop place of that object
        "held",
        "heading",  # rad, of the gripper
        "tilt_x",  # tilt of the gripper
        "tilt_y",
    )

    def __init__(self, config: TableCleanupConfig) -> None:
        super().__init__(config)
        self.settings = config
        self._first_m: dict[str, float] = {}  # initial distance of each object from the box

    def xml(self, arm: Arm) -> str:
        x, y, _ = arm.workspace_center
        (a, b), w, h = _INNER_M, _WALL_M, _TOP_M / 2
        walls = "".join(
            f'<geom name="wall{i}" class="box" pos="{px} {py} {h}" size="{sx} {sy} {h}"/>'
            for i, (px, py, sx, sy) in enumerate(
                ((a + w, 0, w, b + 2 * w), (-a - w, 0, w, b + 2 * w), (0, b + w, a, w), (0, -b - w, a, w))
            )
        )
        things = "".join(
            f'<body name="{thing.name}" pos="{x} {0.12 * i} {thing.height_m}"><freejoint/>'
            f'<geom name="{thing.name}" class="thing" {thing.geom}/></body>'
            for i, thing in enumerate(_THINGS)
        )
        return f"""<mujoco>
          <default>
            <default class="box">
              <geom type="box" rgba="0.74 0.66 0.55 1" friction="0.6 0.005 0.0001" solref="0.008 1"/>
            </default>
            <default class="thing">
              <geom mass="0.05" friction="0.8 0.01 0.002" solref="0.008 1" solimp="0.95 0.99 0.001"/>
            </default>
          </default>
          <worldbody>
            <body name="box" pos="{x} {y - 0.21} 0">
              <geom name="floor" class="box" pos="0 0 0.003" size="{a} {b} 0.003"/>
              {walls}
              <body name="lid" pos="{_HINGE[0]} {_HINGE[1]} {_HINGE[2]}">
                <joint name="lid" axis="1 0 0" range="0 {_LID_OPEN_RAD}" damping="0.035" frictionloss="0.006"
                       armature="0.0005" solreflimit="0.02 1"/>
                <geom name="lid" class="box" pos="0 {_LID_M / 2} 0" size="{a + 2 * w} {_LID_M / 2} 0.003"
                      mass="0.1" rgba="0.62 0.53 0.42 1"/>
              </body>
            </body>
            {things}
          </worldbody>
          <contact><exclude body1="box" body2="lid"/></contact>
        </mujoco>"""

    def place(self, world: World, rng: np.random.Generator) -> None:
        s = self.settings
        x, y, _ = world.arm.workspace_center
        box = np.array((x, y - 0.21, 0.0))
        box[:2] += rng.uniform(-_BOX_RANGE_M, _BOX_RANGE_M, 2)
        world.model.body_pos[world.body_id("box")] = box
        world.data.joint("lid").qpos[0] = _LID_OPEN_RAD
        half = 0.5 * np.array(s.region_m)
        middle = np.array((x, y + 0.10))
        while True:
            spots = middle + rng.uniform(-half, half, (len(_THINGS), 2))
            gaps = [np.linalg.norm(spots[i] - spots[j]) for i in range(len(spots)) for j in range(i)]
            if min(gaps) >= _APART_M:
                break
        for thing, spot in zip(_THINGS, spots, strict=True):
            turn = quat_from_axis_angle((0.0, 0.0, 1.0), rng.uniform(-math.pi, math.pi))
            world.set_free_body(thing.name, (*spot, thing.height_m + 1e-4), turn)
            self._first_m[thing.name] = float(np.linalg.norm(spot - box[:2]))
        start = np.array((x, y, 0.18)) + rng.uniform(-_START_RANGE_M, _START_RANGE_M, 3)
        yaw = math.radians(rng.uniform(-_START_RANGE_DEG, _START_RANGE_DEG))
        world.place_arm(start, quat_multiply(quat_from_axis_angle((0.0, 0.0, 1.0), yaw), DOWN))

    # ---- state

    def lid_angle(self, world: World) -> float:
        """Angle of the lid in radians; 0 is closed."""
        return float(world.data.joint("lid").qpos[0])

    def in_box(self, world: World, name: str) -> bool:
        x, y, z = world.body_pose(name)[0] - world.body_pose("box")[0]
        return bool(abs(x) < _INNER_M[0] and abs(y) < _INNER_M[1] and 0.0 < z < _TOP_M)

    def _remaining(self, world: World) -> list[_Thing]:
        return [thing for thing in _THINGS if not self.in_box(world, thing.name)]

    def solved(self, world: World) -> bool:
        return not self._remaining(world) and self.lid_angle(world) < math.radians(_CLOSED_DEG)

    def failed(self, world: World) -> bool:
        """Whether an object fell off the table, or the lid closed before all objects were inside."""
        remaining = self._remaining(world)
        fallen = any(world.body_pose(thing.name)[0][2] < -0.01 for thing in remaining)
        return fallen or (bool(remaining) and self.lid_angle(world) < math.radians(30.0))

    def completion(self, world: World) -> float:
        """0.25 for each object, for reaching and carrying; the rest for the lid."""
        remaining = self._remaining(world)
        if not remaining:
            return 1.0 - 0.25 * min(max(self.lid_angle(world) / _LID_OPEN_RAD, 0.0), 1.0)
        thing, towards = self._next(world, remaining)
        reached = max(0.0, 1.0 - float(np.linalg.norm(towards)) / 0.4)
        away = (world.body_pose("box")[0] - world.body_pose(thing.name)[0])[:2]
        carried = min(max(1.0 - float(np.linalg.norm(away)) / self._first_m[thing.name], 0.0), 1.0)
        return 0.25 * (len(_THINGS) - len(remaining) + 0.3 * reached + 0.65 * carried)

    def metrics(self, world: World) -> Mapping[str, float]:
        return {
            "num_in_box": float(len(_THINGS) - len(self._remaining(world))),
            "lid_deg": math.degrees(self.lid_angle(world)),
        }

    def read_state(self, world: World) -> NDArray[np.float32]:
        position, quat = world.tcp_pose()
        numbers: list[float] = []
        for thing in _THINGS:
            towards = self.in_reset_frame(world.body_pose(thing.name)[0] - position)
            numbers += [*towards, float(self.in_box(world, thing.name))]
        for thing in _THINGS:
            if thing.period:
                phase = 2 * math.pi / thing.period * self._turn(world, thing)
                numbers += [math.sin(phase), math.cos(phase)]
        for point in (world.body_pose("box")[0] + (0.0, 0.0, _TOP_M), self._lid_edge(world)):
            numbers += [*self.in_reset_frame(point - position)]
        numbers += self._upcoming(world)
        lean = self.in_reset_frame(np.cross(rotate(quat, (0.0, 0.0, 1.0)), (0.0, 0.0, -1.0)))
        return np.array([*numbers, *lean[:2]], np.float32)

    def _upcoming(self, world: World) -> list[float]:
        """The next object and grasp, as part of the state: few demonstrations do not suffice to learn the choice."""
        remaining, (position, quat) = self._remaining(world), world.tcp_pose()
        yaw, slot = _yaw(quat), world.body_pose("box")[0] + (0.0, _DROP_Y_M, _TOP_M) - position
        if not remaining:  # straight for the lid
            return [0.0, 0.0, 0.0, -yaw, *self.in_reset_frame(slot), 0.0, yaw]
        thing, towards = self._next(world, remaining)
        held = world.grasping(thing.name)
        slot[0] += thing.slot
        turn = 0.0 if held else self._wrist_turn(world, thing, yaw)
        return [*self.in_reset_frame(towards), turn, *self.in_reset_frame(slot), float(held), yaw]

    def _period(self, world: World, thing: _Thing) -> float:
        """A round object on its side must be grasped across, like a bar."""
        lying = not thing.period and abs(world.data.body(thing.name).xmat[8]) < 0.7
        return math.pi if lying else thing.period

    def _turn(self, world: World, thing: _Thing) -> float:
        """The smallest counter-clockwise rotation that aligns the fingers with the object."""
        period = self._period(world, thing)
        if not period:
            return 0.0
        along = rotate(world.tcp_pose()[1], (1.0, 0.0, 0.0))
        axis = world.data.body(thing.name).xmat.reshape(3, 3)[:2, 0 if thing.period else 2]
        turn = math.atan2(axis[1], axis[0]) - math.atan2(along[1], along[0])
        return (turn + period / 2) % period - period / 2

    def _next(self, world: World, remaining: list[_Thing]) -> tuple[_Thing, Vector]:
        """The held or nearest object, and the vector from the TCP to its grasp."""
        position, _ = world.tcp_pose()
        ways = [(thing, self._grasp_point(world, thing) - position) for thing in remaining]
        return min(ways, key=lambda way: float(way[1] @ way[1]))

    def _grasp_point(self, world: World, thing: _Thing) -> Vector:
        point = world.body_pose(thing.name)[0]
        return np.array((point[0], point[1], max(point[2], _MIN_GRASP_Z_M)))

    def _lid_edge(self, world: World) -> Vector:
        angle = self.lid_angle(world)
        along = np.array((0.0, math.cos(angle), math.sin(angle)))
        edge: Vector = world.body_pose("box")[0] + _HINGE + _LID_M * along
        return edge

    # ---- expert

    def goal(self, world: World) -> Goal:
        remaining = self._remaining(world)
        position, quat = world.tcp_pose()
        if np.linalg.norm(rotate(quat, (0.0, 0.0, 1.0))[:2]) > 0.35:  # tilted: straighten at a safe height
            above = np.array((*position[:2], max(position[2], 0.2)))
            return _upright(above, _yaw(quat), gripper=self._grip(world))
        if not remaining:
            return self._close(world)
        thing, towards = self._next(world, remaining)
        if world.grasping(thing.name):
            return self._carry(world, thing)
        return self._pick(world, thing, towards)

    def _pick(self, world: World, thing: _Thing, towards: Vector) -> Goal:
        position, quat = world.tcp_pose()
        yaw = _yaw(quat)
        turn = self._wrist_turn(world, thing, yaw)
        aside = math.hypot(towards[0], towards[1])
        inside = towards[2] > -0.035
        if aside > (0.014 if inside else 0.025) or abs(turn) > (0.2 if inside else 0.1):
            height, slack = self._clearance(world)
            return _upright(_climb(position, towards, height=height, slack=slack), yaw + turn, gripper=1.0)
        if not inside and aside > 0.008:
            # on the way down: ignore the short tilt when the motion starts
            return _upright(position + (towards[0], towards[1], 0.0), yaw + turn, gripper=1.0)
        down = abs(towards[2]) < 0.006 or (abs(towards[2]) < 0.012 and world.gripper_opening() < 0.07)
        return _upright(position + towards, yaw + turn, gripper=0.0 if down else 1.0)

    def _wrist_turn(self, world: World, thing: _Thing, yaw: float) -> float:
        """Rotation to any equivalent side of the object, within the wrist's range and clear of the box."""
        x, y, _ = np.abs(world.body_pose(thing.name)[0] - world.body_pose("box")[0])
        beside = x < _INNER_M[0] + 0.03 and y < _INNER_M[1] + 0.115  # the gripper is 98 mm wide to each side
        period = self._period(world, thing)
        if not period:
            return math.copysign(math.pi / 2, yaw) - yaw if beside else 0.0
        if beside:
            period = math.pi / 2  # all objects can be grasped lengthwise too
        turns = [self._turn(world, thing) + k * period for k in (-2, -1, 0, 1, 2)]
        turns = [turn for turn in turns if abs(yaw + turn) < 1.75] or turns
        return min(turns, key=lambda turn: abs(turn) + 4.0 * beside * abs(math.cos(yaw + turn)))

    def _carry(self, world: World, thing: _Thing) -> Goal:
        position, quat = world.tcp_pose()
        slot = world.body_pose("box")[0] + (thing.slot, _DROP_Y_M, 0.0)
        there = bool(np.linalg.norm((slot - position)[:2]) < 0.015)
        height, slack = self._clearance(world)
        goal = _climb(position, slot - position, height=max(height, _CARRY_Z_M), slack=slack)
        return _upright(goal, _yaw(quat), gripper=float(there))

    def _close(self, world: World) -> Goal:
        """Move over the lid, down behind it, and push. In the lid's frame."""
        position, _ = world.tcp_pose()
        angle, edge = self.lid_angle(world), self._lid_edge(world)
        along = np.array((0.0, math.cos(angle), math.sin(angle)))
        out = np.array((0.0, -math.sin(angle), math.cos(angle)))
        rel = position - edge
        if rel @ out > 0.004 and rel @ along < -0.008:
            goal = edge - 0.022 * along - 0.010 * out
        elif rel[1] < -0.035:
            goal = edge + (0.0, -0.045, -0.040)
        else:
            goal = edge + (0.0, -0.050, 0.035)
            if rel[2] < 0.018:  # move up along the lid
                slope = min(math.cos(angle) / max(math.sin(angle), 0.1), 0.0)
                goal[1] = position[1] + (goal[2] - position[2]) * slope
        goal[0] = world.body_pose("box")[0][0]
        return _upright(goal, 0.0, gripper=0.0)

    def _grip(self, world: World) -> float:
        """Stay closed while an object is held, or else open."""
        return 0.0 if any(world.grasping(thing.name) for thing in _THINGS) else 1.0

    def _clearance(self, world: World) -> tuple[float, float]:
        """The travel height from here, and the tolerance below it."""
        x, y, _ = world.tcp_pose()[0] - world.body_pose("box")[0]
        if abs(x) > _INNER_M[0] + 0.11 or y > _INNER_M[1] + 0.07:
            return _HOVER_Z_M, 0.05
        if y > -0.03:
            return _CARRY_Z_M, 0.015
        return float(self._lid_edge(world)[2]) + 0.03, 0.015  # over the lid, or behind it


def _climb(position: Vector, towards: Vector, *, height: float, slack: float) -> Vector:
    """Move sideways at a height; move straight up while more than `slack` below it."""
    # short sideways steps, so that the upward motion gets most of a limited action
    across = clip_norm(towards[:2], 0.0 if height - position[2] > slack else 0.03)
    return np.array((*(position[:2] + across), height))


def _upright(position: Vector, yaw: float, *, gripper: float) -> Goal:
    quat = quat_multiply(quat_from_axis_angle((0.0, 0.0, 1.0), yaw), np.array(DOWN))
    return Goal(position=position, quat=quat, gripper=gripper)


def _yaw(quat: Vector) -> float:
    along = rotate(quat, (1.0, 0.0, 0.0))
    return math.atan2(along[1], along[0])
