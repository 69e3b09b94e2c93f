"""A policy at 10 Hz on a robot at 50 Hz: requests, delays and committed actions, worked out by hand.

One step of the policy is 5 ticks. H = 8 steps and s = 4 steps. Step i of chunk n moves by 5 (100 n + i), so that each of its
ticks moves by 100 n + i.
"""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.actor.actors import ActorConfig, board_layout, policy_ticks
from dovetail.actor.board import Board, BoardLayout
from dovetail.actor.modes import Naive, Rtc, Sequential, Soft
from dovetail.actor.planner import Delays
from dovetail.core.errors import ConfigError
from dovetail.core.policy_rate import at_policy_rate
from dovetail.core.specs import PolicySpec
from dovetail.core.types import Observation
from dovetail.testing.mobile_arm import FakeMobileArm, FakeMobileArmConfig
from support.acting import ScriptedInference, make_planner
from support.pose_arms import PoseArms

TICKS, H = 5, 8
DELTAS = PoseArms("ee_delta", "base", hz=50.0).spec
JOINTS = FakeMobileArm(FakeMobileArmConfig(control_hz=50.0)).spec


def policy(robot, ticks=TICKS, **spec):
    seen = at_policy_rate(robot, ticks)
    return PolicySpec(name="slow", observation={}, parts=seen.parts, horizon=H, guidable=True, **spec)


def deltas(number):
    chunk = np.zeros((H, 8), np.float32)
    chunk[:, 0] = TICKS * (100.0 * number + np.arange(H))
    chunk[:, 6] = number  # the gripper
    return chunk


def planner_of(mode, reply, *, robot=DELTAS, how="linear", ticks=TICKS, **options):
    inference = ScriptedInference(reply)
    spec = policy(robot, ticks)
    made = make_planner(
        mode, inference, spec=spec, ticks_per_step=ticks, resample=how, **{"delays": Delays(), **options}
    )
    return made, inference


def run(planner, ticks):
    found = [planner.action_for(tick) for tick in ticks]
    return [None if one is None else pytest.approx(float(one.action[0])) for one in found]


def test_rtc_request_in_time_matches_values_computed_by_hand():
    """Inference takes 7 ticks: ticks 20 to 26 are committed, which are step 4 and a part of step 5 of the old chunk."""
    planner, inference = planner_of(Rtc(), deltas, simulated_delay=7)
    assert run(planner, range(7)) == [None] * 7
    assert run(planner, range(7, 20)) == [101.0] * 3 + [102.0] * 5 + [103.0] * 5
    assert run(planner, range(20, 27)) == [104.0] * 5 + [105.0] * 2
    first, second = inference.requests
    assert (first.row, first.delay, first.horizon, first.prefix) == (0, 0, 4, None)
    assert (second.row, second.delay, second.horizon) == (20, 2, 4)  # 7 ticks are 2 steps; 20 ticks are 4
    assert second.prefix.shape == (H, 8)  # in steps of the policy
    np.testing.assert_allclose(second.prefix[:4, 0], [5 * 104, 5 * 105, 5 * 106, 5 * 107])
    np.testing.assert_allclose(second.prefix[:4, 6], 1.0)
    assert np.isnan(second.prefix[4:]).all()
    assert run(planner, range(27, 35)) == [201.0] * 3 + [202.0] * 5  # tick 27 is index 7 of the new chunk


def test_rtc_request_between_two_steps_matches_values_computed_by_hand():
    """Inference takes 22 ticks, so the second request comes in the middle of step 4 of the old chunk, at index 22."""
    planner, inference = planner_of(Rtc(), deltas, simulated_delay=22)
    run(planner, range(23))
    request = inference.requests[1]
    assert request.row == 22
    assert request.horizon == 5  # step 4 has begun
    assert request.delay == 3  # 18 ticks are left: 3 whole steps, and 8 - 5
    sums = [3 * 104 + 2 * 105, 3 * 105 + 2 * 106, 3 * 106 + 2 * 107]
    np.testing.assert_allclose(request.prefix[:3, 0], sums)
    assert np.isnan(request.prefix[3:]).all()


@pytest.mark.parametrize(("delay_ticks", "steps"), [(0, 0), (1, 1), (5, 1), (6, 2), (20, 4)])
def test_a_step_that_has_begun_is_committed_as_a_whole(delay_ticks, steps):
    delays = Delays()
    planner, inference = planner_of(Rtc(), deltas, simulated_delay=0, delays=delays)
    run(planner, range(20))
    delays._recent.clear()
    delays.measured(delay_ticks)
    run(planner, [20])
    assert inference.requests[1].delay == steps


def joints(number):
    chunk = np.zeros((H, 5), np.float32)
    chunk[:, 0] = 100.0 * number + np.arange(H)
    chunk[:, 2] = number % 2
    return chunk


def test_linear_targets_start_at_the_last_action_and_reach_each_step_at_its_last_tick():
    planner, _ = planner_of(Sequential(), joints, robot=JOINTS, simulated_delay=0)
    before = np.array([90.0, 0, 0, 0, 0], np.float32)
    found = []
    for tick in range(8):
        found.append(float(planner.action_for(tick, before=before).action[0]))
    np.testing.assert_allclose(found, [92, 94, 96, 98, 100, 100.2, 100.4, 100.6], rtol=1e-6)
    held, _ = planner_of(Sequential(), joints, robot=JOINTS, how="hold", simulated_delay=0)
    assert run(held, range(8)) == [100.0] * 5 + [101.0] * 3


def test_a_chunk_that_ran_during_inference_starts_where_the_arm_was_at_the_request():
    planner, _ = planner_of(Naive(), joints, robot=JOINTS, simulated_delay=2)
    found = [planner.action_for(tick, before=np.full(5, 90.0 + tick, np.float32)) for tick in range(5)]
    values = [None if one is None else float(one.action[0]) for one in found]
    assert values[:2] == [None, None]
    np.testing.assert_allclose(values[2:], [96, 98, 100], rtol=1e-6)  # from 90, the action before tick 0


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([Sequential(), Naive(), Rtc(), Soft()]),
    st.integers(0, 25),
    st.integers(1, H),
)
def test_each_tick_gets_its_share_of_the_step_to_which_it_belongs(mode, delay, horizon):
    planner, inference = planner_of(mode, deltas, simulated_delay=delay, execution_horizon=horizon)
    for tick in range(120):
        found = planner.action_for(tick)
        if found is not None and not isinstance(mode, Soft):
            step = found.chunk_index // TICKS
            assert float(found.action[0]) % 100 == pytest.approx(step, abs=1e-3)
    for request in inference.requests:
        assert 0 <= request.delay <= H and 1 <= request.horizon <= H
        if request.prefix is not None:
            num_valid = int(np.isfinite(request.prefix).all(axis=1).sum())
            assert num_valid == H - request.horizon and request.delay <= num_valid


def test_history_has_one_entry_per_step_of_the_policy():
    config = ActorConfig(policy_hz=10.0, resample="linear")
    spec = policy(JOINTS, history={"joint_pos": 3})
    spec = PolicySpec.from_json(
        spec.to_json() | {"observation": {"joint_pos": JOINTS.observation["joint_pos"].to_json()}}
    )
    board = Board(board_layout(config, robot=JOINTS, policy=spec, extras={}))
    for tick in range(13):
        values = {key: np.full(one.shape, tick, np.float32) for key, one in JOINTS.observation.items()}
        board.observe(Observation(time_ns=tick, values=values))
    inputs = board.inputs(spec, row=12, first=0)
    assert inputs["joint_pos"][0, :, 0].tolist() == [2, 7, 12]
    assert inputs["joint_pos/mask"].tolist() == [[True] * 3]
    inputs = board.inputs(spec, row=12, first=4)
    assert inputs["joint_pos"][0, :, 0].tolist() == [4, 7, 12]
    assert inputs["joint_pos/mask"].tolist() == [[False, True, True]]


def test_rates_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="resample to linear or hold"):
        policy_ticks(ActorConfig(policy_hz=10.0), control_hz=50.0)
    with pytest.raises(ConfigError, match="at most 50"):
        policy_ticks(ActorConfig(policy_hz=60.0, resample="hold"), control_hz=50.0)
    assert policy_ticks(ActorConfig(policy_hz=50.0), control_hz=50.0) == 1


# ---- a policy at 30 Hz: a step is 5/3 ticks, and 4 steps end within 7 ticks

AT_30 = Fraction(5, 3)


def deltas_at_30(number):
    """A tick within step i of chunk n moves by 100 n + i."""
    chunk = deltas(number)
    chunk[:, 0] *= float(AT_30) / TICKS
    chunk[:, 6] = 10 * number + np.arange(H)
    return chunk


def test_rtc_at_a_fraction_of_ticks_matches_values_computed_by_hand():
    """Inference takes 3 ticks: ticks 7 to 9 are committed, which are 1.8 steps, so 2 steps of the new chunk."""
    planner, inference = planner_of(Rtc(), deltas_at_30, ticks=AT_30, simulated_delay=3)
    assert run(planner, range(3)) == [None] * 3
    # step 1 ends in tick 3 and step 2 has the rest of it; step 3 ends in tick 6
    assert run(planner, range(3, 7)) == [101 + 2 / 3, 102.0, 103.0, 103 + 1 / 3]
    assert run(planner, range(7, 10)) == [104.0, 104 + 2 / 3, 105.0]  # step 4 ends in tick 8
    first, second = inference.requests
    assert (first.row, first.delay, first.horizon, first.prefix) == (0, 0, 5, None)
    assert (second.row, second.delay, second.horizon) == (7, 2, 5)  # 7 ticks are 4.2 steps: step 4 has begun
    # steps of the request end 1.67, 3.33 and 5 ticks after tick 7; ticks 10 and 11 move by 106 and 106.33
    sums = [104 + 2 / 3 * (104 + 2 / 3), 1 / 3 * (104 + 2 / 3) + 105 + 1 / 3 * 106, 2 / 3 * 106 + 106 + 1 / 3]
    np.testing.assert_allclose(second.prefix[:3, 0], sums, rtol=1e-6)
    assert second.prefix[:3, 6].tolist() == [
        14,
        15,
        17,
    ]  # of ticks 7, 9 and 11: at their ends steps 4, 5 and 7 act
    assert np.isnan(second.prefix[3:]).all()
    assert run(planner, range(10, 13)) == [201 + 2 / 3, 202.0, 203.0]  # tick 10 is index 3 of the new chunk


@pytest.mark.parametrize(("delay_ticks", "steps"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 3)])
def test_a_delay_in_ticks_is_rounded_up_to_steps_that_are_left(delay_ticks, steps):
    delays = Delays()
    planner, inference = planner_of(Rtc(), deltas_at_30, ticks=AT_30, simulated_delay=0, delays=delays)
    run(planner, range(7))
    delays._recent.clear()
    delays.measured(delay_ticks)
    run(planner, [7])
    assert inference.requests[1].delay == steps  # at most 3 of 8 steps are left


def test_a_chunk_lasts_until_its_last_step_is_over_and_targets_reach_its_last_point():
    planner, inference = planner_of(
        Sequential(), joints, robot=JOINTS, ticks=AT_30, simulated_delay=0, execution_horizon=H
    )
    before = np.array([95.0, 0, 0, 0, 0], np.float32)
    found = [float(planner.action_for(tick, before=before).action[0]) for tick in range(14)]
    assert len(inference.requests) == 1  # 8 steps are 13.33 ticks
    # from 95 to 100 in 1.67 ticks, then by 0.6 per tick, and the last point
    np.testing.assert_allclose(
        found, [98, *(100 + 0.6 * (tick + 1 - 5 / 3) for tick in range(1, 13)), 107], rtol=1e-6
    )
    planner.action_for(14, before=before)
    assert [request.row for request in inference.requests] == [0, 14]


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([Sequential(), Naive(), Rtc(), Soft()]),
    st.sampled_from([AT_30, Fraction(5, 2), Fraction(50, 49), Fraction(5000, 2997)]),
    st.integers(0, 25),
    st.integers(1, H),
)
def test_requests_at_a_fraction_of_ticks_fit_the_chunk(mode, ticks, delay, horizon):
    planner, inference = planner_of(
        mode, deltas_at_30, ticks=ticks, simulated_delay=delay, execution_horizon=horizon
    )
    for tick in range(80):
        found = planner.action_for(tick)
        assert found is None or np.isfinite(found.action).all()
    for request in inference.requests:
        assert 0 <= request.delay <= H and 1 <= request.horizon <= H
        if request.prefix is not None:
            assert request.prefix.shape == (H, 8)
            num_valid = int(np.isfinite(request.prefix).all(axis=1).sum())
            assert num_valid == H - request.horizon and request.delay <= num_valid


def test_history_at_a_fraction_of_ticks_has_the_nearest_rows():
    spec = PolicySpec.from_json(
        policy(JOINTS, AT_30, history={"joint_pos": 4}).to_json()
        | {"observation": {"joint_pos": JOINTS.observation["joint_pos"].to_json()}}
    )
    layout = board_layout(ActorConfig(policy_hz=30.0, resample="linear"), robot=JOINTS, policy=spec, extras={})
    assert layout.num_rows == 6 * 50 + 7 + 8  # the longest history is 4 steps: 7 ticks
    board = Board(BoardLayout.from_json(json.loads(json.dumps(layout.to_json()))))  # as another process opens it
    for tick in range(13):
        values = {key: np.full(one.shape, tick, np.float32) for key, one in JOINTS.observation.items()}
        board.observe(Observation(time_ns=tick, values=values))
    inputs = board.inputs(spec, row=12, first=8)
    assert inputs["joint_pos"][0, :, 0].tolist() == [
        8,
        9,
        10,
        12,
    ]  # 5, 3.33, 1.67 and 0 ticks ago, but not before 8
    assert inputs["joint_pos/mask"].tolist() == [[False, True, True, True]]
