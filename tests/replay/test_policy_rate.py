"""Batches for a policy at a lower rate than the recording: the actions of its steps, its history and its returns."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from dovetail.core.policy_rate import to_steps
from dovetail.core.types import SampleRequest, View, Window
from dovetail.learn.batches import Batches
from support.joint_arm import ARM, fill, make_episode

TICKS = 3


@pytest.fixture
def replay(tmp_path):
    """12 steps; both joints are told to go to 0.01 (t + 1) at tick t."""
    actions = np.repeat((np.arange(12) + 1)[:, None] * 0.01, 2, axis=1)
    rewards = np.arange(12) * 0.1
    replay = fill(tmp_path, make_episode("a", actions, human=range(4, 12), rewards=rewards))
    yield replay
    replay.close()


def sample(replay, ticks_per_step=TICKS, **window):
    window = Window(ticks_per_step=ticks_per_step, **window)
    chunk = (window.horizon,) if window.horizon > 1 else ()
    num = 200
    into = {
        "action": np.zeros((num, *chunk, 2), np.float32),
        "human": np.zeros((num, *chunk), np.bool_),
        "reward": np.zeros(num, np.float32),
        "discount": np.zeros(num, np.float32),
        "next/joint_pos": np.zeros((num, *((3,) if window.history else ()), 2), np.float32),
        "observation/joint_pos": np.zeros((num, *((3,) if window.history else ()), 2), np.float32),
    }
    if chunk:
        into["action/mask"] = np.zeros((num, *chunk), np.bool_)
    if window.history:
        into["observation/joint_pos/mask"] = np.zeros((num, 3), np.bool_)
    replay.sample(into, view=View(), rng=np.random.default_rng(0), window=window)
    seen = into["observation/joint_pos"][..., -1, 0] if window.history else into["observation/joint_pos"][:, 0]
    return into, np.rint(100 * seen).astype(int)  # the tick of each row


def rows_at(ticks, tick):
    (rows,) = np.nonzero(ticks == tick)
    assert len(rows)
    return rows[0]


def test_chunk_has_the_target_at_the_end_of_each_step(replay):
    into, ticks = sample(replay, horizon=3)
    row = rows_at(ticks, 2)  # steps: ticks 2-4, 5-7, 8-10
    np.testing.assert_allclose(into["action"][row, :, 0], [0.05, 0.08, 0.11], atol=1e-6)
    assert into["action/mask"][row].all()
    assert into["human"][row].tolist() == [True, True, True]  # a person took over at tick 4
    row = rows_at(ticks, 0)
    assert into["human"][row].tolist() == [False, True, True]
    row = rows_at(ticks, 7)  # ticks 7-9, 10-11, none
    np.testing.assert_allclose(into["action"][row, :, 0], [0.10, 0.12, 0.12], atol=1e-6)
    assert into["action/mask"][row].tolist() == [True, True, False]


def test_single_action_and_the_observation_after_it(replay):
    into, ticks = sample(replay)
    row = rows_at(ticks, 4)
    np.testing.assert_allclose(into["action"][row], 0.07, atol=1e-6)
    np.testing.assert_allclose(into["next/joint_pos"][row], 0.07, atol=1e-6)  # three ticks later


def test_returns_discount_per_policy_step(replay):
    into, ticks = sample(replay, num_steps=2, gamma=0.9)
    row = rows_at(ticks, 1)  # ticks 1 to 6
    per_tick = 0.9 ** (1 / 3)
    expected = sum(per_tick**i * 0.1 * (1 + i) for i in range(6))
    np.testing.assert_allclose(into["reward"][row], expected, rtol=1e-5)
    np.testing.assert_allclose(into["discount"][row], 0.9**2, rtol=1e-5)
    np.testing.assert_allclose(into["next/joint_pos"][row], 0.07, atol=1e-6)
    assert into["discount"][rows_at(ticks, 8)] == 0.0  # the episode ends within it


def test_history_has_every_third_observation_left_padded(replay):
    into, ticks = sample(replay, history={"joint_pos": 3})
    row = rows_at(ticks, 8)
    np.testing.assert_allclose(into["observation/joint_pos"][row, :, 0], [0.02, 0.05, 0.08], atol=1e-6)
    assert into["observation/joint_pos/mask"][row].all()
    row = rows_at(ticks, 4)  # tick 1, and nothing before tick 0
    np.testing.assert_allclose(into["observation/joint_pos"][row, :, 0], [0.0, 0.01, 0.04], atol=1e-6)
    assert into["observation/joint_pos/mask"][row].tolist() == [False, True, True]


def test_batches_of_a_learner_use_the_policys_rate(replay):
    request = SampleRequest(
        observation_keys=("joint_pos",),
        rows={View(part="human", min_source_run=2): 50},
        window=Window(horizon=2),
        next_observations=False,
    )
    batches = Batches(
        request=request, robot=ARM, replay=replay, rng=np.random.default_rng(0), num_ahead=0, ticks_per_step=TICKS
    )
    (batch,) = batches.take(1)
    ticks = np.rint(100 * batch["observation/joint_pos"][:, 0].numpy()).astype(int)
    assert set(ticks.tolist()) == {4, 5, 6}  # 2 steps are 6 ticks by the person, who drives from 4 to 11
    expected = np.stack([0.01 * (ticks + 3), 0.01 * (ticks + 6)], axis=1)
    np.testing.assert_allclose(batch["action"][..., 0].numpy(), expected, atol=1e-6)
    batches.set_request(dataclasses.replace(request, rows={View(): 50}))  # views may change


def test_combining_equals_the_function_that_the_actor_uses(replay):
    into, ticks = sample(replay, horizon=2)
    recorded = np.repeat((np.arange(12) + 1)[:, None] * 0.01, 2, axis=1).astype(np.float32)
    for row, tick in enumerate(ticks):
        if tick + 6 <= 12:
            np.testing.assert_array_equal(
                into["action"][row], to_steps(ARM.parts, recorded[tick : tick + 6], TICKS)
            )


# ---- 5/3 ticks per step: a policy at 30 Hz on a robot at 50 Hz

AT_30 = Fraction(5, 3)


def test_chunk_at_a_fraction_of_ticks_has_the_target_at_the_end_of_each_step(replay):
    """The target of tick t is 0.01 (t + 1), the time at which tick t ends."""
    into, ticks = sample(replay, AT_30, horizon=3)
    row = rows_at(ticks, 2)  # steps end at 3.67, 5.33 and 7
    np.testing.assert_allclose(into["action"][row, :, 0], [0.11 / 3, 0.16 / 3, 0.07], atol=1e-6)
    assert into["action/mask"][row].all()
    assert into["human"][row].tolist() == [False, True, True]  # ticks 2-3, 3-5, 5-6; a person took over at tick 4
    row = rows_at(ticks, 8)  # steps end at 9.67, 11.33 and 13, but the episode at 12
    np.testing.assert_allclose(into["action"][row, :, 0], [0.29 / 3, 0.34 / 3, 0.12], atol=1e-6)
    assert into["action/mask"][row].all()  # 0.67 ticks of the third step exist
    row = rows_at(ticks, 9)  # the third one would begin at 12.33
    np.testing.assert_allclose(into["action"][row, :, 0], [0.32 / 3, 0.12, 0.12], atol=1e-6)
    assert into["action/mask"][row].tolist() == [True, True, False]


def test_returns_at_a_fraction_of_ticks_discount_by_time(replay):
    """2 steps are over after 4 ticks, which are 2.4 steps."""
    into, ticks = sample(replay, AT_30, num_steps=2, gamma=0.9)
    row = rows_at(ticks, 1)
    expected = sum(0.9 ** (0.6 * i) * 0.1 * (1 + i) for i in range(4))
    np.testing.assert_allclose(into["reward"][row], expected, rtol=1e-5)
    np.testing.assert_allclose(into["discount"][row], 0.9**2.4, rtol=1e-5)
    np.testing.assert_allclose(into["next/joint_pos"][row], 0.05, atol=1e-6)


def test_a_return_at_a_fraction_of_ticks_ends_where_a_person_takes_over(replay):
    into, ticks = sample(replay, AT_30, num_steps=2, gamma=1.0, stop_at_takeover=True)
    row = rows_at(ticks, 1)  # of ticks 1 to 4, tick 4 is the person's, within the second step
    np.testing.assert_allclose(into["reward"][row], 0.1 + 0.2 + 0.3, rtol=1e-5)
    np.testing.assert_allclose(into["next/joint_pos"][row], 0.04, atol=1e-6)


def test_history_at_a_fraction_of_ticks_has_the_nearest_observations(replay):
    into, ticks = sample(replay, AT_30, history={"joint_pos": 3})
    row = rows_at(ticks, 8)  # 3.33, 1.67 and 0 ticks ago
    np.testing.assert_allclose(into["observation/joint_pos"][row, :, 0], [0.05, 0.06, 0.08], atol=1e-6)
    row = rows_at(ticks, 2)
    np.testing.assert_allclose(into["observation/joint_pos"][row, :, 0], [0.0, 0.0, 0.02], atol=1e-6)
    assert into["observation/joint_pos/mask"][row].tolist() == [False, True, True]


def test_a_run_of_steps_lasts_until_they_are_over(replay):
    request = SampleRequest(
        observation_keys=("joint_pos",),
        rows={View(part="human", min_source_run=2): 50},
        window=Window(horizon=2),
        next_observations=False,
    )
    batches = Batches(
        request=request, robot=ARM, replay=replay, rng=np.random.default_rng(0), num_ahead=0, ticks_per_step=AT_30
    )
    (batch,) = batches.take(1)
    ticks = np.rint(100 * batch["observation/joint_pos"][:, 0].numpy()).astype(int)
    assert set(ticks.tolist()) == {4, 5, 6, 7, 8}  # 2 steps are 4 ticks by the person, who drives from 4 to 11
    expected = 0.01 * np.stack([ticks + 5 / 3, ticks + 10 / 3], axis=1)
    np.testing.assert_allclose(batch["action"][..., 0].numpy(), expected, atol=1e-6)
