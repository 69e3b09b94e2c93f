"""From chunks to actions: when and what the planner requests, where it continues, and which answers it refuses.

H = 8 and s = 4 in all tests. Chunk n has the value 100 n + i at index i.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.actor.inference import NO_ANSWER
from dovetail.actor.modes import Naive, Rtc, Sequential, Soft
from dovetail.actor.planner import Delays
from dovetail.actor.telemetry import Telemetry
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import RobotFault, UsageError
from dovetail.core.specs import BaseSpec
from support.acting import SPEC, A, FakeClock, H, ScriptedInference, chunk, make_planner

MODES = [Sequential(), Naive(), Rtc(), Soft()]
OVERLAPPING = MODES[1:]


def value(due):
    return None if due is None else float(due.action[0])


def run(planner, ticks, **settings):
    """What is due at each tick; None where the arm is to hold."""
    return [value(planner.action_for(tick, **settings)) for tick in ticks]


def scripted_planner(mode, inference=None, **settings):
    inference = inference or ScriptedInference()
    return make_planner(mode, inference, **settings), inference


# ---- asking


@pytest.mark.parametrize("mode", OVERLAPPING)
def test_next_chunk_is_requested_after_the_horizon_while_acting(mode):
    planner, inference = scripted_planner(mode)
    assert run(planner, [0]) == [None]
    inference.set_answer(chunk(1))
    assert run(planner, [1, 2, 3]) == [101, 102, 103]
    assert len(inference.requests) == 1
    assert run(planner, [4, 5, 6]) == [104, 105, 106]
    assert [request.row for request in inference.requests] == [0, 4]


def test_sequential_holds_while_the_next_chunk_is_computed():
    planner, inference = scripted_planner(Sequential())
    assert run(planner, [0, 1]) == [None, None]
    inference.set_answer(chunk(1))
    assert run(planner, [2, 3, 4, 5]) == [100, 101, 102, 103]  # all of it from where it came
    assert len(inference.requests) == 1
    assert run(planner, [6, 7, 8]) == [None] * 3
    assert [request.row for request in inference.requests] == [0, 6]
    inference.set_answer(chunk(2))
    assert run(planner, [9, 10]) == [200, 201]


@pytest.mark.parametrize("mode", MODES)
def test_only_one_request_is_pending(mode):
    planner, inference = scripted_planner(mode)
    run(planner, range(5))
    assert len(inference.requests) == 1


@pytest.mark.parametrize("mode", [Sequential(), Naive(), Rtc()])
def test_temporary_short_horizon_requests_every_tick(mode):
    planner, _ = scripted_planner(mode, ScriptedInference(reply=chunk), simulated_delay=0)
    assert run(planner, [0, 1, 2], horizon=1) == [100, 200, 300]
    # only a sequential plan was made for one tick
    expected = [301, 302, 303, 400, 401] if mode.overlaps else [400, 401, 402, 403, 500]
    assert run(planner, [3, 4, 5, 6, 7]) == expected


def test_horizon_cannot_be_extended():
    planner, inference = scripted_planner(Naive(), ScriptedInference(reply=chunk), simulated_delay=0)
    run(planner, range(6), horizon=99)
    assert [request.row for request in inference.requests] == [0, 4]


def test_execution_horizon_is_limited_to_the_chunk():
    planner, _ = scripted_planner(
        Naive(), ScriptedInference(reply=chunk), simulated_delay=0, execution_horizon=100
    )
    assert run(planner, range(9)) == [100, 101, 102, 103, 104, 105, 106, 107, 200]


# ---- what an rtc request carries


def delayed(mode, delay):
    """In simulated time, where every answer takes so many ticks."""
    return scripted_planner(mode, ScriptedInference(reply=chunk), simulated_delay=delay)


def test_rtc_request_matches_values_computed_by_hand():
    """Answers take 2 ticks. The first starts at its place 2; at tick 4 four of its actions are used, four are left."""
    planner, inference = delayed(Rtc(), 2)
    assert run(planner, range(6)) == [None, None, 102, 103, 104, 105]
    first, second = inference.requests
    assert (first.row, first.prefix, first.delay, first.horizon) == (0, None, 0, 4)
    assert (second.row, second.delay, second.horizon) == (4, 2, 4)
    np.testing.assert_array_equal(second.prefix[:, 0], [104, 105, 106, 107, *[np.nan] * 4])
    assert second.prefix.shape == (H, A)
    assert run(planner, range(6, 9)) == [202, 203, 204]  # place 2 of the second, thought about tick 4


def test_late_request_uses_the_executed_part_of_the_chunk():
    """The person corrects, or the answer took longer than the horizon: 6 of 8 are used, so e = 2, and d is at most 2."""
    planner, inference = delayed(Rtc(), 6)
    run(planner, range(7))
    assert run(planner, [7]) == [107]
    second = inference.requests[1]
    assert (second.row, second.horizon, second.delay) == (6, 6, 2)
    np.testing.assert_array_equal(second.prefix[:, 0], [106, 107, *[np.nan] * 6])


@given(
    st.lists(st.integers(0, 12), max_size=12),
    st.integers(1, 5),
    st.integers(0, 10),
)
def test_delay_estimate_is_the_longest_recent_delay(measured, window, most):
    delays = Delays(window)
    for delay in measured:
        delays.measured(delay)
    assert delays.estimate(most=most) == min(max([0, *measured[-window:]]), most)


def test_delay_estimate_is_never_negative():
    delays = Delays(3)
    delays.measured(4)
    assert delays.estimate(most=-2) == 0


def test_delay_estimate_ignores_delays_outside_the_window():
    planner, inference = scripted_planner(Rtc(), delays=Delays(2))
    tick = 0
    for delay in (3, 1, 1, 0):
        asked = _ask(planner, inference, tick)
        tick = asked + delay
        inference.set_answer(chunk(1))
        planner.action_for(tick)
    _ask(planner, inference, tick)
    assert [request.delay for request in inference.requests] == [0, 3, 3, 1, 1]


def _ask(planner, inference, tick):
    """Tick on until it asks; the row it asked about."""
    num = len(inference.requests)
    while len(inference.requests) == num:
        planner.action_for(tick)
        tick += 1
    return inference.requests[-1].row


def test_delay_estimate_is_kept_over_episodes():
    """Trap: the delay lived in two places, and only one was reset. Here it is one thing, of this machine."""
    planner, inference = delayed(Rtc(), 3)
    run(planner, range(4))
    planner.reset(first=100, rng=np.random.default_rng(1), deterministic=True)
    run(planner, range(100, 105))
    fresh, guided = inference.requests[1:]
    assert (fresh.row, fresh.first, fresh.prefix, fresh.delay) == (100, 100, None, 3)
    assert fresh.deterministic
    assert (guided.row, guided.delay) == (104, 3)


def test_request_seeds_depend_on_the_episode():
    planner, inference = delayed(Naive(), 0)
    for seed in (5, 5, 6):
        planner.reset(first=0, rng=np.random.default_rng(seed), deterministic=False)
        run(planner, range(5))
    seeds = [request.seed for request in inference.requests]
    assert seeds[:2] == seeds[2:4] != seeds[4:]
    assert len(set(seeds)) == 4


# ---- answers


@pytest.mark.parametrize("mode", [Naive(), Rtc()])
@pytest.mark.parametrize("delay", range(4))
def test_late_chunk_starts_at_the_current_tick(mode, delay):
    planner, _ = delayed(mode, delay)
    got = run(planner, range(12))
    expected = [None] * delay + [100 + tick for tick in range(delay, 4 + delay)]
    expected += [200 + tick - 4 for tick in range(4 + delay, 8 + delay)]
    expected += [300 + tick - 8 for tick in range(8 + delay, 12)]
    assert got == expected


def test_sequential_with_delay_starts_at_the_first_action():
    planner, inference = delayed(Sequential(), 2)
    assert run(planner, range(13)) == [None, None, 100, 101, 102, 103, None, None, 200, 201, 202, 203, None]
    assert [request.row for request in inference.requests] == [0, 6, 12]


def test_planned_action_has_its_chunk_and_index():
    planner, _ = delayed(Rtc(), 1)
    run(planner, range(5))
    due = planner.action_for(6)
    assert (due.chunk_id, due.chunk_index, due.policy_version) == (1, 2, 2)


@pytest.mark.parametrize("mode", OVERLAPPING)
def test_outdated_chunk_is_dropped(mode):
    telemetry = Telemetry()
    planner, inference = scripted_planner(mode, telemetry=telemetry)
    run(planner, [0])
    inference.set_answer(chunk(1))
    assert run(planner, range(1, 8)) == [101, 102, 103, 104, 105, 106, 107]
    assert run(planner, range(8, 12)) == [None] * 4  # starved: it asked at tick 4
    assert telemetry["starved"] == 4
    inference.set_answer(chunk(2))
    assert run(planner, [12]) == [None]  # its last action was for tick 11
    assert telemetry["late_chunks"] == 1
    assert [request.row for request in inference.requests] == [0, 4, 12]
    inference.set_answer(chunk(3))
    assert run(planner, [13, 14]) == [301, 302]
    assert telemetry["late_chunks"] == 1
    assert planner.action_for(15).chunk_id == 1  # what was never executed has no number


@pytest.mark.parametrize("mode", OVERLAPPING)
def test_last_action_of_a_late_chunk_is_used(mode):
    planner, inference = scripted_planner(mode)
    run(planner, [0])
    inference.set_answer(chunk(1))
    assert run(planner, [7, 8]) == [107, None]
    inference.set_answer(chunk(2))
    assert run(planner, [14]) == [207]  # asked at tick 7


def test_delay_of_a_whole_chunk_always_holds_and_is_counted():
    telemetry = Telemetry()
    inference = ScriptedInference(reply=chunk)
    planner = make_planner(Rtc(), inference, simulated_delay=H, telemetry=telemetry)
    assert run(planner, range(40)) == [None] * 40
    assert telemetry["late_chunks"] == 4


def test_soft_blends_consecutive_chunks():
    planner, _ = delayed(Soft(), 2)
    assert run(planner, range(4)) == [None, None, 102, 103]
    # asked at 4, comes at 6: two ticks are shared, of which it gives a third and two thirds to the new chunk
    expected = [104, 105, 106 + (202 - 106) / 3, 107 + 2 * (203 - 107) / 3]
    np.testing.assert_allclose(run(planner, range(4, 8)), expected, rtol=1e-6)
    assert run(planner, [8, 9]) == [204, 205]


# ---- a person takes over


@pytest.mark.parametrize("mode", MODES)
def test_pending_chunk_is_discarded_at_takeover(mode):
    planner, inference = scripted_planner(mode)
    run(planner, [0])
    planner.interrupt()  # a person acts at ticks 1 to 3
    inference.set_answer(chunk(1))  # the answer arrives late
    assert run(planner, [4]) == [None]
    assert [request.row for request in inference.requests] == [0, 4]
    assert inference.requests[1].prefix is None  # nothing is committed any more
    inference.set_answer(chunk(2))
    assert 200 <= run(planner, [5])[0] < 300


@pytest.mark.parametrize("mode", MODES)
def test_plan_is_discarded_after_takeover(mode):
    planner, inference = delayed(mode, 0)
    assert run(planner, [0, 1]) == [100, 101]
    planner.interrupt()
    assert run(planner, [2, 3]) == [200, 201]
    assert [(request.row, request.first) for request in inference.requests] == [
        (0, 0),
        (2, 0),
    ]  # the history continues


@pytest.mark.parametrize("mode", OVERLAPPING)
def test_chunk_of_a_policy_with_a_base_is_discarded_at_takeover(mode):
    """Its actions are for where the arm was before a person moved it. Only the base's proposal in it is still of use."""
    spec = replace(SPEC, base=BaseSpec(horizon=H, every=4, inputs=()))
    planner, inference = scripted_planner(mode, spec=spec, propose=lambda row, proposal, embedding: None)
    run(planner, [0])
    for tick in (1, 2):  # a person acts, for a shorter time than the inference takes
        planner.update_proposal(tick)
    inference.set_answer(chunk(1))
    assert run(planner, [3]) == [None]
    assert [request.row for request in inference.requests] == [0, 3]


class ProposingInference(ScriptedInference):
    """Each answer also has a chunk of the base: minus the value of the policy's chunk."""

    def answer(self, *, wait):
        answer = super().answer(wait=wait)
        return answer and replace(answer, proposal=-answer.actions)


def test_base_acts_alone_in_the_first_steps_of_an_episode_that_probes():
    """The base has the values -100, -101, ... The chunk that is computed meanwhile continues at its own index."""
    spec = replace(SPEC, base=BaseSpec(horizon=H, every=8, inputs=()))
    planner, _ = scripted_planner(
        Sequential(),
        ProposingInference(reply=chunk),
        spec=spec,
        simulated_delay=0,
        execution_horizon=8,
        propose=lambda row, proposal, embedding: None,
    )
    planner.reset(first=0, rng=np.random.default_rng(0), deterministic=False, base_steps=3)
    assert run(planner, range(5)) == [-100, -101, -102, 103, 104]
    planner.reset(first=5, rng=np.random.default_rng(0), deterministic=False)
    assert run(planner, range(5, 7)) == [200, 201]


def test_history_restarts_after_unrecorded_time():
    planner, inference = delayed(Naive(), 0)
    run(planner, [0, 1])
    planner.forget_before(7)
    assert run(planner, [7]) == [200]
    assert inference.requests[-1].first == 7


# ---- what is not trusted


WRONG = {
    "nan": np.where(np.arange(H)[:, None] == H - 1, np.nan, chunk(1)),
    "inf": np.where(np.arange(H)[:, None] == 0, np.inf, chunk(1)),
    "short": chunk(1)[:-1],
    "one": chunk(1)[:1],
    "flat": chunk(1)[0],
    "wide": np.zeros((H, A + 1), np.float32),
    "batch": chunk(1)[None],
}


@pytest.mark.parametrize("mode", MODES)
def test_server_that_is_gone_means_hold_and_never_a_fault(mode):
    planner, inference = scripted_planner(mode)
    assert run(planner, [0]) == [None]
    for tick in range(1, 40):  # far more often than max_bad_chunks
        inference.set_answer(WRONG["nan"], version=NO_ANSWER)
        assert run(planner, [tick]) == [None]
    inference.set_answer(chunk(1))
    assert 100 <= run(planner, [40])[0] < 200


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("mode", MODES)
def test_invalid_chunk_is_ignored(mode, wrong):
    telemetry = Telemetry()
    planner, inference = scripted_planner(mode, telemetry=telemetry)
    run(planner, [0])
    inference.set_answer(WRONG[wrong])
    assert run(planner, [1]) == [None]
    assert telemetry["bad_chunks"] == 1
    assert len(inference.requests) == 2  # asked again at once
    inference.set_answer(chunk(2))
    assert 200 <= run(planner, [2])[0] < 300


@pytest.mark.parametrize("mode", OVERLAPPING)
def test_invalid_chunk_keeps_the_current_plan(mode):
    planner, inference = scripted_planner(mode)
    run(planner, [0])
    inference.set_answer(chunk(1))
    run(planner, [1, 2, 3, 4])
    inference.set_answer(WRONG["nan"])
    assert run(planner, [5, 6, 7, 8]) == [105, 106, 107, None]


def test_fifth_consecutive_invalid_chunk_is_a_fault():
    broken = ScriptedInference(reply=lambda number: chunk(number) if number == 5 else WRONG["nan"])
    planner = make_planner(Naive(), broken, simulated_delay=0)
    assert run(planner, range(4)) == [None] * 4
    assert run(planner, range(4, 8)) == [500, 501, 502, 503]  # a valid one resets the count
    assert run(planner, range(8, 12)) == [504, 505, 506, 507]  # the plan continues
    with pytest.raises(RobotFault, match=r"policy 'scripted' gave 5 consecutive chunks.*\[8, 2\].*version 10"):
        planner.action_for(12)


def test_new_episode_resets_the_planner():
    planner, inference = scripted_planner(Naive())
    for episode in range(3):
        planner.reset(first=0, rng=np.random.default_rng(episode), deterministic=False)
        for tick in range(5):
            planner.action_for(tick)
            inference.set_answer(WRONG["nan"])


# ---- stalls


@pytest.mark.parametrize("mode", MODES)
def test_inference_timeout_is_a_fault_in_real_time(mode):
    clock = FakeClock()
    planner, _ = scripted_planner(mode, clock=clock, inference_timeout_s=0.5)
    run(planner, [0])
    clock.pass_s(0.5)
    assert run(planner, [1]) == [None]
    clock.pass_s(0.01)
    with pytest.raises(RobotFault, match=r"inference has not answered for 0\.5 s"):
        planner.action_for(2)


def test_timeout_counts_from_the_request_after_the_plan_is_used_up():
    clock = FakeClock()
    planner, inference = scripted_planner(Naive(), clock=clock, inference_timeout_s=0.5)
    run(planner, [0])
    clock.pass_s(0.4)
    inference.set_answer(chunk(1))
    run(planner, [1, 2, 3])
    clock.pass_s(0.4)
    assert run(planner, [4]) == [104]
    clock.pass_s(0.6)
    assert run(planner, [5, 6, 7]) == [105, 106, 107]  # there still is something to do
    with pytest.raises(RobotFault, match=r"not answered for 0\.6 s"):
        planner.action_for(8)


def test_takeover_restarts_the_timeout():
    clock = FakeClock()
    planner, _ = scripted_planner(Naive(), clock=clock, inference_timeout_s=0.5)
    run(planner, [0])
    clock.pass_s(9.0)
    planner.interrupt()
    assert run(planner, [1]) == [None]


def test_simulated_time_has_no_inference_timeout():
    clock = SimulatedClock()
    planner = make_planner(
        Naive(),
        ScriptedInference(reply=chunk),
        clock=clock,
        simulated_delay=6,
        inference_timeout_s=0.1,
        execution_horizon=4,
    )
    for tick in range(6):
        assert planner.action_for(tick) is None
        clock.sleep_until(clock.now_ns() + 10**9)
    assert value(planner.action_for(6)) == 106


def test_unsuitable_policy_is_rejected_by_the_mode():
    with pytest.raises(UsageError, match="cannot be guided"):
        make_planner(Rtc(), ScriptedInference(), spec=replace(SPEC, guidable=False))


# ---- telemetry


def test_telemetry_has_latency_delay_and_jump():
    telemetry = Telemetry()
    planner = make_planner(Naive(), ScriptedInference(reply=chunk), simulated_delay=2, telemetry=telemetry)
    run(planner, range(7))
    summary = telemetry.summary()
    assert summary["chunks"] == 2
    assert summary["inference_p50_ms"] == 1.0
    assert summary["delay_max_ticks"] == 2
    # at tick 6 from 106 to 202, of a range from -1 to 1
    assert summary["chunk_jump_max_share"] == 48.0
    assert summary["waiting"] == 2
    assert "starved" not in summary
