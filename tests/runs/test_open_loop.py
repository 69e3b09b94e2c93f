"""A policy on recorded observations: the inputs it gets, and errors worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dovetail.core.action_parts import ActionPart
from dovetail.core.policy_rate import at_policy_rate
from dovetail.core.prompts import decode_prompt
from dovetail.core.specs import PolicySpec
from dovetail.runs.open_loop import OpenLoopErrors, Predicted, predict
from support.counting_policy import CountingPolicy, CountingPolicyConfig
from support.made_runs import ROBOT, made_episode
from support.prompt_changes import with_prompts


def counting(robot=ROBOT, **settings):
    CountingPolicy.calls.clear()
    return CountingPolicy(CountingPolicyConfig(**settings), robot=robot)


def spec_of(num_axes=2, parts=()):
    robot = ROBOT if num_axes == 2 else None
    if parts:
        return PolicySpec(name="p", observation={}, parts=parts, horizon=2)
    return PolicySpec(name="p", observation={}, action=robot.action, action_kind="ee_delta", horizon=2)


def predicted(recorded, starts, chunks):
    return Predicted(
        episode_id="e",
        prompt="",
        recorded=np.array(recorded, np.float32),
        starts=np.array(starts),
        chunks=np.array(chunks, np.float32),
    )


def test_a_policy_that_repeats_the_recording_has_no_error():
    found = predict(counting(), made_episode("e", num_steps=7), ticks=1, every=3)
    assert found.starts.tolist() == [0, 3, 6]
    assert found.chunks[1, :, 0].tolist() == [3.0, 4.0, 5.0]
    assert np.isnan(found.targets[2, 1:]).all() and found.targets[2, 0].tolist() == [6.0, -6.0]
    errors = OpenLoopErrors.of([found], counting().spec)
    assert errors.num_compared.tolist() == [3, 2, 2]
    assert errors.mae.tolist() == [0.0, 0.0] and errors.rmse_by_step.max() == 0.0


def test_errors_per_axis_and_step_are_those_worked_out_by_hand():
    # errors of axis 0: 1, 3 | -1, beyond the end; axis 1 never moves in the data
    one = predicted([(0, 5), (0, 5), (4, 5)], [0, 2], [[(1, 5), (3, 5)], [(3, 5), (99, 99)]])
    errors = OpenLoopErrors.of([one], spec_of())
    assert errors.num_compared.tolist() == [2, 1]
    np.testing.assert_allclose(errors.mae_by_step, [[1.0, 0.0], [3.0, 0.0]])
    np.testing.assert_allclose(errors.rmse_by_step, [[1.0, 0.0], [3.0, 0.0]])
    np.testing.assert_allclose(errors.mae, [5 / 3, 0.0])
    np.testing.assert_allclose(errors.rmse, [np.sqrt(11 / 3), 0.0])
    spread = np.sqrt(32 / 9)  # of 0, 0, 4
    np.testing.assert_allclose(errors.spread, [spread, 0.0])
    np.testing.assert_allclose(errors.relative, [np.sqrt(11 / 3) / spread, np.nan])


def test_a_chunk_that_is_longer_than_all_episodes_has_no_error_at_its_end():
    errors = OpenLoopErrors.of([predicted([(1, 2)], [0], [[(2, 2), (9, 9)]])], spec_of())
    assert errors.num_compared.tolist() == [1, 0]
    assert np.isnan(errors.rmse_by_step[1]).all()
    assert errors.mae.tolist() == [1.0, 0.0]


def test_the_mean_action_has_a_relative_error_of_one():
    recorded = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    chunks = np.broadcast_to(recorded.mean(axis=0), (20, 2, 2))
    errors = OpenLoopErrors.of([predicted(recorded, np.arange(0, 40, 2), chunks)], spec_of())
    np.testing.assert_allclose(errors.relative, 1.0, rtol=1e-5)


def test_rotation_targets_are_compared_as_rotations():
    pose = ActionPart(
        name="arm",
        kind="ee_target",
        unit="m+rad",
        names=("x", "y", "z", "rx", "ry", "rz"),
        low=(-4.0,) * 6,
        high=(4.0,) * 6,
        max_speed=(1.0,) * 6,
        hold="measured",
        frame="base",
        measured="ee_pose",
    )
    one = predicted([(0, 0, 0, 0, 0, np.pi - 0.1)], [0], [[(0, 0, 0, 0, 0, -np.pi + 0.1)]])
    errors = OpenLoopErrors.of([one], spec_of(parts=(pose,)))
    np.testing.assert_allclose(errors.mae[5], 0.2, atol=1e-5)


def test_each_chunk_is_requested_with_the_prompt_of_its_step():
    episode = with_prompts(made_episode("e", num_steps=7), {3: "turn it", 5: "let go"})
    predict(counting(), episode, ticks=1, every=2)
    given = [decode_prompt(inputs["prompt"][0]) for inputs in CountingPolicy.calls]
    assert given == ["put the peg in", "put the peg in", "turn it", "let go"]  # at steps 0, 2, 4 and 6


def test_the_policy_gets_prompt_history_and_scaled_images_as_in_acting():
    small = replace(
        ROBOT,
        observation={
            **ROBOT.observation,
            "front": replace(ROBOT.observation["front"], shape=(6, 8, 3)),
            "depth": replace(ROBOT.observation["depth"], shape=(3, 4, 1)),
        },
    )
    before = CountingPolicy.num_resets
    policy = counting(small, keys=("state", "front", "depth"), horizon=2, history={"state": 3, "front": 2})
    predict(policy, made_episode("e", num_steps=5), ticks=1, every=2)
    first, second, third = CountingPolicy.calls
    assert CountingPolicy.num_resets == before + 1
    assert decode_prompt(first["prompt"][0]) == "put the peg in"
    assert first["state"][0, :, 0].tolist() == [0.0, 0.0, 0.0]
    assert first["state/mask"].tolist() == [[False, False, True]]
    assert third["state"][0, :, 0].tolist() == [2.0, 3.0, 4.0] and third["state/mask"].all()
    assert third["front"].shape == (1, 2, 6, 8, 3) and third["front"][0, :, 0, 0, 0].tolist() == [41, 42]
    assert second["depth"].shape == (1, 3, 4, 1) and second["depth"].max() == 1002


def test_a_slower_policy_is_compared_in_its_own_steps():
    """Deltas of 2 ticks are summed: (0 + 1), (2 + 3), (4 + 5). The state at each step is 0, 2, 4."""
    policy = counting(at_policy_rate(ROBOT, 2), horizon=1, history={"state": 2})
    found = predict(policy, made_episode("e", num_steps=7), ticks=2, every=1)
    assert found.recorded[:, 0].tolist() == [1.0, 5.0, 9.0]
    assert found.chunks[:, 0, 0].tolist() == [0.0, 2.0, 4.0]
    assert CountingPolicy.calls[2]["state"][0, :, 0].tolist() == [2.0, 4.0]


def test_chunks_at_a_fraction_of_ticks_begin_at_the_nearest_tick():
    """Steps of 5/3 ticks begin at 0, 1.67, 3.33 and 5; delta t of tick t is divided by their overlap."""
    policy = counting(at_policy_rate(ROBOT, Fraction(5, 3)), horizon=1, history={"state": 2})
    found = predict(policy, made_episode("e", num_steps=7), ticks=Fraction(5, 3), every=1)
    np.testing.assert_allclose(found.recorded[:, 0], [2 / 3, 1 / 3 + 2 + 1, 2 + 4, 5 + 4], rtol=1e-6)
    assert found.chunks[:, 0, 0].tolist() == [0.0, 2.0, 3.0, 5.0]
    assert CountingPolicy.calls[3]["state"][0, :, 0].tolist() == [3.0, 5.0]


@pytest.mark.parametrize(("every", "starts"), [(1, [0, 1, 2, 3]), (3, [0, 3]), (9, [0])])
def test_chunks_begin_every_so_many_steps(every, starts):
    assert predict(counting(), made_episode("e", num_steps=4), ticks=1, every=every).starts.tolist() == starts
