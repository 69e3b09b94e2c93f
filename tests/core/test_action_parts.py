"""A robot's action consists of parts. Missing or unknown facts are refused in one line that says what to add."""

import copy
import dataclasses
import json
import math

import numpy as np
import pytest

from dovetail.config.action_parts import ActionPartConfig, action_parts
from dovetail.core.errors import ConfigError, SpecMismatch
from dovetail.core.specs import ActionPart, ArraySpec, PolicySpec, RobotSpec, match

ARM = ActionPart(
    name="arm",
    kind="joint_target",
    unit="rad",
    names=("j1", "j2"),
    low=(-2.0, -2.0),
    high=(2.0, 2.0),
    max_speed=(1.0, 1.0),
    measured="joint_pos[0:2]",
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
    name="base",
    kind="velocity",
    unit="m/s+rad/s",
    names=("vx", "wz"),
    low=(-0.5, -1.0),
    high=(0.5, 1.0),
    hold="zero",
)
OBSERVATION = {"joint_pos": ArraySpec(shape=(3,))}


def mobile(*parts, **fields):
    facts = {"name": "mobile", "embodiment": "toy", "observation": OBSERVATION, "control_hz": 10.0}
    return RobotSpec(**(facts | fields), parts=parts or (ARM, GRIPPER, BASE))


def test_action_vector_follows_from_the_parts():
    spec = mobile()
    assert spec.action.names == ("j1", "j2", "grip", "vx", "wz")
    assert spec.action.low == (-2.0, -2.0, 0.0, -0.5, -1.0)
    assert spec.action_kind == "parts"
    assert spec.slice_of("base") == slice(3, 5)
    assert spec.part("base").max_speed == (0.5, 1.0)
    assert spec.axes_of("gripper", "velocity").tolist() == [False, False, True, True, True]
    with pytest.raises(SpecMismatch, match=r"no action part 'bas', only arm, gripper, base. Did you mean 'base'"):
        spec.part("bas")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "joint_position"}, "unknown kind 'joint_position': use joint_target"),
        ({"unit": "furlong"}, "set `unit` to rad or deg or m"),
        ({"names": ()}, "add `names`"),
        ({"names": ("j1", "j1")}, "a different one for each axis"),
        ({"low": ()}, "add `low`"),
        ({"low": (math.nan, 0.0)}, "finite"),
        ({"high": (math.inf, 0.0)}, "finite"),
        ({"high": (1e39, 3.0)}, "finite"),
        ({"low": (2.0, 0.0)}, "not below"),
        ({"max_speed": ()}, "add `max_speed`"),
        ({"max_speed": (0.0, 1.0)}, "above zero"),
        ({"hold": "zero"}, "set `hold` to measured"),
        ({"measured": ""}, "set `measured`"),
        ({"measured": "joint_pos[1"}, "observation\\[first:end\\]"),
        ({"kind": "ee_delta", "unit": "m"}, "x y z"),
    ],
)
def test_incomplete_part_is_refused_with_advice(change, words):
    with pytest.raises(SpecMismatch, match=words) as caught:
        dataclasses.replace(ARM, num_axes=0, **change)
    assert "\n" not in str(caught.value)
    assert "'arm'" in str(caught.value)


def test_cartesian_part_needs_a_frame():
    facts = {"name": "arm", "kind": "ee_delta", "unit": "m", "names": ("x", "y", "z"), "hold": "zero"}
    limits = {"low": (-0.01,) * 3, "high": (0.01,) * 3, "max_speed": (0.1,) * 3}
    with pytest.raises(SpecMismatch, match="set `frame` to base, reset, tool"):
        ActionPart(**facts, **limits)
    assert ActionPart(**facts, **limits, frame="base").is_delta


def test_velocity_that_cannot_be_zero_is_refused():
    with pytest.raises(SpecMismatch, match="include zero"):
        dataclasses.replace(BASE, low=(0.1, -1.0), max_speed=())


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((ARM, ARM), "two action part names 'arm'"),
        ((ARM, dataclasses.replace(GRIPPER, names=("j1",))), "two action axis names 'j1'"),
        ((dataclasses.replace(ARM, measured="joints"),), "observation 'joints', which does not exist"),
        ((dataclasses.replace(ARM, measured="joint_pos"),), "needs 2 measured values, but 'joint_pos' has 3"),
    ],
)
def test_parts_that_do_not_fit_the_robot_are_refused(parts, words):
    with pytest.raises(SpecMismatch, match=words):
        mobile(*parts)


def test_spec_survives_json_and_replace():
    spec = mobile()
    again = RobotSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.hash() == spec.hash()
    assert dataclasses.replace(spec, name="other").parts == spec.parts


def test_one_part_keeps_the_hash_of_0_6_and_its_facts():
    one = mobile(ARM)
    old = RobotSpec(
        name="mobile",
        embodiment="toy",
        observation=OBSERVATION,
        action=ArraySpec(shape=(2,), names=("j1", "j2"), low=(-2.0, -2.0), high=(2.0, 2.0)),
        action_kind="joint_target",
        control_hz=10.0,
    )
    assert one.hash() == old.hash()
    assert "parts" not in old.to_json()
    assert RobotSpec.from_json(one.to_json()).parts == (ARM,)
    match(one, stored=old)


def test_hash_of_several_parts_depends_on_their_meaning_only():
    spec = mobile()
    turned = mobile(ARM, GRIPPER, dataclasses.replace(BASE, unit="m/s"))
    slower = mobile(dataclasses.replace(ARM, max_speed=(0.5, 0.5)), GRIPPER, BASE)
    assert turned.hash() != spec.hash()
    assert slower.hash() == spec.hash()


def test_policy_and_data_must_have_the_same_parts():
    spec, other = mobile(), mobile(dataclasses.replace(ARM, unit="deg"), GRIPPER, BASE)
    policy = PolicySpec(name="net", observation={}, parts=spec.parts)
    match(spec, policy=policy, stored=spec)
    with pytest.raises(SpecMismatch, match=r"joint_target \[rad\] against arm: 2 x joint_target \[deg\]"):
        match(other, policy=policy)
    with pytest.raises(SpecMismatch, match="deg"):
        match(spec, stored=other)
    assert PolicySpec.from_json(policy.to_json()) == policy


def test_parts_of_a_spec_in_the_form_of_0_6():
    axes = ("x", "y", "z", "rx", "ry", "rz", "gripper")
    spec = RobotSpec(
        name="two",
        embodiment="toy",
        observation={"ee_pose": ArraySpec(shape=(14,)), "gripper": ArraySpec(shape=(2,))},
        action=ArraySpec(shape=(14,), names=tuple(f"{side}_{axis}" for side in "lr" for axis in axes)),
        action_kind="ee_delta",
        control_hz=10.0,
    )
    assert [part.name for part in spec.parts] == ["arm_1", "gripper_1", "arm_2", "gripper_2"]
    assert [part.measured for part in spec.parts] == [
        "ee_pose[0:7]",
        "gripper[0:1]",
        "ee_pose[7:14]",
        "gripper[1:2]",
    ]
    assert spec.parts[0].frame == "reset"
    assert spec.parts[0].missing() == "finite `low` and `high` in the action's spec"
    np.testing.assert_array_equal(spec.axes_of("gripper").nonzero()[0], [6, 13])


@pytest.mark.parametrize(
    "limits", [{"high": (1.0,)}, {"low": (math.nan,), "high": (1.0,)}, {"low": (2.0,), "high": (1.0,)}]
)
def test_one_sided_or_unordered_limits_are_refused(limits):
    with pytest.raises(SpecMismatch):
        ArraySpec(shape=(1,), **limits)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("action", "shape"), [10**12]),
        (("action", "shape"), [-1]),
        (("action", "shape"), "x"),
        (("action", "low"), ["0"]),
        (("action", "dtype"), "no such type"),
        (("action", "dtype"), None),
        (("action",), None),
        (("observation",), []),
        (("control_hz",), math.nan),
        (("control_hz",), "fast"),
        (("action_kind",), ["parts"]),
        (("parts",), [None]),
        (("parts",), 3),
        (("parts", 0, "low"), [math.nan, 0.0]),
        (("parts", 0, "low"), [10**400, 0.0]),
        (("parts", 0, "hold"), {}),
        (("parts", 0, "measured"), "__class__[0:99999999999]"),
        (("parts", 0, "kind"), "evil"),
    ],
)
def test_hostile_json_is_one_clear_error(path, value):
    data = copy.deepcopy(mobile().to_json())
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(SpecMismatch) as caught:
        RobotSpec.from_json(data)
    assert "\n" not in str(caught.value)
    with pytest.raises(SpecMismatch):
        RobotSpec.from_json([])


def test_parts_from_a_config_broadcast_numbers():
    configs = [
        ActionPartConfig.from_mapping(data)
        for data in (
            {"name": "arm", "kind": "joint_target", "unit": "rad", "axes": 2, "low": -2, "high": 2, "max_speed": 1}
            | {"measured": "joint_pos[0:2]"},
            {"name": "gripper", "kind": "gripper", "unit": "1", "low": 0, "high": 1, "max_speed": 2},
            {"name": "base", "kind": "velocity", "unit": "m/s", "axes": ["vx", "vy"], "low": -1, "high": [1, 2]},
        )
    ]
    arm, gripper, base = action_parts(configs)
    assert arm == dataclasses.replace(ARM, names=("arm_1", "arm_2"))
    assert gripper == dataclasses.replace(GRIPPER, names=("gripper",))
    assert (base.high, base.hold, base.max_speed) == ((1.0, 2.0), "zero", (1.0, 2.0))


def test_config_errors_say_what_to_add():
    with pytest.raises(ConfigError, match=r"unknown kind 'joint_targets'.*Did you mean 'joint_target'"):
        ActionPartConfig(name="arm", kind="joint_targets", unit="rad", low=-1, high=1).part()
    with pytest.raises(ConfigError, match="add `max_speed`"):
        ActionPartConfig(name="arm", kind="joint_target", unit="rad", low=-1, high=1).part()
    with pytest.raises(ConfigError, match=r"no action parts"):
        action_parts([])
