"""Fleet: arm groups, embodiments and replays of all arms of a run."""

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


def test_arms_with_the_same_task_are_one_group() -> None:
    three = config("{a: {}, b: {machine: elsewhere}, c: {task: {time_limit_s: 3.0}}}")
    assert arm_groups(three) == [("a", "b"), ("c",)]
    assert config_of(three, "c").task.config.time_limit_s == 3.0  # type: ignore[union-attr]
    assert config_of(three, "sim_panda") is three  # not an arm of this run


def test_different_arms_are_named_by_their_embodiment() -> None:
    assert list(embodiments(with_embodiments(config("{a: {}, b: {robot: {arm: x5}}}")))) == [
        "franka_panda",
        "arx_x5",
    ]


def test_equal_arms_with_different_tasks_are_named_by_arm() -> None:
    two = with_embodiments(config("{push: {}, cap: {task: {type: cap_tightening}}}"))
    rows = embodiments(two)
    assert list(rows) == ["push", "cap"]
    assert (rows["push"].num_actions, rows["cap"].num_actions) == (6, 7)  # type: ignore[attr-defined]
    assert rows["cap"].axes == tuple(range(7))  # type: ignore[attr-defined]
    assert rows["cap"].grippers == (6,)  # type: ignore[attr-defined]
    assert with_embodiments(two) == two  # existing names stay


def test_each_embodiment_has_its_own_replay(tmp_path: Path) -> None:
    two = with_embodiments(config("{push: {}, cap: {task: {type: cap_tightening}}}"))
    fleet = build_fleet(two)
    try:
        policy = fleet.trainable()
        assert fleet.robot(policy).action.shape == (7,)
        replay = fleet.replay(tmp_path, policy)
        assert isinstance(replay, ArmReplays)
        replay.open()
        assert {path.name for path in tmp_path.iterdir()} <= {"push", "cap"}
        assert replay.total_rows(fleet.robots["push"]) > replay.total_rows(fleet.robots["cap"]) * 0.5
        replay.close()
    finally:
        fleet.close()


def test_equal_arms_share_one_replay_and_a_plain_policy(tmp_path: Path) -> None:
    fleet = build_fleet(load(["push-cube"], ["runtime=ray", "cluster.num_robots=2"]))
    try:
        policy = fleet.trainable()
        assert policy.spec.name == "gaussian_mlp"
        assert not isinstance(fleet.replay(tmp_path, policy), ArmReplays)
        assert [robot.name for robot in fleet.robots.values()] == ["robot-0", "robot-1"]
        check_equal(fleet.robots)
    finally:
        fleet.close()


def test_different_arms_with_a_plain_policy_are_refused() -> None:
    plain = load(["push-cube"], ["runtime=ray", "cluster.robots={a: {}, b: {robot: {arm: x5}}}"])
    fleet = build_fleet(plain)
    try:
        with pytest.raises(UsageError, match=r"'a' and 'b' differ \(observation 'joint_pos'.*policy\.type=shared"):
            fleet.trainable()
    finally:
        fleet.close()


def test_normalizer_data_is_padded_and_has_the_embodiment() -> None:
    two = with_embodiments(config("{push: {}, cap: {task: {type: cap_tightening}}}"))
    fleet = build_fleet(two)
    try:
        policy = fleet.trainable()
        canonical_space = policy.canonical_space  # type: ignore[attr-defined]
        arm = canonical_space.arm(fleet.robots["cap"])
        assert (arm.index, canonical_space.sizes) == (1, {"ee_error": 6, "task_state": 16})
        np.testing.assert_array_equal(arm.one_hot, [0.0, 1.0])
    finally:
        fleet.close()
