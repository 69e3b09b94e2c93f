"""A policy at a lower rate than its robot: targets pass through the chunk's points, deltas keep their sum."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dovetail.core.errors import ConfigError
from dovetail.core.policy_rate import at_policy_rate, ticks_per_step, to_steps, to_ticks
from dovetail.core.poses import quat_of, rotation_between
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from dovetail.testing.mobile_arm import FakeMobileArm, FakeMobileArmConfig
from support.pose_arms import PoseArms

MOBILE = FakeMobileArm(FakeMobileArmConfig()).spec  # 2 joint targets, gripper, 2 velocities
DELTAS = PoseArms("ee_delta", "base").spec  # 6 deltas, gripper, velocity
TARGETS = PoseArms("ee_target", "base").spec
NUMBERS = st.floats(-1.0, 1.0, width=32)


def chunks(spec, horizon=4):
    return arrays(np.float32, (horizon, spec.action.shape[0]), elements=NUMBERS)


@settings(deadline=None)
@given(chunks(MOBILE), st.integers(1, 7), arrays(np.float32, (5,), elements=NUMBERS))
def test_linear_targets_pass_through_every_point_of_the_chunk(chunk, ticks, before):
    actions = to_ticks(MOBILE.parts, chunk, ticks, how="linear", before=before)
    assert actions.shape == (4 * ticks, 5)
    np.testing.assert_array_equal(actions[ticks - 1 :: ticks, :2], chunk[:, :2])  # at the last tick of each step
    way = np.diff(np.concatenate((before[None, :2], actions[:, :2])), axis=0).reshape(4, ticks, 2)
    np.testing.assert_allclose(
        way, np.broadcast_to(way.mean(axis=1, keepdims=True), way.shape), atol=1e-5
    )  # evenly
    np.testing.assert_array_equal(
        actions[:, 2:], np.repeat(chunk[:, 2:], ticks, axis=0)
    )  # gripper, velocities: held


@settings(deadline=None)
@given(chunks(DELTAS), st.integers(1, 7), st.sampled_from(["linear", "hold"]))
def test_deltas_keep_their_sum(chunk, ticks, how):
    actions = to_ticks(DELTAS.parts, chunk, ticks, how=how)
    np.testing.assert_allclose(actions[:, :6].reshape(4, ticks, 6).sum(axis=1), chunk[:, :6], atol=1e-5)
    assert np.abs(actions[:, :6]).max() <= np.abs(chunk[:, :6]).max() / ticks + 1e-6


@pytest.mark.parametrize("spec", [MOBILE, DELTAS, TARGETS])
@settings(deadline=None)
@given(data=st.data(), ticks=st.integers(1, 6), how=st.sampled_from(["linear", "hold"]))
def test_steps_to_ticks_and_back_is_the_same_chunk(spec, data, ticks, how):
    chunk = data.draw(chunks(spec))
    back = to_steps(spec.parts, to_ticks(spec.parts, chunk, ticks, how=how), ticks)
    np.testing.assert_allclose(back, chunk, atol=1e-5)


def test_one_policy_step_is_worked_out_by_hand():
    """5 ticks: the last target, the last gripper value, the mean velocity; and of deltas the sum."""
    ticks = np.array([[0.1 * i, 1.0, i % 2, 0.1 * i, 0.0] for i in range(5)], np.float32)
    np.testing.assert_allclose(to_steps(MOBILE.parts, ticks, 5), [[0.4, 1.0, 0.0, 0.2, 0.0]], atol=1e-6)
    deltas = np.full((5, 8), 0.01, np.float32)
    np.testing.assert_allclose(to_steps(DELTAS.parts, deltas, 5), [[0.05] * 6 + [0.01, 0.01]], atol=1e-6)


def test_a_step_at_the_end_of_an_episode_counts_the_ticks_that_exist():
    deltas = np.full((10, 8), 0.01, np.float32)
    exists = np.array([True] * 7 + [False] * 3)
    steps = to_steps(DELTAS.parts, deltas, 5, exists=exists)
    np.testing.assert_allclose(steps[:, 0], [0.05, 0.02], atol=1e-6)
    np.testing.assert_allclose(steps[:, 7], 0.01, atol=1e-6)  # the mean of two velocities


def test_rotation_targets_turn_the_short_way_between_equal_representations():
    chunk = np.zeros((2, 8), np.float32)
    chunk[0, 3:6], chunk[1, 3:6] = (0.0, 0.0, 3.0), (0.0, 0.0, -3.0)  # 0.28 rad apart, not 6
    actions = to_ticks(TARGETS.parts, chunk, 5, how="linear").astype(np.float64)
    quats = [quat_of(turn) for turn in actions[4:, 3:6]]
    steps = [np.linalg.norm(rotation_between(a, b)) for a, b in itertools.pairwise(quats)]
    np.testing.assert_allclose(steps, (2 * np.pi - 6.0) / 5, atol=1e-5)


@pytest.mark.parametrize(("control_hz", "policy_hz", "ticks"), [(50.0, 10.0, 5), (30.0, 30.0, 1), (10.0, None, 1)])
def test_ticks_of_a_step(control_hz, policy_hz, ticks):
    assert ticks_per_step(control_hz=control_hz, policy_hz=policy_hz) == ticks


@pytest.mark.parametrize(
    ("policy_hz", "nearest"),
    [(20.0, "16.6666667 or 25"), (100.0, "50"), (49.0, "25 or 50"), (7.0, "6.25 or 7.14285714")],
)
def test_a_rate_that_is_not_a_whole_fraction_is_refused_with_the_nearest_ones(policy_hz, nearest):
    with pytest.raises(ConfigError, match=f"whole multiple of it. Set .* rate that works: {nearest}$"):
        ticks_per_step(control_hz=50.0, policy_hz=policy_hz)
    for rate in nearest.split(" or "):
        assert ticks_per_step(control_hz=50.0, policy_hz=float(rate)) >= 1


def test_the_policy_sees_deltas_of_a_whole_step():
    for spec in (DELTAS, FakeArm(FakeArmConfig()).spec):  # with parts, and in the form of 0.6
        seen = at_policy_rate(spec, 5)
        np.testing.assert_allclose(seen.action.high[:6], 5 * np.array(spec.action.high[:6]))
        assert seen.action.high[6:] == spec.action.high[6:]
        assert seen.control_hz == spec.control_hz / 5
        assert [part.kind for part in seen.parts] == [part.kind for part in spec.parts]
    assert at_policy_rate(MOBILE, 5).action == MOBILE.action
    assert at_policy_rate(MOBILE, 1) is MOBILE
