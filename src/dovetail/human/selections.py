"""What the axes of a device move. A person chooses a selection: an arm, one of its joints, or the base.

Devices have the axes `AXES`. A selection maps axes of a drive command (`human.axes`) to them. All others stand still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.core.errors import UsageError, did_you_mean
from dovetail.core.specs import ActionPart, RobotSpec
from dovetail.human.axes import AxisMapping, cartesian_slice, known_kinematics
from dovetail.human.drive_settings import DriveConfig

__all__ = ["AXES", "Chooser", "Selection", "base_axes", "driven_parts", "gripper_of", "selections"]

AXES = ("dx", "dy", "dz", "drx", "dry", "drz", "gripper", "base_x", "base_y", "base_turn")
"""Axes of devices: the arm in the robot's base frame, the gripper, and a mobile base."""
_CARTESIAN = ("ee_delta", "ee_velocity", "ee_target")
_JOINTS = ("joint_target", "joint_velocity")
_BASE = {  # by unit and number of axes: forward, left, turn
    ("m/s+rad/s", 3): ("base_x", "base_y", "base_turn"),
    ("m/s+rad/s", 2): ("base_x", "base_turn"),
    ("m/s", 2): ("base_x", "base_y"),
    ("m/s", 1): ("base_x",),
    ("rad/s", 1): ("base_turn",),
}
_ARM_AXIS_FOR_BASE = {"base_x": "dx", "base_y": "dy", "base_turn": "drz"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the device moves while this is chosen."""

    part: str
    label: str  # for people
    joint: int  # number of the joint in its part, from 1; 0: the whole arm or base
    axes: Mapping[int, int]  # axis of the drive command: axis of the device


def selections(
    robot: RobotSpec, config: DriveConfig, *, name: str, joints_at_once: int = 1
) -> tuple[Selection, ...]:
    """All selections of a robot, the arms first. Raises UsageError for a robot that devices cannot drive.

    `joints_at_once` is the number of joints that the device moves without a choice: its first axes.
    """
    driven = driven_parts(robot, config.part, name=name)
    problem = AxisMapping(robot, parts=driven).refusal
    if problem is not None:
        raise UsageError(f"operator '{name}' cannot drive robot '{robot.name}', which {problem}")
    cartesian = known_kinematics(robot, config.known_arms)
    parts = [part for part in robot.parts if not driven or part.name in driven]
    bases = [part for part in parts if part.kind == "velocity"]
    arms = [part for part in parts if part.kind in (*_CARTESIAN, *_JOINTS)]
    found: list[Selection] = []
    for part in arms:
        extra = _grippers(robot, part, driven) | (_base(robot, bases[0], name=name, by_arm=False) if bases else {})
        found += [
            Selection(part=part.name, label=label, joint=joint, axes=axes | extra)
            for label, joint, axes in _arm(robot, part, part.name in cartesian, joints_at_once)
        ]
    for part in bases:
        axes = _base(robot, part, name=name, by_arm=True)
        axes = axes if arms else axes | _grippers(robot, None, driven)
        found.append(Selection(part=part.name, label=part.name, joint=0, axes=axes))
    if not found:
        kinds = ", ".join(dict.fromkeys(part.kind for part in parts)) or robot.action_kind
        raise UsageError(
            f"operator '{name}' drives arms and bases, but robot '{robot.name}' takes {kinds} actions. "
            "Use another operator"
        )
    return tuple(found)


def driven_parts(robot: RobotSpec, part: str | None, *, name: str) -> tuple[str, ...]:
    """The parts of an operator that drives `part`: it and its gripper. Empty: the whole robot."""
    if part is None:
        return ()
    movable = [one.name for one in robot.parts if one.kind != "gripper"]
    if part not in movable:
        raise UsageError(
            f"operator '{name}': robot '{robot.name}' has no arm or base '{part}', only {', '.join(movable)}."
            + did_you_mean(part, movable)
        )
    grippers = [one.name for one in robot.parts if one.kind == "gripper" and gripper_of(robot, one) == part]
    return (part, *grippers)


def gripper_of(robot: RobotSpec, gripper: ActionPart) -> str | None:
    """The arm that a gripper belongs to: the arm of the same number, or the last arm before it. None: there is no arm."""
    arms = [part for part in robot.parts if part.kind in (*_CARTESIAN, *_JOINTS)]
    grippers = [part for part in robot.parts if part.kind == "gripper"]
    if len(arms) == len(grippers):
        return arms[grippers.index(gripper)].name
    before = [arm for arm in arms if robot.slice_of(arm.name).start < robot.slice_of(gripper.name).start]
    return before[-1].name if before else arms[0].name if arms else None


def base_axes(part: ActionPart) -> tuple[str, ...] | None:
    """The axes of a device that drive a mobile base; None if it has other axes than forward, left and turn."""
    names = _BASE.get((part.unit, part.num_axes))
    return None if names is None else tuple(_ARM_AXIS_FOR_BASE[axis] for axis in names)


def _arm(
    robot: RobotSpec, part: ActionPart, has_kinematics: bool, joints_at_once: int
) -> list[tuple[str, int, dict[int, int]]]:
    """Label, joint and axes of each selection."""
    first = robot.slice_of(part.name).start
    if part.kind in _CARTESIAN:
        return [(part.name, 0, {first + axis: axis for axis in range(part.num_axes)})]
    found: list[tuple[str, int, dict[int, int]]] = []
    if has_kinematics:
        start = cartesian_slice(robot, part.name).start
        found.append((part.name, 0, {start + axis: axis for axis in range(6)}))
    for joint in range(0, part.num_axes, joints_at_once):
        moved = range(joint, min(joint + joints_at_once, part.num_axes))
        names = part.names or tuple(str(number + 1) for number in range(part.num_axes))
        label = names[joint] if len(moved) == 1 else f"{names[joint]} to {names[moved[-1]]}"
        axes = {first + at: device for device, at in enumerate(moved)}
        found.append((f"{part.name}, joint {label}", joint + 1, axes))
    return found


def _grippers(robot: RobotSpec, arm: ActionPart | None, driven: Sequence[str]) -> dict[int, int]:
    """The only gripper moves whichever arm is chosen, such as a lift below the arm; one of several with its own arm."""
    name = None if arm is None else arm.name
    grippers = [part for part in robot.parts if part.kind == "gripper" and (not driven or part.name in driven)]
    return {
        axis: AXES.index("gripper")
        for part in grippers
        if len(grippers) == 1 or gripper_of(robot, part) == name
        for axis in range(robot.slice_of(part.name).start, robot.slice_of(part.name).stop)
    }


def _base(robot: RobotSpec, part: ActionPart, *, name: str, by_arm: bool) -> dict[int, int]:
    """`by_arm`: driven by the axes of the arm."""
    axes = _BASE.get((part.unit, part.num_axes))
    if axes is None:
        raise UsageError(
            f"operator '{name}' cannot drive part '{part.name}' of robot '{robot.name}': expected forward, left and "
            f"turn, or fewer, but it has {part.num_axes} axes in {part.unit}"
        )
    used = tuple(_ARM_AXIS_FOR_BASE[axis] for axis in axes) if by_arm else axes
    first = robot.slice_of(part.name).start
    return {first + at: AXES.index(axis) for at, axis in enumerate(used)}


class Chooser:
    """The selection that a person has chosen. It starts with the first one."""

    def __init__(self, options: Sequence[Selection]) -> None:
        self._options, self._index = options, 0

    @property
    def chosen(self) -> Selection:
        return self._options[self._index]

    def move(self, num_steps: int) -> None:
        """Choose the next selection, or the previous one."""
        self._index = (self._index + num_steps) % len(self._options)

    def move_part(self, num_steps: int) -> None:
        """Choose the first selection of the next arm or base, or of the previous one."""
        parts = list(dict.fromkeys(option.part for option in self._options))
        wanted = parts[(parts.index(self.chosen.part) + num_steps) % len(parts)]
        self._index = next(at for at, option in enumerate(self._options) if option.part == wanted)

    def choose(self, number: int) -> bool:
        """Choose joint `number` of the chosen arm, from 1; 0 is the whole arm. False: there is none, nothing happens."""
        for at, option in enumerate(self._options):
            if (option.part, option.joint) == (self.chosen.part, number):
                self._index = at
                return True
        return False

    def describe(self) -> str:
        """What can be chosen, for people: the joints of the chosen part, and the other parts."""
        part = self.chosen.part
        joints = [str(option.joint) for option in self._options if option.part == part and option.joint]
        others = [name for name in dict.fromkeys(option.part for option in self._options) if name != part]
        numbers = joints[0] if len(joints) == 1 else f"{joints[0]} to {joints[-1]}" if joints else "none"
        return f"joints of '{part}': {numbers}" + (f"; other parts: {', '.join(others)}" if others else "")
