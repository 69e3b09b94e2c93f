"""A policy at a lower rate than its robot: targets pass through the chunk's points, deltas keep their sum."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dovetail.core.errors import ConfigError
from dovetail.core.policy_rate import (
    at_policy_rate,
    begun_steps,
    covering_ticks,
    first_tick,
    nearest_ticks,
    ticks_of_steps,
    ticks_per_step,
    to_steps,
    to_ticks,
)
from dovetail.core.poses import quat_of, rotation_between
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from dovetail.testing.mobile_arm import FakeMobileArm, FakeMobileArmConfig
from support.pose_arms import PoseArms

MOBILE = FakeMobileArm(FakeMobileArmConfig()).spec  # 2 joint targets, gripper, 2 velocities
DELTAS = PoseArms("ee_delta", "base").spec  # 6 deltas, gripper, velocity
TARGETS = PoseArms("ee_target", "base").spec
NUMBERS = st.floats(-1.0, 1.0, width=32)
RATIOS = (
    st.tuples(st.integers(1, 40), st.integers(1, 12)).filter(lambda r: r[0] >= r[1]).map(lambda r: Fraction(*r))
)
AT_30, AT_20 = Fraction(5, 3), Fraction(5, 2)  # of 50 Hz


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
    ("policy_hz", "ticks"),
    [
        (30.0, AT_30),
        (20.0, AT_20),
        (49.0, Fraction(50, 49)),
        (7.0, Fraction(50, 7)),
        (16.6666667, 3),
        (33.3333333, Fraction(3, 2)),
    ],
)
def test_a_step_may_last_a_fraction_of_a_tick_more(policy_hz, ticks):
    assert ticks_per_step(control_hz=50.0, policy_hz=policy_hz) == ticks


@pytest.mark.parametrize("policy_hz", [50.1, 60.0, 100.0])
def test_a_policy_that_is_faster_than_its_robot_is_refused(policy_hz):
    with pytest.raises(ConfigError, match=f"is {policy_hz:g}, but the robot's rate is 50 Hz.* to at most 50$"):
        ticks_per_step(control_hz=50.0, policy_hz=policy_hz)


def test_the_policy_sees_deltas_of_a_whole_step():
    for spec in (DELTAS, FakeArm(FakeArmConfig()).spec):  # with parts, and in the form of 0.6
        seen = at_policy_rate(spec, 5)
        np.testing.assert_allclose(seen.action.high[:6], 5 * np.array(spec.action.high[:6]))
        assert seen.action.high[6:] == spec.action.high[6:]
        assert seen.control_hz == spec.control_hz / 5
        assert [part.kind for part in seen.parts] == [part.kind for part in spec.parts]
        at_30 = at_policy_rate(spec, AT_30)
        np.testing.assert_allclose(at_30.action.high[:6], np.array(spec.action.high[:6]) * 5 / 3)
        assert at_30.control_hz == float(Fraction(spec.control_hz) * 3 / 5)
    assert at_policy_rate(MOBILE, 5).action == MOBILE.action
    assert at_policy_rate(MOBILE, 1) is MOBILE


# ---- a step that is no whole number of ticks


def mobile(values):
    """A chunk for the mobile robot: the values as targets, as gripper (by number) and as velocities."""
    values = np.array(values, np.float32)
    return np.stack([values, -values, np.arange(len(values)), values, -values], axis=1).astype(np.float32)


@pytest.mark.parametrize(
    ("ticks", "steps", "moved", "held"),
    [
        # at 3 and 6 and 9 per tick; tick 1 is 2/3 of step 0 and 1/3 of step 1; tick 3 is 1/3 of step 1 and 2/3 of step 2
        (AT_30, [5, 10, 15], [3, 4, 6, 8, 9], [0, 1, 1, 2, 2]),
        # at 2 and 4 per tick; half of tick 2 belongs to each step
        (AT_20, [5, 10], [2, 2, 3, 4, 4], [0, 0, 1, 1, 1]),
        # a single step of 1 2/3 ticks: it moves on at the same speed until the second tick is over
        (AT_30, [5], [3, 3], [0, 0]),
    ],
)
def test_ticks_of_deltas_velocities_and_held_parts_are_worked_out_by_hand(ticks, steps, moved, held):
    chunk = np.zeros((len(steps), 8), np.float32)
    chunk[:, :6], chunk[:, 6], chunk[:, 7] = np.array(steps)[:, None], np.arange(len(steps)), steps
    for how in ("linear", "hold"):
        found = to_ticks(DELTAS.parts, chunk, ticks, how=how)
        np.testing.assert_allclose(found[:, 0], moved, rtol=1e-6)
        assert found[:, 6].tolist() == held
        np.testing.assert_allclose(found[:, 7], np.array(moved) * float(ticks), rtol=1e-6)  # velocities: no share
    targets = to_ticks(MOBILE.parts, mobile(steps), ticks, how="hold")
    assert targets[:, 0].tolist() == [steps[step] for step in held]


@pytest.mark.parametrize(
    ("ticks", "points", "found"),
    [
        # the steps end at 1.67, 3.33 and 5 ticks; the arm stands still during step 1
        (AT_30, [5, 5, 15], [3, 5, 5, 9, 15]),
        (AT_30, [5], [3, 5]),
        # at 2.5 and 5 ticks
        (AT_20, [5, 15], [2, 4, 7, 11, 15]),
    ],
)
def test_linear_targets_at_the_end_of_each_tick_are_worked_out_by_hand(ticks, points, found):
    actions = to_ticks(MOBILE.parts, mobile(points), ticks, how="linear", before=np.zeros(5, np.float32))
    np.testing.assert_allclose(actions[:, 0], found, rtol=1e-6)
    np.testing.assert_allclose(actions[:, 1], -np.array(found), rtol=1e-6)
    assert actions[-1, 0] == points[-1]  # reached at the last tick


def test_steps_of_a_fraction_of_ticks_are_worked_out_by_hand():
    # 50/30: step 0 is tick 0 and 2/3 of tick 1; step 1 ends with 1/3 of tick 3; step 2 with tick 4
    deltas = np.zeros((5, 8), np.float32)
    deltas[:, 0], deltas[:, 6], deltas[:, 7] = [3, 4, 6, 8, 9], np.arange(5), [3, 4, 6, 8, 9]
    steps = to_steps(DELTAS.parts, deltas, AT_30)
    sums = [3 + 2 / 3 * 4, 1 / 3 * 4 + 6 + 1 / 3 * 8, 2 / 3 * 8 + 9]
    np.testing.assert_allclose(steps[:, 0], sums, rtol=1e-6)
    np.testing.assert_allclose(steps[:, 7], np.array(sums) / (5 / 3), rtol=1e-6)  # the mean velocity
    assert steps[:, 6].tolist() == [0, 2, 4]  # ticks 0, 2 and 4 are the last that end in a step
    targets = to_steps(MOBILE.parts, mobile([1, 2, 3, 5, 9]), AT_30)
    np.testing.assert_allclose(targets[:, 0], [1 + 2 / 3, 3 + 1 / 3 * 2, 9], rtol=1e-6)
    # 50/20: half of tick 2 belongs to each step
    steps = to_steps(DELTAS.parts, deltas, AT_20)
    np.testing.assert_allclose(steps[:, 0], [3 + 4 + 3, 3 + 8 + 9], rtol=1e-6)
    np.testing.assert_allclose(steps[:, 7], [4, 8], rtol=1e-6)
    assert steps[:, 6].tolist() == [1, 4]
    targets = to_steps(MOBILE.parts, mobile([1, 2, 3, 5, 9]), AT_20)
    np.testing.assert_allclose(targets[:, 0], [2.5, 9], rtol=1e-6)


def test_a_fraction_of_a_step_at_the_end_of_an_episode_counts_the_ticks_that_exist():
    exists = np.array([[True] * 3 + [False] * 2, [True] + [False] * 4])
    deltas = np.zeros((2, 5, 8), np.float32)
    deltas[..., 0] = deltas[..., 7] = [3, 4, 6, 99, 99]
    steps = to_steps(DELTAS.parts, deltas, AT_30, exists=exists)
    np.testing.assert_allclose(steps[..., 0], [[3 + 2 / 3 * 4, 1 / 3 * 4 + 6, 0], [3, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(steps[0, :2, 7], [(3 + 2 / 3 * 4) * 0.6, (1 / 3 * 4 + 6) / (4 / 3)], rtol=1e-6)
    targets = to_steps(MOBILE.parts, np.stack([mobile([1, 2, 3, 3, 3])] * 2), AT_30, exists=exists)
    np.testing.assert_allclose(targets[0, :, 0], [1 + 2 / 3, 3, 3], rtol=1e-6)
    assert targets[1, 0, 0] == 1.0


@settings(deadline=None)
@given(st.data(), RATIOS, st.integers(1, 6))
def test_even_motion_is_the_same_chunk_after_ticks_and_back(data, ticks, horizon):
    """Deltas and velocities that do not change, and targets on a line; grippers in any case."""
    for spec, gripper in ((MOBILE, 2), (DELTAS, 6), (TARGETS, 6)):
        first = data.draw(arrays(np.float32, spec.action.shape, elements=NUMBERS))
        chunk = np.repeat(first[None], horizon, axis=0)
        chunk[:, gripper] = data.draw(arrays(np.float32, (horizon,), elements=NUMBERS))
        for how in ("linear", "hold"):
            back = to_steps(spec.parts, to_ticks(spec.parts, chunk, ticks, how=how), ticks)
            np.testing.assert_allclose(back, chunk, atol=1e-5)
            np.testing.assert_array_equal(back[:, gripper], chunk[:, gripper])
    line = mobile(0.1 * (1 + np.arange(horizon)))
    there = to_ticks(MOBILE.parts, line, ticks, how="linear", before=np.zeros(5, np.float32))
    back = to_steps(MOBILE.parts, there, ticks)
    np.testing.assert_allclose(back[:-1, :2], line[:-1, :2], atol=1e-5)  # the last one stays where it is


@settings(deadline=None)
@given(st.data(), RATIOS, st.integers(1, 6), st.sampled_from(["linear", "hold"]))
def test_no_tick_is_faster_than_the_limit_of_a_tick(data, ticks, horizon, how):
    seen = at_policy_rate(DELTAS, ticks)
    high = np.array(seen.action.high, np.float32)
    chunk = data.draw(chunks(DELTAS, horizon)) * high  # at most the limits of a step
    actions = to_ticks(DELTAS.parts, chunk, ticks, how=how)
    assert (np.abs(actions) <= np.array(DELTAS.action.high) * (1 + 1e-5) + 1e-9).all()
    if (horizon * ticks).denominator == 1:
        np.testing.assert_allclose(actions[:, :6].sum(axis=0), chunk[:, :6].sum(axis=0), atol=1e-4)
    before = np.zeros(5, np.float32)
    points = np.cumsum(data.draw(chunks(MOBILE, horizon)), axis=0)  # at most 1 per step
    reached = to_ticks(MOBILE.parts, points, ticks, how="linear", before=before)[:, :2]
    speed = np.abs(np.diff(np.concatenate((before[None, :2], reached)), axis=0))
    assert speed.max() <= 1.0 / float(ticks) + 1e-5
    np.testing.assert_array_equal(reached[-1], points[-1, :2])


@given(RATIOS, st.integers(1, 40))
def test_edges_of_steps_and_ticks_agree(ticks, count):
    begins = [step * ticks for step in range(count + 1)]
    assert first_tick(count, ticks) == math.floor(begins[-1])
    assert covering_ticks(count, ticks) == math.ceil(begins[-1])
    assert abs(nearest_ticks(count, ticks) - begins[-1]) <= Fraction(1, 2)
    assert begun_steps(count, ticks) == sum(begin < count for begin in begins)
    assert begun_steps(np.array([count]), ticks).tolist() == [begun_steps(count, ticks)]
    of_step, overlap = ticks_of_steps(count, ticks)
    np.testing.assert_allclose(overlap.sum(axis=1), float(ticks))
    total = np.bincount(of_step.ravel(), overlap.ravel(), minlength=covering_ticks(count, ticks))
    np.testing.assert_allclose(total[: first_tick(count, ticks)], 1.0)  # each tick is divided among steps
    assert len(total) == covering_ticks(count, ticks)


def test_rotation_targets_between_two_ticks_turn_the_short_way():
    ticks = np.zeros((5, 8), np.float32)
    ticks[:, 5] = [3.1, -3.1, -3.1, -3.1, -3.1]  # 0.083 rad apart, not 6.2; in reverse order for the other batch
    steps = to_steps(TARGETS.parts, np.stack((ticks, -ticks)), AT_30).astype(np.float64)
    for batch, sign in ((0, 1.0), (1, -1.0)):
        turned = rotation_between(quat_of(sign * np.array([0, 0, 3.1])), quat_of(steps[batch, 0, 3:6]))
        np.testing.assert_allclose(turned, [0, 0, sign * 2 / 3 * (2 * np.pi - 6.2)], atol=1e-5)
        assert abs(steps[batch, 0, 5]) > 3.1
    np.testing.assert_allclose(steps[0, 1:, 5], -3.1, rtol=1e-6)


def test_axes_of_an_unknown_kind_are_held():
    """A robot that does not state what its axes are has no parts."""
    chunk = np.array([[1.0], [2.0], [4.0]], np.float32)
    actions = to_ticks((), chunk, AT_30, how="linear")
    assert actions[:, 0].tolist() == [1.0, 2.0, 2.0, 4.0, 4.0]
    np.testing.assert_array_equal(to_steps((), actions, AT_30), chunk)
