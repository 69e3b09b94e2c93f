"""Insert a square peg, held by friction, into a square hole with 1 mm of clearance on each side."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from dovetail.tasks.base import Goal, SimTask, Vector
from dovetail.tasks.settings import InsertionConfig

__all__ = ["Insertion", "InsertionConfig", "PegInsertion"]

_SETTLE_SUBSTEPS = 60  # 0.12 s: until the grip force has built up and the tool is at rest
_LOST_M, _LOST_RAD = 0.012, 0.35  # a tool that slipped further is lost
_SOCKET_YAW_DEG = 10.0  # the socket is turned by up to this


class Fit(NamedTuple):
    """Pose of the tool in the socket's frame. z points into the hole: it is the depth, negative above the face."""

    position: Vector  # [3] m, of the tip relative to the middle of the socket's face
    rotvec: Vector  # [3] rad, of the tool relative to a perfect fit
    worst_m: float  # largest lateral error of the tip's corners, along x or y
    depth_m: float  # depth of the highest corner

    def inside(self, clearance_m: float) -> bool:
        """Whether the tip is in the hole: below the face and within the clearance."""
        return self.depth_m > 5e-4 and self.worst_m < clearance_m + 5e-4


class Insertion(SimTask):
    """Insert a held tool into a fixed socket: the base of peg and charger.

    The scene has a free body `tool` and a body `socket` without a joint. In both frames z is the direction of insertion.
    The tool's origin is the middle of its tip, the socket's the middle of its face. The frames coincide when an aligned
    tool touches the face.
    """

    Config: ClassVar[type[InsertionConfig]] = InsertionConfig
    fixed_gripper: ClassVar[float | None] = 0.0
    """The gripper keeps the tool, so the action has no gripper axis."""
    state_names: ClassVar[tuple[str, ...]] = (
        *(f"tip_{axis}" for axis in "xyz"),  # from the tip to the socket's face, m
        *(f"turn_{axis}" for axis in "xyz"),  # from the tool's orientation to the fitting one, rad
        *(f"socket_r{axis}" for axis in "xyz"),  # the socket's orientation
        "depth",  # m, 0 unless in the hole
    )

    tip_m: ClassVar[float] = 0.045  # from the TCP to the tool's tip
    width_m: ClassVar[float] = 0.020  # of the tool's handle, between the pads
    clearance_m: ClassVar[float]  # on each side
    face_m: ClassVar[float]  # the socket's face over the table
    success_depth_m: ClassVar[float]
    goal_depth_m: ClassVar[float]  # the expert's target: deeper, but above the ground
    corners: ClassVar[Vector]  # [n, 3] of the tip, in the tool's frame
    handle_rgba: ClassVar[str]
    socket_rgba: ClassVar[str]

    def __init__(self, config: InsertionConfig) -> None:
        super().__init__(config)
        self._ranges = config
        self._first_remaining_m = 1.0
        self._hidden_m: Vector = np.zeros(3)  # error of the reported position, in the socket's frame

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

    # ---- reset

    def place(self, world: World, rng: np.random.Generator) -> None:
        for _ in range(20):
            try:
                self._place_once(world, rng)
                break
            except RobotError:  # out of reach: try again
                continue
        else:
            raise RobotError(
                f"task '{self.name}': no start pose in reach of arm '{world.arm.name}' in 20 attempts"
            )
        world.data.ctrl[world.gripper_ctrl] = 0.0  # keep squeezing: friction holds the tool
        world.advance(_SETTLE_SUBSTEPS)
        self._first_remaining_m = self._remaining_m(self.fit(world))

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
        if ranges.hidden_offset_m:  # drawn last, so that it does not change the other random numbers
            self._hidden_m[:2] = rng.uniform(-ranges.hidden_offset_m, ranges.hidden_offset_m, 2)

    # ---- state

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
        return min(max(1.0 - self._remaining_m(self.fit(world)) / self._first_remaining_m, 0.0), 1.0)

    def _remaining_m(self, fit: Fit) -> float:
        """Remaining distance: lateral error, angle (5 mm per 0.1 rad), height above the face, missing depth."""
        depth = min(max(fit.depth_m, 0.0), self.success_depth_m) if fit.inside(self.clearance_m) else 0.0
        above = max(-float(fit.position[2]), 0.0)
        return _lateral_m(fit) + 0.05 * _angle(fit) + above + self.success_depth_m - depth

    def failed(self, world: World) -> bool:
        """Whether the tool slipped out of the fingers."""
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
        # the antisymmetric part of a rotation matrix is axis times sine: smooth, without wrapping
        skew = frame - frame.T
        state = np.empty(len(self.state_names), np.float32)
        state[0:3] = -self.in_reset_frame(rotate(turned, fit.position - self._hidden_m))
        state[3:6] = -self.in_reset_frame(rotate(turned, fit.rotvec))
        state[6:9] = 0.5 * skew[2, 1], 0.5 * skew[0, 2], 0.5 * skew[1, 0]
        state[9] = max(fit.depth_m, 0.0) if fit.inside(self.clearance_m) else 0.0
        return state

    # ---- expert

    def goal(self, world: World) -> Goal:
        """Move over the hole and align, then down. The better the alignment, the lower, like a funnel."""
        fit = self.fit(world)
        aside, angle, depth = _lateral_m(fit), _angle(fit), float(fit.position[2])
        error = max(aside / self.clearance_m, angle / math.radians(2.0))  # 1: just fits the hole
        target = np.array((0.0, 0.0, self.goal_depth_m))
        if fit.inside(self.clearance_m) and fit.depth_m > 1e-3:
            speed = 0.4
        elif depth > 2e-3 and aside > 4e-3:  # below the face and beside the socket: move up first
            target[:] = fit.position[0], fit.position[1], -0.015
            speed = 0.6
        elif error < 0.7:
            speed = 0.2
        elif self._ranges.hidden_offset_m and depth > -1e-3 and aside < 6e-3:
            # on the face, at the reported position: slide until it drops in
            target[2] = 1e-3
            speed = 0.2
        else:
            # as low as the alignment allows; if already lower, stay there, but lift off the face
            lowest = -min(0.003 + 0.002 * (error - 0.7), 0.012)
            target[2] = min(max(lowest, depth), -0.0015)
            speed = min(max(aside / 0.03, angle / 0.15, 0.15), 0.7)
        return self._goal_for(world, target, speed=speed)

    def _goal_for(self, world: World, target: Vector, *, speed: float) -> Goal:
        """The TCP pose that brings the tip to `target` in the socket's frame, for the current grasp."""
        where, turned = world.body_pose("socket")
        offset, turn = self._slip(world)
        quat = quat_multiply(turned, quat_conjugate(turn))
        position = where + rotate(turned, target) - rotate(quat, offset)
        if self.robot.action_kind == "ee_delta":
            # actions add to the servo reference, which leads the arm: subtract the pending motion to avoid overshoot
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


def _lateral_m(fit: Fit) -> float:
    return math.hypot(float(fit.position[0]), float(fit.position[1]))


def _angle(fit: Fit) -> float:
    return math.hypot(*fit.rotvec)


def _yaw(angle: float, quat: ArrayLike) -> Vector:
    """Rotate by an angle about the vertical axis."""
    return quat_multiply(quat_from_rotvec((0.0, 0.0, angle)), quat)


def _camera(arm: Arm) -> str:
    """A `front` camera close to the socket."""
    x, y, _ = arm.workspace_center
    eye, towards = (x + 0.34, y + 0.36, 0.30), np.array((-0.36, -0.36, -0.21))
    right = np.cross(towards, (0.0, 0.0, 1.0))
    up = np.cross(right, towards)
    axes = " ".join(f"{v:.5f}" for v in (*right, *up))
    return f'<camera name="front" pos="{eye[0]} {eye[1]} {eye[2]}" xyaxes="{axes}" fovy="42"/>'


# Meters; z points down, as in the TCP's frame. Low friction (0.1, oiled steel) lets parts slide over the face instead of
# jamming. On the handle, the friction of the pads has priority. Collar, cap and rails surround the pads with some play:
# friction carries the tool, and a hard push does not rotate it out. Contacts are stiff, because the wrist could push a
# thin blade through a soft wall.
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
