"""Model robots that execute commands after a delay, at once and completely. They are not simulated robots for the filter."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dovetail.config.safety import Workspace
from dovetail.core.clock import NS_PER_S
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Array, Observation

HZ = 10.0
TICK_NS = round(NS_PER_S / HZ)
BOX = Workspace(low=(0.3, -0.2, 0.05), high=(0.6, 0.2, 0.4))
START = np.array((0.45, 0.0, 0.2))
TURNED = np.array((0.8, 0.36, -0.48, 0.0))  # a rotated reset pose
POSE = ("x", "y", "z", "rx", "ry", "rz")


def rotation(quat: Array) -> Array:
    w, v = float(quat[0]), np.asarray(quat[1:], np.float64)
    cross = np.array(((0, -v[2], v[1]), (v[2], 0, -v[0]), (-v[1], v[0], 0)))
    return np.asarray((w * w - v @ v) * np.eye(3) + 2 * np.outer(v, v) + 2 * w * cross)


def joints(name: str, measured: str, num: int = 2) -> ActionPart:
    axes = tuple(f"{name}_{i}" for i in range(num))
    return ActionPart(
        name=name,
        kind="joint_target",
        unit="rad",
        names=axes,
        low=(-1.0,) * num,
        high=(1.0,) * num,
        max_speed=(1.0,) * num,
        measured=measured,
    )


def cartesian(name: str, kind: str, measured: str, frame: str) -> ActionPart:
    is_delta = kind == "ee_delta"
    return ActionPart(
        name=name,
        kind=kind,
        unit="m+rad",
        names=tuple(f"{name}_{axis}" for axis in POSE),
        low=(-0.02,) * 3 + (-0.1,) * 3 if is_delta else (-1.0,) * 3 + (-4.0,) * 3,
        high=(0.02,) * 3 + (0.1,) * 3 if is_delta else (1.0,) * 3 + (4.0,) * 3,
        max_speed=(0.15,) * 3 + (0.8,) * 3,
        hold="zero" if is_delta else "measured",
        frame=frame,
        measured=measured,
    )


GRIPPER = ActionPart(
    name="gripper",
    kind="gripper",
    unit="1",
    names=("grip",),
    low=(0.0,),
    high=(1.0,),
    max_speed=(2.0,),
    hold="last",
)
BASE = ActionPart(
    name="base", kind="velocity", unit="m/s", names=("vx", "vy"), low=(-0.5, -0.1), high=(0.5, 0.1), hold="zero"
)
JOINT_VELOCITIES = replace(BASE, name="arm", kind="joint_velocity", unit="rad/s", names=("j1", "j2"))
TOOL_VELOCITY = ActionPart(
    name="tool",
    kind="ee_velocity",
    unit="m/s",
    names=("x", "y", "z"),
    low=(-0.5, -0.1, -0.2),
    high=(0.5, 0.1, 0.2),
    hold="zero",
    frame="tool",
)


@dataclass(kw_only=True)
class Layout:
    """A model robot: its parts, and whether the workspace and the servo reference are known."""

    parts: tuple[ActionPart, ...]
    box: bool = False
    reference: bool = False
    safety: dict[str, Any] = field(default_factory=dict)


LAYOUTS = {
    "joints": Layout(parts=(joints("arm", "joint_pos"),)),
    "deltas": Layout(parts=(cartesian("arm", "ee_delta", "ee_pose", "reset"),)),
    "deltas in a box": Layout(parts=(cartesian("arm", "ee_delta", "ee_pose", "reset"),), box=True),
    "deltas in a box, reference": Layout(
        parts=(cartesian("arm", "ee_delta", "ee_pose", "reset"),), box=True, reference=True
    ),
    "targets in a box": Layout(parts=(cartesian("arm", "ee_target", "ee_pose", "base"),), box=True),
    "joint velocities": Layout(parts=(JOINT_VELOCITIES, GRIPPER)),
    "tool velocity": Layout(parts=(joints("arm", "joint_pos"), TOOL_VELOCITY)),
    "mobile": Layout(parts=(BASE, joints("arm", "joint_pos"), GRIPPER)),
    "two arms": Layout(
        parts=(
            cartesian("left", "ee_delta", "ee_pose[0:7]", "reset"),
            GRIPPER,
            cartesian("right", "ee_delta", "ee_pose[7:14]", "base"),
        ),
        box=True,
    ),
}


class DelayedRobot:
    """Executes each command `delay_ns` after it arrives. Deltas add up."""

    def __init__(self, layout: Layout, *, delay_ns: int) -> None:
        self.layout, self.delay_ns = layout, delay_ns
        arms = [part for part in layout.parts if part.frame and not part.is_velocity]
        observation = {}
        if arms:
            observation["ee_pose"] = ArraySpec(shape=(7 * len(arms),))
        if any(part.kind == "joint_target" for part in layout.parts):
            observation["joint_pos"] = ArraySpec(shape=(2,))
        if layout.reference:
            observation["ee_error"] = ArraySpec(shape=(6 * len(arms),))
        self.spec = RobotSpec(
            name="model", embodiment="model", observation=observation, parts=layout.parts, control_hz=HZ
        )
        self.now_ns = 0
        self.joints = np.zeros(2)
        self.positions = [START.copy() for _ in arms]
        self.targets = [START.copy() for _ in arms]  # of the servos: all deltas that arrived
        speeds = [part.max_speed for part in layout.parts if part.is_velocity]
        self.max_velocity = np.array(speeds[0] if speeds else ())
        self.velocity: Array = np.zeros(self.max_velocity.shape)
        self.frames = [rotation(TURNED) if part.frame == "reset" else np.eye(3) for part in arms]
        self.queue: deque[tuple[int, Array]] = deque()
        self.sent: list[tuple[int, Array]] = []
        self.num_stops = 0
        self.history: list[tuple[int, dict[str, Array]]] = []
        self._record()

    def observe(self) -> Observation:
        return Observation(time_ns=self.now_ns, values=self._values())

    def send(self, action: Array) -> Array:
        self.sent.append((self.now_ns, action.copy()))
        self.queue.append((self.now_ns + self.delay_ns, action.copy()))
        for number, (part, at) in enumerate(self._arms()):
            if part.kind == "ee_delta":
                self.targets[number] = self.targets[number] + self.frames[number] @ action[at][:3]
        self._execute()
        return action

    def stop(self) -> None:
        self.num_stops += 1
        self.queue.clear()
        self.velocity = np.zeros(self.max_velocity.shape)
        self.targets = [position.copy() for position in self.positions]

    def pass_time(self, duration_ns: int) -> None:
        """For the clock. The name is not `advance`, so that the filter treats it as a real robot."""
        self.now_ns += duration_ns
        self._execute()
        self._record()

    def _arms(self) -> list[tuple[ActionPart, slice]]:
        arms = [part for part in self.layout.parts if part.frame and not part.is_velocity]
        return [(part, self.spec.slice_of(part.name)) for part in arms]

    def _execute(self) -> None:
        while self.queue and self.queue[0][0] <= self.now_ns:
            _, action = self.queue.popleft()
            for number, (part, at) in enumerate(self._arms()):
                moved = self.frames[number] @ action[at][:3].astype(np.float64)
                if part.kind == "ee_delta":
                    self.positions[number] = self.positions[number] + moved
                else:
                    self.positions[number] = moved
            for part in self.layout.parts:
                values = action[self.spec.slice_of(part.name)].astype(np.float64)
                if part.kind == "joint_target":
                    self.joints = values
                elif part.is_velocity:
                    self.velocity = values

    def _values(self) -> dict[str, Array]:
        values: dict[str, Array] = {}
        if "joint_pos" in self.spec.observation:
            values["joint_pos"] = self.joints.astype(np.float32)
        if self.positions:
            turns = [TURNED if part.frame == "reset" else (1.0, 0.0, 0.0, 0.0) for part, _ in self._arms()]
            poses = [np.concatenate(pair) for pair in zip(self.positions, turns, strict=True)]
            values["ee_pose"] = np.concatenate(poses).astype(np.float32)
        if self.layout.reference:
            ahead = [
                np.concatenate((frame.T @ (target - position), np.zeros(3)))
                for frame, target, position in zip(self.frames, self.targets, self.positions, strict=True)
            ]
            values["ee_error"] = np.concatenate(ahead).astype(np.float32)
        return values

    def _record(self) -> None:
        self.history = [*self.history[-50:], (self.now_ns, self._values())]
