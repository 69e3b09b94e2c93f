"""Turn a screw cap by more than half a turn, until its mark is at the bottle's mark.

The cap is hexagonal and moves down as it turns. The rotation uses most of the wrist's range, so the grasp matters: the
expert chooses the flats from which it can finish the rotation, and grasps again if there are none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.rotations import quat_from_axis_angle, quat_multiply, rotate
from dovetail.robots.sim.world import DOWN, World
from dovetail.tasks.base import Goal, SimTask, Vector
from dovetail.tasks.settings import CapTighteningConfig

__all__ = ["CapTightening", "CapTighteningConfig"]

_FLATS_M = 0.044  # across flats; 51 mm across corners; the gripper opens to 80 mm
_CAP_HALF_M = 0.012
_CAP_Z_M = 0.112  # of the cap's center, before it is screwed down
_SIDE = math.pi / 3.0  # symmetry of the hexagon
_PITCH_M = 0.003  # per turn
_WOUND_RAD = -1.4  # the last joint at the start, rotated back
_SPARE_RAD = 0.12  # margin of the last joint's range
_MIN_GRIP_RAD = 0.8  # minimum rotation per grasp
_HOVER_M = 0.045  # the fingertips clear the cap
_TOLERANCE_DEG = 8.0  # between the marks
_TURN_DEG = (190.0, 215.0)  # of the cap; minus the tolerance, at least 180
_BOTTLE_RANGE_M = 0.03  # along x and y
_START_RANGE_M, _START_RANGE_DEG = 0.03, 10.0


class CapTightening(SimTask):
    Config: ClassVar[type[CapTighteningConfig]] = CapTighteningConfig
    name: ClassVar[str] = "cap_tightening"
    prompt: ClassVar[str] = "Tighten the cap of the bottle until its mark meets the mark on the collar."
    state_names: ClassVar[tuple[str, ...]] = (
        *(f"grasp_{axis}" for axis in "xyz"),  # from the TCP to the cap's center
        "tilt_x",  # tilt of the gripper
        "tilt_y",
        "grasp_turn",  # rad, clockwise, to the best flats
        "remaining",  # rad, remaining rotation of the cap
        "wrist_room",  # rad, remaining range of the wrist
        "holding",
    )

    def __init__(self, config: CapTighteningConfig) -> None:
        super().__init__(config)
        self.settings = config
        self._turn = math.pi  # required rotation in this episode

    def xml(self, arm: Arm) -> str:
        half, side = _FLATS_M / 2, _FLATS_M / 2 / math.sqrt(3.0)
        # three boxes across opposite flats form the hexagon
        flats = "".join(
            f'<geom name="cap{i}" class="cap" size="{side} {half} {_CAP_HALF_M}" euler="0 0 {i * _SIDE}"/>'
            for i in range(3)
        )
        x, y, _ = arm.workspace_center
        return f"""<mujoco>
          <default>
            <default class="glass">
              <geom type="cylinder" rgba="0.45 0.62 0.60 1" friction="0.6 0.005 0.0001"/>
            </default>
            <default class="cap">
              <geom type="box" rgba="0.90 0.91 0.90 1" mass="0.02" friction="1 0.01 0.0001"
                    solref="0.006 1" solimp="0.95 0.99 0.001"/>
            </default>
            <default class="mark">
              <geom type="box" rgba="0.86 0.33 0.22 1" contype="0" conaffinity="0" mass="0"/>
            </default>
          </default>
          <worldbody>
            <!-- nearer than the world's own: the marks are small -->
            <body name="looked_at" pos="{x} {y} 0.14"/>
            <camera name="front" pos="{x + 0.36} {y + 0.42} 0.4" fovy="38"
                    mode="targetbody" target="looked_at"/>
            <body name="bottle" pos="{x} {y} 0">
              <geom name="bottle" class="glass" fromto="0 0 0 0 0 0.072" size="0.034"/>
              <geom name="shoulder" class="glass" fromto="0 0 0.072 0 0 0.080" size="0.026"/>
              <geom name="neck" class="glass" fromto="0 0 0.080 0 0 0.102" size="0.016" contype="0"
                    conaffinity="0"/>
              <body name="collar">
                <geom class="mark" size="0.0075 0.0025 0.0015" pos="0.0262 0 0.0732"/>
                <geom class="mark" size="0.0025 0.0025 0.020" pos="0.0335 0 0.053"/>
              </body>
              <body name="cap" pos="0 0 {_CAP_Z_M}">
                <joint name="cap_turn" axis="0 0 -1" armature="0.01" frictionloss="0.15" damping="0.05"/>
                <!-- armatures: a constraint is as stiff as its parts are heavy, and threads do not give -->
                <joint name="cap_screw" type="slide" axis="0 0 -1" armature="10" damping="20"/>
                {flats}
                <geom class="mark" size="0.0120 0.0022 0.0012" pos="0.0125 0 {_CAP_HALF_M}"/>
                <geom class="mark" size="0.0012 0.0022 {_CAP_HALF_M}" pos="0.0246 0 0"/>
              </body>
            </body>
          </worldbody>
          <contact><exclude body1="bottle" body2="cap"/></contact>
          <equality>
            <joint joint1="cap_screw" joint2="cap_turn" polycoef="0 {_PITCH_M / (2 * math.pi)} 0 0 0"
                   solref="0.004 1" solimp="0.99 0.999 0.0001"/>
          </equality>
        </mujoco>"""

    def place(self, world: World, rng: np.random.Generator) -> None:
        x, y, _ = world.arm.workspace_center
        bottle = np.array((x, y, 0.0))
        bottle[:2] += rng.uniform(-_BOTTLE_RANGE_M, _BOTTLE_RANGE_M, 2)
        self._turn = math.radians(rng.uniform(*_TURN_DEG))
        begin = rng.uniform(-math.pi, math.pi)
        model = world.model
        # zero is the start; clockwise is positive, as for screws
        model.body_pos[world.body_id("bottle")] = bottle
        model.body_quat[world.body_id("cap")] = quat_from_axis_angle((0.0, 0.0, 1.0), begin)
        model.body_quat[world.body_id("collar")] = quat_from_axis_angle((0.0, 0.0, 1.0), begin - self._turn)
        start = np.array((x, y, _CAP_Z_M + 0.09)) + rng.uniform(-_START_RANGE_M, _START_RANGE_M, 3)
        turn = math.radians(rng.uniform(-_START_RANGE_DEG, _START_RANGE_DEG))
        yaw = world.arm.home[-1] - _WOUND_RAD + turn
        world.place_arm(start, quat_multiply(quat_from_axis_angle((0.0, 0.0, 1.0), yaw), DOWN))

    # ---- state

    def angle(self, world: World) -> float:
        """Rotation of the cap in radians, clockwise from above."""
        return float(world.data.joint("cap_turn").qpos[0])

    def remaining(self, world: World) -> float:
        return self._turn - self.angle(world)

    def solved(self, world: World) -> bool:
        near = abs(self.remaining(world)) <= math.radians(_TOLERANCE_DEG)
        return near and self.angle(world) >= math.pi

    def completion(self, world: World) -> float:
        towards, _ = self._offset(world)
        reach = max(0.0, 1.0 - float(np.linalg.norm(towards)) / 0.15)
        turned = 1.0 - min(abs(self.remaining(world)) / self._turn, 1.0)
        return 0.2 * max(reach, turned) + 0.8 * turned

    def metrics(self, world: World) -> Mapping[str, float]:
        towards, _ = self._offset(world)
        return {
            "distance_mm": 1e3 * float(np.linalg.norm(towards)),
            "angle_deg": math.degrees(self.remaining(world)),
        }

    def read_state(self, world: World) -> NDArray[np.float32]:
        towards, misaligned = self._offset(world)
        _, quat = world.tcp_pose()
        lean = self.in_reset_frame(np.cross(rotate(quat, (0.0, 0.0, 1.0)), (0.0, 0.0, -1.0)))
        holding = self._holding(world, towards)
        turn = misaligned if holding else self._grasp_turn(world, misaligned)
        angles = (-turn, self.remaining(world), self._room(world))
        return np.array((*self.in_reset_frame(towards), *lean[:2], *angles, holding), np.float32)

    def _offset(self, world: World) -> tuple[Vector, float]:
        """Vector from the TCP to the cap's center, and the counter-clockwise angle to the nearest flats."""
        position, quat = world.tcp_pose()
        cap = world.data.body("cap")
        opening = rotate(quat, (0.0, 1.0, 0.0))
        hand = math.atan2(opening[1], opening[0])
        flat = math.atan2(cap.xmat[4], cap.xmat[1])  # the cap's y axis: across the first pair of flats
        misaligned = (flat - hand + _SIDE / 2) % _SIDE - _SIDE / 2
        return cap.xpos - position, misaligned

    def _room(self, world: World) -> float:
        """Remaining clockwise range of the wrist in radians. Seen from above, this is the joint's positive direction."""
        return world.arm.upper[-1] - _SPARE_RAD - float(world.joint_positions()[-1])

    def _holding(self, world: World, towards: Vector) -> bool:
        near = abs(towards[2]) < 0.012 and math.hypot(towards[0], towards[1]) < 0.012
        return bool(near and world.gripper_opening() < _FLATS_M + 0.006)

    def _grasp_turn(self, world: World, misaligned: float) -> float:
        """The smallest rotation to flats from which the wrist can finish, or else do the most."""
        room = self._room(world)
        full = world.arm.upper[-1] - world.arm.lower[-1] - 2 * _SPARE_RAD
        # after a counter-clockwise rotation the range is room + turn, at most the whole range
        turns = [misaligned + k * _SIDE for k in range(-6, 7) if 0.0 <= room + misaligned + k * _SIDE <= full]
        enough = [turn for turn in turns if room + turn >= self.remaining(world)]
        return min(enough, key=abs) if enough else max(turns)

    # ---- expert

    def goal(self, world: World) -> Goal:
        position, quat = world.tcp_pose()
        towards, misaligned = self._offset(world)
        cap = position + towards
        remaining, room = self.remaining(world), self._room(world)
        lean = float(np.linalg.norm(rotate(quat, (0.0, 0.0, 1.0))[:2]))
        if lean > 0.35:  # remove the tilt first: rotating about a tilted axis moves the whole arm
            away = np.array((*position[:2], max(position[2], cap[2] + 2 * _HOVER_M)))
            return self._turned(away, quat, 0.0, gripper=1.0)
        if self._holding(world, towards):
            # release at the end of the wrist's range; otherwise rotate and let the fingers center themselves
            spent = room < 0.02 and remaining > math.radians(2.0)
            middle = np.array((cap[0], cap[1], position[2]))  # no force along the screw
            return self._turned(middle, quat, -remaining if room > 0.0 else 0.0, gripper=float(spent))
        turn = self._grasp_turn(world, misaligned)
        useful = room >= min(remaining, _MIN_GRIP_RAD)
        if useful and abs(turn) > 0.5 * _SIDE + 1e-6 and abs(misaligned) < 0.1 and abs(towards[2]) < 0.012:
            turn = misaligned  # already at flats with enough range: use them
        aside = math.hypot(towards[0], towards[1])
        # the funnel is wider inside, so that noise does not make it switch back and forth
        inside = towards[2] > -0.75 * _HOVER_M
        lined_up = aside < (0.012 if inside else 0.006) and abs(turn) < (0.15 if inside else 0.08)
        if not lined_up:
            above = cap + np.array((0.0, 0.0, _HOVER_M))
            if aside > 0.012 and towards[2] > -0.6 * _HOVER_M and aside < 0.07:
                above[:2] = position[:2]  # move up first: the cap is between or beside the fingers
            return self._turned(above, quat, turn, gripper=1.0)
        down = abs(towards[2]) < 0.006 or (abs(towards[2]) < 0.012 and world.gripper_opening() < 0.07)
        return self._turned(cap, quat, turn, gripper=0.0 if down and aside < 0.008 else 1.0)

    @staticmethod
    def _turned(position: Vector, quat: Vector, turn: float, *, gripper: float) -> Goal:
        """The upright gripper at a position, rotated counter-clockwise from its current heading.

        At most a radian is asked for at once: which way round to go is for the wrist's range to say, while
        two orientations alone would suggest the shorter way.
        """
        opening = rotate(quat, (1.0, 0.0, 0.0))
        yaw = math.atan2(opening[1], opening[0]) + min(max(turn, -1.0), 1.0)
        upright = quat_multiply(quat_from_axis_angle((0.0, 0.0, 1.0), yaw), np.array(DOWN))
        return Goal(position=position, quat=upright, gripper=gripper)
