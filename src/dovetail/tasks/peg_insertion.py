"""A square peg, held between the fingers by friction alone, into a square hole with 1 mm of play a side."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from dovetail.core.errors import RobotError
from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.rotations import (
    quat_conjugate,
    quat_from_rotvec,
    quat_multiply,
    quat_to_matrix,
    quat_to_rotvec,
    rotate,
)
from dovetail.robots.sim.world import DOWN, World
from dovetail.tasks.base import Goal, SimTask, SimTaskConfig, Vector

__all__ = ["Insertion", "InsertionConfig", "PegInsertion"]

_SETTLE_SUBSTEPS = 60  # 0.12 s: the gripper's squeeze has built up and the tool hangs still
_LOST_M, _LOST_RAD = 0.012, 0.35  # a tool that moved this far between the pads is no longer held
_SOCKET_YAW_DEG = 10.0  # the socket is turned by up to this


class InsertionConfig(SimTaskConfig):
    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(("socket_yaw_deg",), "it is a constant of the task now")

    start_range_m: float = Field(0.03, ge=0.0, le=0.05)
    """How far the tool's tip may start beside the socket, in x and in y."""
    start_height_m: tuple[float, float] = (0.025, 0.05)
    """How high the tool's tip may start over the socket's face: from, to."""
    start_yaw_deg: float = Field(10.0, ge=0.0, le=30.0)
    """How far the hand may be turned against the socket at the start."""
    start_tilt_deg: float = Field(3.0, ge=0.0, le=10.0)
    """How far the hand may lean at the start, about x and about y."""
    socket_range_m: float = Field(0.03, ge=0.0, le=0.05)
    """How far the socket's own place is moved, in x and in y."""
    hidden_offset_m: float = Field(0.0, ge=0.0, le=0.005)
    """How far the socket may be from where `task_state` says it is, in x and in y, another in each episode. Nobody is told;
    only the expert, who stands for a person, sees the true one."""


class Fit(NamedTuple):
    """The tool as the socket sees it: its z points into the hole, so z is depth, negative while above."""

    position: Vector  # [3] m, the tip against the middle of the socket's face
    rotvec: Vector  # [3] rad, how the tool is turned against a perfect fit
    worst_m: float  # how far the worst corner of the tip is beside its place, along x or y
    depth_m: float  # how deep the shallowest corner is

    def inside(self, clearance_m: float) -> bool:
        """Whether the tip is in the hole: below the face, and no further aside than the hole lets it be."""
        return self.depth_m > 5e-4 and self.worst_m < clearance_m + 5e-4


class Insertion(SimTask):
    """A held tool into a fixed socket: all that a peg and a plug have in common.

    The scene has a free body `tool` and a body `socket` without a joint. Both frames have z along the
    insertion; the tool's lies in the middle of its tip, the socket's in the middle of its face. A tool that
    is only just about to enter, perfectly aligned, has the socket's very frame.
    """

    Config: ClassVar[type[InsertionConfig]] = InsertionConfig
    fixed_gripper: ClassVar[float | None] = 0.0
    """The tool stays in the hand, so the gripper is no part of the action."""
    state_names: ClassVar[tuple[str, ...]] = (
        *(f"tip_{axis}" for axis in "xyz"),  # from the tip to the socket's face, m
        *(f"turn_{axis}" for axis in "xyz"),  # from the tool's orientation to the fitting one, rad
        *(f"socket_r{axis}" for axis in "xyz"),  # the socket's orientation: which way "beside" and "down" are
        "depth",  # m, 0 unless in the hole
    )

    tip_m: ClassVar[float] = 0.045  # from the TCP to the tool's tip
    width_m: ClassVar[float] = 0.020  # of the tool's handle, between the pads
    clearance_m: ClassVar[float]  # on each side
    face_m: ClassVar[float]  # the socket's face over the table
    success_depth_m: ClassVar[float]
    goal_depth_m: ClassVar[float]  # where the expert pushes to: deeper, but not against the ground
    corners: ClassVar[Vector]  # [n, 3] of the tip, in the tool's frame
    handle_rgba: ClassVar[str]
    socket_rgba: ClassVar[str]

    def __init__(self, config: InsertionConfig) -> None:
        super().__init__(config)
        self._ranges = config
        self._first_way_m = 1.0
        self._hidden_m: Vector = np.zeros(
            3
        )  # from where the socket is to where it is said to be, in its own frame

    @abstractmethod
    def tool_xml(self) -> str:
        """The geoms of the tool below its handle."""

    @abstractmethod
    def socket_xml(self) -> str:
        """The geoms of the socket."""

    def xml(self, arm: Arm) -> str:
        return _XML.format(
            camera=_camera(arm),
            handle=self.handle_rgba,
            socket=self.socket_rgba,
            tool_geoms=self.tool_xml(),
            socket_geoms=self.socket_xml(),
            face_m=self.face_m,
        )

    # ---- how it starts

    def place(self, world: World, rng: np.random.Generator) -> None:
        for _ in range(20):
            try:
                self._place_once(world, rng)
                break
            except RobotError:  # out of this arm's reach: draw again
                continue
        else:
            raise RobotError(f"task '{self.name}': 20 draws gave no start in reach of arm '{world.arm.name}'")
        world.data.ctrl[world.gripper_ctrl] = 0.0  # squeeze, and keep squeezing: friction holds the tool
        world.advance(_SETTLE_SUBSTEPS)
        self._first_way_m = self._way_m(self.fit(world))

    def _place_once(self, world: World, rng: np.random.Generator) -> None:
        ranges = self._ranges
        x, y, _ = world.arm.workspace_center
        offset = rng.uniform(-ranges.socket_range_m, ranges.socket_range_m, 2)
        socket = np.array((x + offset[0], y + offset[1], self.face_m))
        turned = _yaw(rng.uniform(-1.0, 1.0) * math.radians(_SOCKET_YAW_DEG), DOWN)

        side = rng.uniform(-ranges.start_range_m, ranges.start_range_m, 2)
        tip = socket + np.array((side[0], side[1], rng.uniform(*ranges.start_height_m)))
        lean = np.append(rng.uniform(-1.0, 1.0, 2) * math.radians(ranges.start_tilt_deg), 0.0)
        hand = quat_multiply(
            quat_from_rotvec(lean), _yaw(rng.uniform(-1.0, 1.0) * math.radians(ranges.start_yaw_deg), turned)
        )
        opening = self.width_m / world.arm.max_opening_m
        world.place_arm(tip - rotate(hand, (0.0, 0.0, self.tip_m)), hand, gripper=opening)
        body = world.body_id("socket")
        world.model.body_pos[body], world.model.body_quat[body] = socket, turned
        position, quat = world.tcp_pose()
        world.set_free_body("tool", position + rotate(quat, (0.0, 0.0, self.tip_m)), quat)
        world.forward()
        if ranges.hidden_offset_m:  # drawn last: without it, resets are what they always were
            self._hidden_m[:2] = rng.uniform(-ranges.hidden_offset_m, ranges.hidden_offset_m, 2)

    # ---- what is true

    def fit(self, world: World) -> Fit:
        where, turned = world.body_pose("socket")
        tip, quat = world.body_pose("tool")
        inverse = quat_conjugate(turned)
        position = rotate(inverse, tip - where)
        relative = quat_multiply(inverse, quat)
        corners = position + self.corners @ quat_to_matrix(relative).T  # [n, 3]
        aside = np.abs(corners - self.corners)[:, :2]
        return Fit(position, quat_to_rotvec(relative), float(aside.max()), float(corners[:, 2].min()))

    def solved(self, world: World) -> bool:
        fit = self.fit(world)
        return fit.inside(self.clearance_m) and fit.depth_m >= self.success_depth_m

    def completion(self, world: World) -> float:
        return min(max(1.0 - self._way_m(self.fit(world)) / self._first_way_m, 0.0), 1.0)

    def _way_m(self, fit: Fit) -> float:
        """How far it still is: aside, turned (5 mm for 0.1 rad), above, and the depth not yet reached."""
        depth = min(max(fit.depth_m, 0.0), self.success_depth_m) if fit.inside(self.clearance_m) else 0.0
        above = max(-float(fit.position[2]), 0.0)
        return _aside_m(fit) + 0.05 * _angle(fit) + above + self.success_depth_m - depth

    def failed(self, world: World) -> bool:
        """The tool slipped out of the fingers: only a person could put it back."""
        offset, turn = self._slip(world)
        moved_m = math.dist(offset, (0.0, 0.0, self.tip_m))
        return moved_m > _LOST_M or math.hypot(*quat_to_rotvec(turn)) > _LOST_RAD

    def metrics(self, world: World) -> Mapping[str, float]:
        fit = self.fit(world)
        depth_m = fit.depth_m if fit.inside(self.clearance_m) else 0.0
        return {
            "distance_mm": 1e3 * float(np.linalg.norm(fit.position)),
            "angle_deg": math.degrees(_angle(fit)),
            "depth_mm": 1e3 * depth_m,
        }

    def read_state(self, world: World) -> NDArray[np.float32]:
        fit = self.fit(world)
        turned = world.body_pose("socket")[1]
        frame: Vector = self.reset_rotation.T @ quat_to_matrix(turned)
        # the part of a rotation matrix that is antisymmetric is axis times sine: smooth, and never wraps
        skew = frame - frame.T
        state = np.empty(len(self.state_names), np.float32)
        state[0:3] = -self.in_reset_frame(rotate(turned, fit.position - self._hidden_m))
        state[3:6] = -self.in_reset_frame(rotate(turned, fit.rotvec))
        state[6:9] = 0.5 * skew[2, 1], 0.5 * skew[0, 2], 0.5 * skew[1, 0]
        state[9] = max(fit.depth_m, 0.0) if fit.inside(self.clearance_m) else 0.0
        return state

    # ---- what an expert would do

    def goal(self, world: World) -> Goal:
        """Over the hole and aligned, then down; the better it is aligned, the lower, like a funnel."""
        fit = self.fit(world)
        aside, angle, depth = _aside_m(fit), _angle(fit), float(fit.position[2])
        error = max(aside / self.clearance_m, angle / math.radians(2.0))  # 1: the hole just lets it through
        target = np.array((0.0, 0.0, self.goal_depth_m))
        if fit.inside(self.clearance_m) and fit.depth_m > 1e-3:
            speed = 0.4
        elif depth > 2e-3 and aside > 4e-3:  # below the face, beside the socket: straight up first
            target[:] = fit.position[0], fit.position[1], -0.015
            speed = 0.6
        elif error < 0.7:
            speed = 0.2
        elif self._ranges.hidden_offset_m and depth > -1e-3 and aside < 6e-3:
            # on the face, where it was led by what is said of the socket: a person slides it on until it drops in
            target[2] = 1e-3
            speed = 0.2
        else:
            # as low as the alignment allows; if lower already it waits there, and lifts only off the face
            lowest = -min(0.003 + 0.002 * (error - 0.7), 0.012)
            target[2] = min(max(lowest, depth), -0.0015)
            speed = min(max(aside / 0.03, angle / 0.15, 0.15), 0.7)
        return self._hand_for(world, target, speed=speed)

    def _hand_for(self, world: World, target: Vector, *, speed: float) -> Goal:
        """The TCP's pose that brings the tip to `target` in the socket's frame, as the tool lies now."""
        where, turned = world.body_pose("socket")
        offset, turn = self._slip(world)
        quat = quat_multiply(turned, quat_conjugate(turn))
        position = where + rotate(turned, target) - rotate(quat, offset)
        if self.robot.action_kind == "ee_delta":
            # these actions add up to the servos' reference, which runs ahead of the arm: what is under way
            # already is taken off, or the hand would swing past the hole
            ahead, ahead_quat = world.kinematics.pose(world.joint_targets())
            here, here_quat = world.tcp_pose()
            position -= ahead - here
            quat = quat_multiply(quat_multiply(here_quat, quat_conjugate(ahead_quat)), quat)
        return Goal(position=position, quat=quat, gripper=0.0, speed=speed)

    def _slip(self, world: World) -> tuple[Vector, Vector]:
        """The tool's pose in the TCP's frame."""
        position, quat = world.tcp_pose()
        tip, tool = world.body_pose("tool")
        inverse = quat_conjugate(quat)
        return rotate(inverse, tip - position), quat_multiply(inverse, tool)


class PegInsertion(Insertion):
    """A peg of 18 x 18 mm, a hole of 20 x 20 mm and 30 mm deep."""

    name: ClassVar[str] = "peg_insertion"
    prompt: ClassVar[str] = "insert the square peg into the hole"

    clearance_m = 0.001
    face_m = 0.032
    success_depth_m = 0.020
    goal_depth_m = 0.026
    corners = 0.009 * np.array(((1.0, 1.0, 0.0), (1.0, -1.0, 0.0), (-1.0, 1.0, 0.0), (-1.0, -1.0, 0.0)))
    handle_rgba = "0.80 0.58 0.22 1"
    socket_rgba = "0.25 0.42 0.52 1"

    def tool_xml(self) -> str:
        return '<geom name="peg" pos="0 0 -0.0175" size="0.009 0.009 0.0175" rgba="0.95 0.76 0.36 1"/>'

    def socket_xml(self) -> str:
        return """
          <geom name="wall_front" pos="0.020 0 0.015" size="0.010 0.030 0.015"/>
          <geom name="wall_back" pos="-0.020 0 0.015" size="0.010 0.030 0.015"/>
          <geom name="wall_left" pos="0 0.020 0.015" size="0.010 0.010 0.015"/>
          <geom name="wall_right" pos="0 -0.020 0.015" size="0.010 0.010 0.015"/>
          <geom name="ground" pos="0 0 0.031" size="0.036 0.036 0.001" rgba="0.16 0.26 0.33 1"/>"""


def _aside_m(fit: Fit) -> float:
    return math.hypot(float(fit.position[0]), float(fit.position[1]))


def _angle(fit: Fit) -> float:
    return math.hypot(*fit.rotvec)


def _yaw(angle: float, quat: ArrayLike) -> Vector:
    """Turned by an angle about the vertical."""
    return quat_multiply(quat_from_rotvec((0.0, 0.0, angle)), quat)


def _camera(arm: Arm) -> str:
    """A `front` camera nearer than the world's: what happens here happens within a hand's breadth."""
    x, y, _ = arm.workspace_center
    eye, towards = (x + 0.34, y + 0.36, 0.30), np.array((-0.36, -0.36, -0.21))
    right = np.cross(towards, (0.0, 0.0, 1.0))
    up = np.cross(right, towards)
    axes = " ".join(f"{v:.5f}" for v in (*right, *up))
    return f'<camera name="front" pos="{eye[0]} {eye[1]} {eye[2]}" xyaxes="{axes}" fovy="42"/>'


# Metres; z points down, as in the TCP's frame. Smooth parts (friction 0.1, oiled steel) slide over the face instead of
# jamming on it, while on the handle the pads' own friction has priority. Collar, cap and rails stand out
# round the pads, with some play, as on tools made for grippers: friction carries the tool, and a hard push
# does not turn it out. Stiff contacts: a wrist can lever a thin blade through a soft wall.
_XML = """
<mujoco>
  <default>
    <default class="part">
      <geom type="box" condim="3" friction="0.1 0.005 0.0001" solref="0.004 1" solimp="0.98 0.999 0.0005"
        density="1200"/>
      <default class="handle"><geom rgba="{handle}"/></default>
      <default class="socket"><geom rgba="{socket}"/></default>
    </default>
  </default>
  <worldbody>
    {camera}
    <body name="tool" pos="0.3 0 0.3" quat="0 1 0 0" childclass="handle">
      <freejoint/>
      {tool_geoms}
      <geom name="handle" pos="0 0 -0.053" size="0.013 0.010 0.018"/>
      <geom name="collar" pos="0 0 -0.036" size="0.013 0.014 0.002"/>
      <geom name="cap" pos="0 0 -0.0725" size="0.013 0.014 0.0015"/>
      <geom name="rail_a" pos="0.0120 0 -0.0545" size="0.0012 0.014 0.0165"/>
      <geom name="rail_b" pos="-0.0120 0 -0.0545" size="0.0012 0.014 0.0165"/>
    </body>
    <body name="socket" pos="0.4 0 {face_m}" quat="0 1 0 0" childclass="socket">{socket_geoms}</body>
  </worldbody>
</mujoco>
"""
