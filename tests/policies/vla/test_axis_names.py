"""Axes that a LeRobot folder names are matched by these names, also in another order than the robot's."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest

from dovetail.core.errors import PolicyWarning, SpecMismatch
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.vla.pi0_policy import Pi0Policy
from support.pi0_folders import edit_json, write_json, write_lerobot

NAMES = ("j1", "j2", "j3", "j4", "j5", "grip")
ORDER = [3, 0, 5, 1, 4, 2]  # the robot's place of each of the folder's axes
THEIRS = tuple(NAMES[place] for place in ORDER)
ROBOT = RobotSpec(
    name="arm",
    embodiment="arm",
    observation={
        "joints": ArraySpec(shape=(6,), names=NAMES),
        "front": ArraySpec(shape=(28, 28, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(6,), names=NAMES, low=(-99.0,) * 6, high=(99.0,) * 6),
    action_kind="joint_target",
    control_hz=10.0,
)
SORTED = replace(  # has the folder's order
    ROBOT,
    observation={**ROBOT.observation, "joints": ArraySpec(shape=(6,), names=THEIRS)},
    action=replace(ROBOT.action, names=THEIRS),
)


@pytest.fixture(scope="module", params=[False, True], ids=["absolute", "relative"])
def folder(request, tmp_path_factory):
    folder = write_lerobot(tmp_path_factory.mktemp("pi0") / "lerobot")
    excluded = {"use_relative_actions": request.param, "relative_exclude_joints": ["grip"]}
    edit_json(folder / "config.json", action_feature_names=list(THEIRS), **excluded)
    numbers = {"mean": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "std": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]}
    write_json(folder / "stats.json", {"observation.state": numbers, "action": numbers})
    return folder


def act(folder, robot, joints, **settings):
    given = {"images": {"base_0_rgb": "front"}, "device": "cpu", "stats": str(folder / "stats.json"), **settings}
    policy = Pi0Policy(Pi0Policy.Config(checkpoint=str(folder), **given), robot=robot)
    seen = {"joints": joints, "front": np.zeros((1, 28, 28, 3), np.uint8), "prompt": encode_prompt("push")[None]}
    return policy.act(seen, ActContext(seed=1)).actions[0]


def test_axes_in_another_order_are_found_by_the_folders_names(folder):
    joints = np.array([[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]], np.float32)
    expected = act(folder, SORTED, joints[:, ORDER])  # [H, A] in the folder's order
    found = act(folder, ROBOT, joints)
    np.testing.assert_array_equal(found[:, ORDER], expected)
    assert np.abs(found - expected).max() > 0.1
    if json.loads((folder / "config.json").read_text())["use_relative_actions"]:
        assert found[0, 4] > 45.0 and found[0, 5] < 10.0  # j5 is relative to 50, the gripper is not to 60


def test_settings_win_over_the_folders_names(folder):
    joints = np.zeros((1, 6), np.float32)
    same = act(folder, ROBOT, joints, action_axes=NAMES, state_axes=NAMES, relative_axes=())
    np.testing.assert_array_equal(same, act(folder, SORTED, joints, relative_axes=()))


def test_state_without_these_names_has_to_be_told(folder):
    robot = replace(
        ROBOT, observation={**ROBOT.observation, "joints": ArraySpec(shape=(6,), names=tuple("abcdef"))}
    )
    joints = np.zeros((1, 6), np.float32)
    with pytest.raises(SpecMismatch, match=r"action axes of robot 'arm' in another order.*policy\.state_axes"):
        act(folder, robot, joints)
    assert act(folder, robot, joints, state_axes=tuple("badcfe")).shape == (5, 6)


def test_names_of_lerobots_datasets_match_without_their_ending(folder, tmp_path):
    """A dataset of LeRobot calls the axis `j1.pos`. The order is the folder's here too."""
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    edit_json(copied / "config.json", action_feature_names=[f"{name.upper()}.pos" for name in THEIRS])
    joints = np.array([[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PolicyWarning)
        np.testing.assert_array_equal(act(copied, ROBOT, joints), act(folder, ROBOT, joints))


WIDE = {**ROBOT.observation, "joints": ArraySpec(shape=(9,))}  # what the folder's own statistics have


def named(*names):
    return replace(ROBOT, observation=WIDE, action=replace(ROBOT.action, names=names))


def act_with_its_statistics(folder, robot, **settings):
    return act(folder, robot, np.zeros((1, 9), np.float32), relative_axes=(), stats=None, **settings)


def test_other_names_leave_the_robots_order_with_a_warning(folder):
    """They may be other words for the same axes, so they are not refused."""
    with pytest.warns(
        PolicyWarning, match=r"axes j4, j1, .*robot 'arm' has a, b, .*policy\.action_axes.*policy\.stats"
    ):
        found = act_with_its_statistics(folder, named(*"abcdef"))
    np.testing.assert_array_equal(found, act_with_its_statistics(folder, named(*THEIRS)))


@pytest.mark.parametrize("setting", ["action_axes", "stats"])
def test_settings_that_confirm_the_axes_silence_the_warning(folder, setting):
    with warnings.catch_warnings():
        warnings.simplefilter("error", PolicyWarning)
        if setting == "action_axes":
            act_with_its_statistics(folder, named(*"abcdef"), action_axes=tuple("abcdef"))
        else:
            robot = replace(ROBOT, action=replace(ROBOT.action, names=tuple("abcdef")))
            act(folder, robot, np.zeros((1, 6), np.float32), relative_axes=())


def test_names_that_differ_by_their_ending_only_are_not_matched(folder):
    with pytest.warns(PolicyWarning, match="the order of the robot is used"):
        act_with_its_statistics(folder, named("j1", "j1.pos", "j3", "j4", "j5", "grip"))
