"""Axes of a device become an action, part by part: an axis at 0 stands still, and nothing leaves the limits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import UsageError
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Observation
from dovetail.human.axes import AxisMapping, num_drive_axes
from dovetail.human.drive_settings import DriveConfig
from dovetail.human.gamepad import ABS_RX, ABS_X, ABS_Y, ABS_Z, GamepadConfig
from dovetail.human.selections import AXES, Chooser, selections
from dovetail.testing.input_devices import EmulatedGamepad, EmulatedGamepadOperator
from support.input_hands import settle

HALF_TURN = (0.0, 0.0, 0.0, 1.0)  # about z: w, x, y, z
OBSERVATION = Observation(
    time_ns=0,
    values={
        "joint_pos": np.array((0.3, -0.2), np.float32),
        "pose": np.array((0.1, 0.2, 0.3, *HALF_TURN), np.float32),
        "opening": np.array((0.02,), np.float32),
    },
)
ARM = ActionPart(
    name="arm", kind="joint_target", unit="rad", names=("j1", "j2"), low=(-2.0, -2.0), high=(2.0, 2.0),
    max_speed=(1.0, 0.5), measured="joint_pos",
)  # fmt: skip
GRIPPER = ActionPart(
    name="gripper", kind="gripper", unit="m", names=("opening",), low=(0.0,), high=(0.08,), max_speed=(0.1,),
    hold="last", measured="opening",
)  # fmt: skip
BASE = ActionPart(
    name="base", kind="velocity", unit="m/s+rad/s", names=("vx", "vy", "wz"), low=(-0.2, -0.3, -0.5), high=(0.4, 0.3, 0.5),
    hold="zero",
)  # fmt: skip


def hand(frame="base", kind="ee_delta", unit="m+rad", name="hand"):
    names = tuple(f"{name}_{axis}" for axis in AXES[:6])
    limits = (0.01,) * 3 + (0.1,) * 3
    return ActionPart(
        name=name, kind=kind, unit=unit, names=names, low=tuple(-x for x in limits), high=limits, max_speed=(0.5,) * 6,
        hold="zero", frame=frame, measured="pose",
    )  # fmt: skip


def robot(*parts):
    shapes = {key: ArraySpec(shape=value.shape) for key, value in OBSERVATION.values.items()}
    return RobotSpec(name="rig", embodiment="rig", observation=shapes, control_hz=20.0, parts=parts)


def drive(mapping, **moves):
    """The action for named axes of the action."""
    names = mapping._robot.action.names
    axes = np.zeros(len(names), np.float32)
    for name, value in moves.items():
        axes[names.index(name)] = value
    return dict(zip(names, mapping.action(axes, OBSERVATION).tolist(), strict=True))


def begun(spec, **settings):
    mapping = AxisMapping(spec, **settings)
    mapping.begin()
    mapping.observe(OBSERVATION)
    return mapping


def test_arm_gripper_and_base_are_driven_by_part():
    action = drive(begun(robot(ARM, GRIPPER, BASE)), j2=1.0, opening=-1.0, vx=1.0, wz=-1.0)
    assert action["j1"] == pytest.approx(0.3)
    assert action["j2"] == pytest.approx(-0.2 + 0.5 / 20.0)
    assert action["opening"] == 0.0
    assert (action["vx"], action["vy"], action["wz"]) == pytest.approx((0.4, 0.0, -0.5))


def test_gripper_is_kept_until_it_is_commanded_and_again_after_a_release():
    mapping = begun(robot(ARM, GRIPPER))
    assert mapping.keeps.tolist() == [False, False, True]
    drive(mapping, j1=1.0, opening=0.4)
    assert mapping.keeps.tolist() == [False, False, True]
    drive(mapping, opening=-1.0)
    drive(mapping)
    assert not mapping.keeps.any()
    mapping.release()
    assert mapping.keeps.tolist() == [False, False, True]


def test_axis_at_zero_stands_still_although_its_limits_are_not_symmetric():
    mapping = begun(robot(BASE), speed=0.5)
    assert drive(mapping) == {"vx": 0.0, "vy": 0.0, "wz": 0.0}
    assert drive(mapping, vx=-1.0)["vx"] == pytest.approx(-0.1)
    assert drive(mapping, vx=1.0)["vx"] == pytest.approx(0.2)


def test_joint_that_is_not_moved_keeps_its_target_while_it_sags():
    mapping = begun(robot(ARM))
    drive(mapping)
    lower = Observation(time_ns=1, values={"joint_pos": np.array((0.25, -0.3), np.float32)})
    assert mapping.action(np.zeros(2), lower).tolist() == pytest.approx((0.3, -0.2))
    mapping.release()
    assert mapping.action(np.zeros(2), lower).tolist() == pytest.approx((0.25, -0.3))


@pytest.mark.parametrize(("frame", "forward"), [("base", 0.01), ("reset", -0.01), ("tool", -0.01)])
def test_motion_is_rotated_into_the_frame_of_the_part(frame, forward):
    action = drive(begun(robot(hand(frame))), hand_dx=1.0)
    assert (action["hand_dx"], action["hand_dy"]) == pytest.approx((forward, 0.0), abs=1e-6)


def test_tool_frame_follows_the_tool_and_reset_frame_does_not():
    level = Observation(
        time_ns=1, values={**OBSERVATION.values, "pose": np.array((0, 0, 0, 1, 0, 0, 0), np.float32)}
    )
    for frame, forward in (("tool", 0.01), ("reset", -0.01)):
        mapping = begun(robot(hand(frame)))
        mapping.observe(level)
        assert mapping.action(np.eye(6)[0], level)[0] == pytest.approx(forward)


@given(st.lists(st.floats(-1, 1), min_size=12, max_size=12), st.floats(0.01, 1.0))
def test_actions_stay_within_the_limits(axes, speed):
    spec = robot(ARM, hand("reset"), GRIPPER, BASE)
    action = begun(spec, speed=speed).action(np.array(axes), OBSERVATION)
    low, high = spec.action.bounds
    assert (action >= low).all() and (action <= high).all()


# ---- which axis of a device drives which axis of the action


def test_devices_drive_one_arm_its_gripper_and_a_base():
    arm, base = selections(robot(hand(), GRIPPER, BASE), DriveConfig(), name="any")
    assert {action: AXES[device] for action, device in arm.axes.items()} == dict(enumerate(AXES))
    assert base.label == "base" and [AXES[device] for device in base.axes.values()] == ["dx", "dy", "drz"]


def test_robot_without_an_arm_is_driven_by_the_axes_of_an_arm():
    (base,) = selections(robot(BASE), DriveConfig(), name="any")
    assert [AXES[device] for device in base.axes.values()] == ["dx", "dy", "drz"]


def test_joint_by_joint_then_the_base_can_be_chosen():
    found = selections(robot(ARM, GRIPPER, BASE), DriveConfig(), name="any")
    assert [one.label for one in found] == ["arm, joint j1", "arm, joint j2", "base"]
    first, second, _ = found
    assert (first.axes[0], second.axes[1]) == (0, 0)  # the device's first axis
    assert first.axes[2] == second.axes[2] == AXES.index("gripper")
    assert 1 not in first.axes and 0 not in second.axes


def test_device_with_six_axes_moves_six_joints_at_once():
    (both,) = selections(robot(ARM, GRIPPER), DriveConfig(), name="any", joints_at_once=6)
    assert both.label == "arm, joint j1 to j2"
    assert (both.axes[0], both.axes[1]) == (0, 1)


def test_each_of_two_arms_is_chosen_with_its_own_gripper():
    left, right = hand(name="left"), hand(name="right")
    other = replace(GRIPPER, name="other", names=("width",))
    for parts in ((left, GRIPPER, right, other), (left, right, GRIPPER, other)):
        spec = robot(*parts)
        first, second = selections(spec, DriveConfig(), name="any")
        assert [spec.action.names[axis] for axis in first.axes] == [*left.names, "opening"]
        assert [spec.action.names[axis] for axis in second.axes] == [*right.names, "width"]
        (only,) = selections(spec, DriveConfig(part="right"), name="any")
        assert only.axes == second.axes


def test_only_gripper_moves_whichever_part_is_chosen():
    """An arm on a lift: the vacuum belongs to neither alone."""
    lift = ActionPart(
        name="lift", kind="joint_target", unit="m", names=("lift",), low=(0.0,), high=(0.3,), max_speed=(0.1,),
        measured="opening",
    )  # fmt: skip
    spec = robot(ARM, lift, GRIPPER)
    found = selections(spec, DriveConfig(), name="any")
    assert [one.label for one in found] == ["arm, joint j1", "arm, joint j2", "lift, joint lift"]
    assert [one.axes[3] for one in found] == [AXES.index("gripper")] * 3
    arm_only = selections(spec, DriveConfig(part="arm"), name="any")
    assert all(3 not in one.axes for one in arm_only)  # the gripper's person drives it: it follows the lift
    chooser = Chooser(found)
    assert chooser.describe() == "joints of 'arm': 1 to 2; other parts: lift"
    chooser.move_part(1)
    assert chooser.describe() == "joints of 'lift': 1; other parts: arm"


def joints(name, columns):
    names = (f"{name}_1", f"{name}_2")
    return replace(ARM, name=name, names=names, measured=f"joint_pos[{columns}]")


POSE = replace(
    hand(), kind="ee_target", hold="measured", low=(-1.0,) * 3 + (-7.0,) * 3, high=(1.0,) * 3 + (7.0,) * 3
)
ROBOTS = {
    "Cartesian steps": (hand(), GRIPPER),
    "Cartesian targets": (POSE, GRIPPER),
    "joints": (ARM, GRIPPER),
    "two Cartesian arms": (hand(name="left"), hand(name="right")),
    "two joint arms": (joints("left", "0:2"), joints("right", "0:2"), GRIPPER, replace(GRIPPER, name="other", names=("w",))),
    "mobile": (ARM, GRIPPER, BASE),
    "base alone": (BASE,),
}  # fmt: skip


@pytest.mark.parametrize("joints_at_once", [1, 6], ids=["one joint", "six joints"])
@pytest.mark.parametrize("parts", ROBOTS.values(), ids=ROBOTS)
def test_every_axis_of_every_robot_is_driven_by_some_choice_and_no_other_moves(parts, joints_at_once):
    """Keyboard and gamepad move one joint, a SpaceMouse six."""
    spec, moved = robot(*parts), set()
    still = begun(spec).action(np.zeros(num_drive_axes(spec)), OBSERVATION)
    for one in selections(spec, DriveConfig(), name="any", joints_at_once=joints_at_once):
        for axis in one.axes:
            drives = np.zeros(num_drive_axes(spec), np.float32)
            drives[axis] = -1.0
            changed = np.flatnonzero(~np.isclose(begun(spec).action(drives, OBSERVATION), still, atol=1e-7))
            part = next(part for part in spec.parts if axis in range(*spec.slice_of(part.name).indices(99)))
            where = spec.slice_of(part.name)
            # the whole pose follows a turn of the hand, because rotation vectors do not add up
            assert len(changed) and all(where.start <= at < where.stop for at in changed)
            if part.kind not in ("ee_delta", "ee_target"):
                assert changed.tolist() == [axis]
            moved.add(axis)
    assert moved == set(range(spec.action.shape[0]))


def test_chooser_moves_between_arms_and_joints():
    spec = robot(ARM, GRIPPER, BASE)
    chooser = Chooser(selections(spec, DriveConfig(), name="any"))
    chooser.move(-1)
    assert chooser.chosen.label == "base"
    chooser.move(2)
    assert chooser.chosen.label == "arm, joint j2"
    chooser.move_part(1)
    assert chooser.chosen.label == "base"
    chooser.move_part(1)
    assert chooser.choose(2)
    assert chooser.chosen.label == "arm, joint j2"
    assert not chooser.choose(7)
    assert chooser.chosen.label == "arm, joint j2"


def test_part_that_does_not_exist_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="no arm or base 'amr', only arm, base"):
        selections(robot(ARM, BASE), DriveConfig(part="amr"), name="any")


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((GRIPPER,), "takes gripper actions"),
        ((replace(BASE, unit="rad/s"),), "expected forward, left and turn"),
    ],
)
def test_robot_that_devices_cannot_drive_is_refused(parts, reason):
    with pytest.raises(UsageError, match=reason):
        selections(robot(*parts), DriveConfig(), name="any")


def test_left_trigger_of_a_gamepad_drives_the_base(tmp_path):
    with EmulatedGamepad(tmp_path / "pad") as pad:
        operator = EmulatedGamepadOperator(
            GamepadConfig(path=str(pad.path), max_silence_s=None), robot=robot(hand(), GRIPPER, BASE)
        )
        operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
        pad.hold()
        for axis, value in ((ABS_Y, -1.0), (ABS_X, 1.0), (ABS_RX, 1.0)):
            pad.push(axis, value)
        settle(operator)
        action = operator.poll(OBSERVATION).action
        assert action[:6].any() and not action[7:].any()
        pad.push(ABS_Z, 1.0)
        settle(operator)
        action = operator.poll(OBSERVATION).action
        assert not action[:6].any()
        np.testing.assert_allclose(action[7:], (0.4, -0.3, -0.5), atol=1e-6)
        operator.close()
