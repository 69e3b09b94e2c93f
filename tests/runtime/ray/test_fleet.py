"""All arms of a run as one learner sees them: what the config leaves out is filled in, and what cannot be is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.config.schema import RunConfig
from dovetail.core.errors import UsageError
from dovetail.policies.embodiments.shared_policy import SharedConfig
from dovetail.runs.assembly.arm_replays import ArmReplays
from dovetail.runs.assembly.arms import arm_groups, config_of
from dovetail.runs.assembly.fleet import build_fleet, check_equal, with_embodiments

SHARED = ["policy.type=shared", "policy.policy={type: gaussian_mlp, hidden: [8], inputs: [ee_error, task_state]}"]


def config(robots: str, *overrides: str) -> RunConfig:
    return load(["push-cube"], ["runtime=ray", *SHARED, f"cluster.robots={robots}", *overrides])


def embodiments(of: RunConfig) -> dict[str, object]:
    assert isinstance(of.policy.config, SharedConfig)
    return dict(of.policy.config.embodiments)


def test_arms_that_do_the_same_are_of_one_kind() -> None:
    three = config("{a: {}, b: {machine: elsewhere}, c: {task: {time_limit_s: 3.0}}}")
    assert arm_groups(three) == [("a", "b"), ("c",)]
    assert config_of(three, "c").task.config.time_limit_s == 3.0  # type: ignore[union-attr]
    assert config_of(three, "sim_panda") is three  # imported from elsewhere


def test_a_policy_knows_arms_by_their_body_where_that_says_who_is_meant() -> None:
    assert list(embodiments(with_embodiments(config("{a: {}, b: {robot: {arm: x5}}}")))) == [
        "franka_panda",
        "arx_x5",
    ]


def test_and_by_their_name_where_two_of_one_body_do_different_things() -> None:
    two = with_embodiments(config("{push: {}, cap: {task: {type: cap_tightening}}}"))
    rows = embodiments(two)
    assert list(rows) == ["push", "cap"]
    assert (rows["push"].num_actions, rows["cap"].num_actions) == (6, 7)  # type: ignore[attr-defined]
    assert rows["cap"].axes == tuple(range(7))  # type: ignore[attr-defined]
    assert rows["cap"].grippers == (6,)  # type: ignore[attr-defined]
    assert with_embodiments(two) == two  # what was named stays


def test_one_replay_for_each_that_the_policy_knows_apart(tmp_path: Path) -> None:
    two = with_embodiments(config("{push: {}, cap: {task: {type: cap_tightening}}}"))
    band = build_fleet(two)
    try:
        policy = band.trainable()
        assert band.robot(policy).action.shape == (7,)
        replay = band.replay(tmp_path, policy)
        assert isinstance(replay, ArmReplays)
        replay.open()
        assert {path.name for path in tmp_path.iterdir()} <= {"push", "cap"}
        assert replay.total_rows(band.robots["push"]) > replay.total_rows(band.robots["cap"]) * 0.5
        replay.close()
    finally:
        band.close()


def test_equal_arms_have_one_replay_and_the_policy_of_one(tmp_path: Path) -> None:
    band = build_fleet(load(["push-cube"], ["runtime=ray", "cluster.num_robots=2"]))
    try:
        policy = band.trainable()
        assert policy.spec.name == "gaussian_mlp"
        assert not isinstance(band.replay(tmp_path, policy), ArmReplays)
        assert [robot.name for robot in band.robots.values()] == ["robot-0", "robot-1"]
        check_equal(band.robots)
    finally:
        band.close()


def test_arms_that_differ_are_told_apart_by_name_and_by_what() -> None:
    plain = load(["push-cube"], ["runtime=ray", "cluster.robots={a: {}, b: {robot: {arm: x5}}}"])
    band = build_fleet(plain)
    try:
        with pytest.raises(UsageError, match=r"'a' and 'b' differ \(observation 'joint_pos'.*policy\.type=shared"):
            band.trainable()
    finally:
        band.close()


def test_what_normalisation_is_fitted_to_is_padded_and_says_whose_it_is() -> None:
    two = with_embodiments(config("{push: {}, cap: {task: {type: cap_tightening}}}"))
    band = build_fleet(two)
    try:
        policy = band.trainable()
        canonical_space = policy.canonical_space  # type: ignore[attr-defined]
        arm = canonical_space.arm(band.robots["cap"])
        assert (arm.index, canonical_space.sizes) == (1, {"ee_error": 6, "task_state": 16})
        np.testing.assert_array_equal(arm.one_hot, [0.0, 1.0])
    finally:
        band.close()
