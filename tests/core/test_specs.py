"""Specs must fit each other, and errors name both sides."""

import dataclasses

import numpy as np
import pytest

from dovetail.core.errors import SpecMismatch
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec, TaskSpec, match

ACTION = ArraySpec(shape=(2,), names=("x", "y"), low=(-1.0, -1.0), high=(1.0, 1.0))
ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={"joint_pos": ArraySpec(shape=(2,)), "front": ArraySpec(shape=(8, 8, 3), dtype="uint8")},
    action=ACTION,
    action_kind="ee_delta",
    control_hz=10.0,
)
POLICY = PolicySpec(
    name="net", observation={"joint_pos": ArraySpec(shape=(2,))}, action=ACTION, action_kind="ee_delta"
)


def test_fitting_specs_pass():
    match(
        ROBOT,
        policy=POLICY,
        task=TaskSpec(name="t", observation_keys=("front",), embodiments=("toy",)),
        stored=ROBOT,
    )


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            {"observation": {"joint_poss": ArraySpec(shape=(2,))}},
            ("net", "joint_poss", "arm", "Did you mean 'joint_pos'"),
        ),
        ({"observation": {"joint_pos": ArraySpec(shape=(7,))}}, ("net", "float32[7]", "arm", "float32[2]")),
        ({"action": ArraySpec(shape=(3,))}, ("action", "float32[3]", "float32[2]")),
        ({"action": dataclasses.replace(ACTION, names=("y", "x"))}, ("names", "y != x")),
        ({"action": dataclasses.replace(ACTION, high=(1.0, 2.0))}, ("limits", "2.0")),
        ({"action_kind": "joint_target"}, ("joint_target", "ee_delta")),
    ],
)
def test_unfitting_policy_is_rejected(policy, words):
    with pytest.raises(SpecMismatch) as error:
        match(ROBOT, policy=dataclasses.replace(POLICY, **policy))
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_task_for_another_embodiment_is_rejected():
    with pytest.raises(SpecMismatch, match="task 'lift' is for humanoid, but robot 'arm' is a toy"):
        match(ROBOT, task=TaskSpec(name="lift", embodiments=("humanoid",)))


@pytest.mark.parametrize("side", ["robot", "stored"])
def test_stored_data_with_other_keys_is_rejected(side):
    less = dataclasses.replace(ROBOT, name="old", observation={"joint_pos": ArraySpec(shape=(2,))})
    robot, stored = (less, ROBOT) if side == "robot" else (ROBOT, less)
    with pytest.raises(SpecMismatch, match="front"):
        match(robot, stored=stored)


def test_json_round_trip_and_hash():
    again = RobotSpec.from_json(ROBOT.to_json())
    assert again == ROBOT
    assert again.hash() == ROBOT.hash()
    assert dataclasses.replace(ROBOT, control_hz=20.0).hash() != ROBOT.hash()


@pytest.mark.parametrize(
    "damage", [{"action_kind": "x" * 501}, {"observation": {"x" * 501: {}}}], ids=["value", "key"]
)
def test_stored_spec_with_long_names_is_rejected_in_a_short_line(damage):
    with pytest.raises(SpecMismatch, match="at most 500") as error:
        RobotSpec.from_json({**ROBOT.to_json(), **damage})
    assert len(str(error.value)) < 200


def test_limits_must_fit_the_shape():
    with pytest.raises(SpecMismatch, match="low has 1 entries"):
        ArraySpec(shape=(2,), low=(0.0,), high=(1.0, 1.0))


def test_at_limits_includes_one_percent():
    values = np.array([[0.979, -0.979], [0.981, -0.981], [3.0, 0.0]], np.float32)
    assert ACTION.at_limits(values).tolist() == [[False, False], [True, True], [True, False]]
    assert not ArraySpec(shape=(2,)).at_limits(values).any()  # there are none
