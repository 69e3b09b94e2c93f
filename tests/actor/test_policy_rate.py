"""A policy at 10 Hz on a robot at 50 Hz: requests, delays and committed actions, worked out by hand.

One step of the policy is 5 ticks. H = 8 steps and s = 4 steps. Step i of chunk n moves by 5 (100 n + i), so that each of its
ticks moves by 100 n + i.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.actor.actors import ActorConfig, board_layout, policy_ticks
from dovetail.actor.board import Board
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


def policy(robot, **spec):
    seen = at_policy_rate(robot, TICKS)
    return PolicySpec(name="slow", observation={}, parts=seen.parts, horizon=H, guidable=True, **spec)


def deltas(number):
    chunk = np.zeros((H, 8), np.float32)
    chunk[:, 0] = TICKS * (100.0 * number + np.arange(H))
    chunk[:, 6] = number  # the gripper
    return chunk


def planner_of(mode, reply, *, robot=DELTAS, how="linear", **options):
    inference = ScriptedInference(reply)
    made = make_planner(
        mode, inference, spec=policy(robot), ticks_per_step=TICKS, resample=how, **{"delays": Delays(), **options}
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
    with pytest.raises(ConfigError, match="whole multiple"):
        policy_ticks(ActorConfig(policy_hz=20.0, resample="hold"), control_hz=50.0)
    assert policy_ticks(ActorConfig(policy_hz=50.0), control_hz=50.0) == 1
