"""The control loop with fake robots: takeovers without jumps, holding, and every reason to stop."""

import re
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.actor.actors import (
    ActorConfig,
    NaiveActor,
    RtcActor,
    SequentialActor,
    SoftActor,
    board_layout,
    make_loop,
)
from dovetail.actor.board import Board
from dovetail.actor.episode_end import HealthCheck
from dovetail.actor.homing import Home
from dovetail.actor.modes import Naive, Rtc, Sequential
from dovetail.actor.telemetry import Telemetry
from dovetail.core.clock import RealClock
from dovetail.core.errors import RobotFault
from dovetail.core.types import ActionChunk, Event, HumanInput, Observation, Outcome, Purpose, Source
from dovetail.human.none import NoOperator
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.testing.fake_learning import FakeOperator, FakeOperatorConfig
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from dovetail.testing.live import LiveArm, LiveArmConfig
from support.acting import ChunkPolicy, FakeWorkcell, Person, order

ACTORS = [SequentialActor, NaiveActor, RtcActor, SoftActor]
TICK_NS = 100_000_000
JOINT_STEP = 1.75 / 20  # what the filter lets a joint go in a tick


class Wild(ChunkPolicy):
    """Targets all over the place, another place in each chunk."""

    def act(self, observations, context):
        super().act(observations, context)
        low, high = self.spec.action.bounds
        rng = np.random.default_rng(context.seed)
        actions = rng.uniform(low, high, (1, self.spec.horizon, len(low))).astype(np.float32)
        return ActionChunk(actions=actions, observed_ns=0, policy_version=1)


def acts(*polls, action=None):
    """A person who moves the arm at these polls."""
    action = np.zeros(7, np.float32) if action is None else action
    return {poll: HumanInput(action=action) for poll in polls}


def sends(event):
    return HumanInput(event=event)


# ---- takeover


@pytest.mark.parametrize("kind", ACTORS)
@pytest.mark.parametrize("delay", [0, 3])
def test_commands_never_exceed_the_step_limit(kind, delay):
    """With takeovers, releases and changes of chunks."""
    cell = FakeWorkcell(bimanual=True, max_steps=60)
    rng = np.random.default_rng(0)
    polls = {
        poll: HumanInput(action=rng.uniform(-1.5, 1.5, 24).astype(np.float32))
        for poll in (*range(7, 10), 14, *range(30, 38))
    }
    actor = cell.actor(
        Wild(cell.raw.spec, horizon=8, guidable=True),
        kind=kind,
        operator=Person(polls),
        simulated_delay_ticks=delay,
        replan_after_takeover_s=0.2,
    )
    episode = actor.run(order())
    executed, measured = episode.column("executed"), episode.column("observation/joint_pos")
    assert len(episode) == 60
    assert set(np.flatnonzero(episode.column("source"))) == set(polls)
    assert (np.abs(np.diff(executed, axis=0)) <= JOINT_STEP + 1e-6).all()
    assert (np.abs(executed - measured) <= JOINT_STEP + 1e-6).all()
    assert np.abs(episode.column("proposed") - measured).max() > 1.0  # though much more was asked for


@pytest.mark.parametrize("kind", ACTORS)
def test_after_takeover_the_policy_starts_from_the_measured_state(kind):
    cell = FakeWorkcell(max_steps=12)
    moved = np.array([0.02, 0, 0, 0, 0, 0, 1], np.float32)
    policy = ChunkPolicy(cell.raw.spec, horizon=8, guidable=True)
    actor = cell.actor(policy, kind=kind, operator=Person(acts(2, 3, action=moved)))
    episode = actor.run(order())
    assert episode.column("chunk_id").tolist()[:5] == [0, 0, -1, -1, 1]
    assert episode.column("chunk_index")[4] == 0
    np.testing.assert_array_equal(policy.observations[1]["ee_pose"][0], episode.column("observation/ee_pose")[4])
    assert policy.contexts[1].prefix is None  # nothing of before is committed


@pytest.mark.parametrize("kind", [NaiveActor, RtcActor])
def test_chunk_requested_before_takeover_is_not_executed_after_it(kind):
    """Answers take 3 ticks. Asked at tick 4 about tick 4, the person takes over at 5 and lets go at 6."""
    cell = FakeWorkcell(max_steps=14)
    policy = ChunkPolicy(cell.raw.spec, horizon=8, guidable=True)
    actor = cell.actor(
        policy,
        kind=kind,
        operator=Person(acts(5)),
        simulated_delay_ticks=3,
        execution_horizon=4,
        replan_after_takeover_s=0.0,
    )
    episode = actor.run(order())
    chunks = episode.column("chunk_id").tolist()
    assert policy.calls == 4
    assert chunks == [-1] * 3 + [0, 0] + [-1] + [-1] * 3 + [1, 1, 1, 1, 2]
    proposed = episode.column("proposed")[:, 0]
    second = 1e-4 * 10  # what the answer that was in flight would have begun with
    assert not (np.abs(proposed[5:] - second) < 1e-4 * 7.5).any()
    assert proposed[9] == pytest.approx(1e-4 * (20 + 3))


def test_horizon_is_short_after_takeover_and_long_later():
    """10 Hz and 0.5 s: a new chunk at each of 5 ticks, then 4 ticks per chunk as before."""
    cell = FakeWorkcell(max_steps=18)
    policy = ChunkPolicy(cell.raw.spec, horizon=8)
    actor = cell.actor(
        policy, kind=NaiveActor, operator=Person(acts(2, 3)), replan_after_takeover_s=0.5, execution_horizon=4
    )
    episode = actor.run(order())
    assert episode.column("chunk_index").tolist() == [0, 1, 0, 0, *[0] * 5, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert episode.column("chunk_id").tolist() == [0, 0, -1, -1, 1, 2, 3, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7]


@pytest.mark.parametrize("kind", ACTORS)
def test_source_of_each_step_is_who_moved_the_arm(kind):
    """A chunk runs, a person acts, answers are awaited, a pause: only what a person did or held is theirs."""
    cell = FakeWorkcell(max_steps=16)
    person = Person({**acts(4, 5), 9: sends(Event.PAUSE), 10: sends(Event.START)})
    actor = cell.actor(
        ChunkPolicy(cell.raw.spec, horizon=4, guidable=True), kind=kind, operator=person, simulated_delay_ticks=1
    )
    episode = actor.run(order())
    assert np.flatnonzero(episode.column("source") == Source.HUMAN).tolist() == [4, 5, 9]
    human = episode.column("source") == Source.HUMAN
    assert (episode.column("chunk_id")[human] == -1).all()
    assert (episode.column("policy_version")[human] == 0).all()
    waited = (episode.column("chunk_id") == -1) & ~human
    assert waited.any()
    assert (episode.column("policy_version")[waited] == 0).all()
    assert (episode.column("policy_version")[~waited & ~human] == 7).all()
    assert episode.column("extra/safety_held")[waited].all()


# ---- nothing to do


def test_without_chunk_the_arm_slows_down_and_gripper_stays():
    cell = FakeWorkcell(max_steps=12)
    going = np.array([0.02, 0, 0, 0, 0, 0.1, 0.3], np.float32)
    actor = cell.actor(ChunkPolicy(cell.raw.spec, horizon=4, value=going), simulated_delay_ticks=6)
    executed = actor.run(order()).column("executed")
    assert not executed[:6, :6].any()  # it has not begun
    assert (executed[:6, 6] == 1.0).all()
    np.testing.assert_allclose(executed[6:10], np.tile(going, (4, 1)), rtol=1e-6)
    longer = cell.actor(ChunkPolicy(cell.raw.spec, horizon=4, value=going), simulated_delay_ticks=8)
    cell.task._config = type(cell.task._config)(max_steps=18, tolerance=0.0)
    executed = longer.run(order()).column("executed")
    np.testing.assert_allclose(executed[12:16, 0], [0.01, 0.005, 0.0025, 0.00125], rtol=1e-5)
    np.testing.assert_allclose(executed[12:16, 5], [0.05, 0.025, 0.0125, 0.00625], rtol=1e-5)
    assert not executed[16:, :6].any()
    np.testing.assert_allclose(executed[12:, 6], 0.3, rtol=1e-6)


# ---- worries and alarms


class Nervous(HealthCheck):
    """Worried at some ticks, alarmed from one on."""

    def __init__(self, *, worries=(), stop_reason=None):
        self._worries, self._alarm, self.num_asked = worries, stop_reason, -1  # the first call precedes the reset

    def hold_reason(self):
        return "the supervisor is silent" if self.num_asked - 1 in self._worries else None

    def stop_reason(self):
        self.num_asked += 1
        return "inference has died" if self._alarm is not None and self.num_asked > self._alarm else None


def test_hold_reason_holds_and_the_policy_continues_afterwards():
    cell = FakeWorkcell(max_steps=10)
    going = np.array([0.02, 0, 0, 0, 0, 0, 1], np.float32)
    policy = ChunkPolicy(cell.raw.spec, horizon=4, value=going)
    loop, board, telemetry = cell.loop(policy, health_check=Nervous(worries=range(2, 8)))
    ended = loop.run(order())
    assert (ended.outcome, ended.num_steps, ended.fault) == (Outcome.TIMEOUT, 10, None)
    columns = board.columns(0, 10)
    expected = [0.02, 0.02, 0.01, 0.005, 0.0025, 0.00125, 0, 0, 0.02, 0.02]
    np.testing.assert_allclose(columns["executed"][:, 0], expected, rtol=1e-5)
    assert columns["extra/safety_held"].tolist() == [False] * 2 + [True] * 6 + [False] * 2
    assert telemetry["health_holds"] == 6


def test_hold_reason_also_holds_a_person():
    cell = FakeWorkcell(max_steps=6)
    moved = np.array([0.02, 0, 0, 0, 0, 0, 1], np.float32)
    loop, board, _ = cell.loop(
        ChunkPolicy(cell.raw.spec, value=0.0),
        health_check=Nervous(worries=range(3)),
        operator=Person(acts(*range(6), action=moved)),
    )
    loop.run(order())
    columns = board.columns(0, 6)
    assert columns["executed"][:, 0].tolist() == pytest.approx([0, 0, 0, 0.02, 0.02, 0.02])
    assert columns["source"].tolist() == [0, 0, 0, 1, 1, 1]  # who really moved


def test_after_hold_reason_a_new_chunk_is_requested():
    """The old plan must be neither executed nor given to the policy."""
    cell = FakeWorkcell(max_steps=10)
    policy = ChunkPolicy(cell.raw.spec, horizon=8, guidable=True)
    loop, board, _ = cell.loop(policy, mode=Rtc(), health_check=Nervous(worries=range(2, 5)))
    loop.run(order())
    assert board.columns(0, 10)["chunk_index"].tolist()[:7] == [0, 1, 0, 0, 0, 0, 1]
    assert policy.contexts[1].prefix is None


def test_stop_reason_stops_the_arm_and_latches_a_fault():
    cell = FakeWorkcell(max_steps=10)
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec), health_check=Nervous(stop_reason=4))
    ended = loop.run(order())
    assert (ended.outcome, ended.judgement, ended.num_steps) == (Outcome.ABORTED, None, 4)
    assert "inference has died" in ended.fault
    assert len(cell.sent) == 4
    assert cell.num_stops >= 1
    assert "inference has died" in cell.robot.fault
    calm, _, _ = cell.loop(ChunkPolicy(cell.raw.spec))
    with pytest.raises(RobotFault, match=r"does not move after a fault.*inference has died"):
        calm.run(order())
    assert len(cell.sent) == 4
    cell.robot.acknowledge()
    assert calm.run(order()).outcome is Outcome.TIMEOUT


def test_stop_reason_before_the_first_step_is_raised():
    cell = FakeWorkcell()
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec), health_check=Nervous(stop_reason=0))
    with pytest.raises(RobotFault, match="inference has died"):
        loop.run(order())
    assert cell.robot.fault
    assert not cell.sent


@pytest.mark.parametrize("inputs", [{}, {3: sends(Event.PAUSE)}])
def test_stop_reason_works_while_waiting_for_start(inputs):
    cell = FakeWorkcell()
    loop, _, _ = cell.loop(
        ChunkPolicy(cell.raw.spec),
        operator=Person({0: sends(Event.START), **inputs} if inputs else {}),
        health_check=Nervous(stop_reason=9),
        wait_for_start=True,
    )
    if inputs:
        assert "inference has died" in loop.run(order()).fault
    else:
        with pytest.raises(RobotFault, match="inference has died"):
            loop.run(order())
    assert cell.robot.fault


def test_policy_error_stops_the_arm_without_a_fault():
    cell = FakeWorkcell()
    policy = ChunkPolicy(cell.raw.spec)
    policy.act = lambda *_: 1 / 0
    loop, _, _ = cell.loop(policy)
    with pytest.raises(ZeroDivisionError):
        loop.run(order())
    assert cell.num_stops


# ---- waiting for a person


def test_arm_holds_until_start():
    cell = FakeWorkcell(max_steps=3)
    policy = ChunkPolicy(cell.raw.spec, value=0.01)
    actor = cell.actor(policy, operator=Person({4: sends(Event.START)}), wait_for_start=True)
    episode = actor.run(order())
    assert len(episode) == 3
    # it was polled at the reset, and then at each of 4 ticks; three of them were held through, unrecorded
    assert episode.column("time_ns")[0] == 3 * TICK_NS
    assert not any(sent[:6].any() for sent in cell.sent[:3])
    assert cell.sent[3][:6].all()
    assert policy.observations[0]["ee_pose"].shape == (1, 7)


def test_early_start_event_starts_at_once():
    cell = FakeWorkcell(max_steps=3)
    actor = cell.actor(ChunkPolicy(cell.raw.spec), operator=Person({0: sends(Event.START)}), wait_for_start=True)
    assert actor.run(order()).column("time_ns")[0] == 0


def test_time_of_reset_includes_the_wait_for_the_operator():
    cell = FakeWorkcell(max_steps=3)
    actor = cell.actor(ChunkPolicy(cell.raw.spec), operator=Person({4: sends(Event.START)}), wait_for_start=True)
    episode = actor.run(order())
    assert episode.reset_s == pytest.approx(3 / cell.raw.spec.control_hz)  # polls 1 to 3 hold for a tick each


def test_time_of_reset_in_simulation_is_zero_unless_the_arm_moves():
    cell = FakeWorkcell(max_steps=3)
    assert cell.actor(ChunkPolicy(cell.raw.spec)).run(order()).reset_s == 0.0


def test_time_of_reset_of_a_real_arm_is_measured():
    robot, clock = LiveArm(LiveArmConfig()), RealClock()
    cell = FakeWorkcell(max_steps=2)
    reset = cell.task.reset
    cell.task.reset = lambda robot, rng: (time.sleep(0.2), reset(robot, rng=rng))
    actor = SequentialActor(
        ActorConfig(),
        robot=SafeRobot(robot, SafetyConfig(), clock),
        task=cell.task,
        operator=NoOperator(),
        policy=ChunkPolicy(robot.spec),
        clock=clock,
    )
    episode = actor.run(order())
    actor.close()
    assert 0.2 <= episode.reset_s < 2.0


def test_without_wait_for_start_the_episode_starts_at_once():
    cell = FakeWorkcell(max_steps=3)
    assert cell.actor(ChunkPolicy(cell.raw.spec)).run(order()).column("time_ns")[0] == 0


def test_history_begins_at_the_start_event():
    cell = FakeWorkcell(max_steps=3)
    policy = ChunkPolicy(cell.raw.spec, horizon=1, history={"ee_pose": 4})
    cell.actor(policy, operator=Person({6: sends(Event.START)}), wait_for_start=True).run(order())
    assert [int(observation["ee_pose/mask"].sum()) for observation in policy.observations] == [1, 2, 3]


@pytest.mark.parametrize("poll", [0, 3])
@pytest.mark.parametrize(
    ("event", "outcome", "stopped"),
    [
        (Event.SUCCESS, Outcome.SUCCESS, False),
        (Event.FAILURE, Outcome.FAILURE, False),
        (Event.DISCARD, Outcome.ABORTED, False),
        (Event.STOP, Outcome.ABORTED, True),
    ],
)
def test_episode_may_end_before_start(poll, event, outcome, stopped):
    cell = FakeWorkcell()
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec), operator=Person({poll: sends(event)}), wait_for_start=True)
    ended = loop.run(order())
    assert (ended.outcome, ended.num_steps, ended.stopped) == (outcome, 0, stopped)
    assert not any(sent[:6].any() for sent in cell.sent)


def test_stop_request_ends_the_wait_for_start():
    asked = iter([False] * 5 + [True] * 100)
    cell = FakeWorkcell()
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec), wait_for_start=True, should_stop=lambda: next(asked))
    ended = loop.run(order())
    assert (ended.num_steps, ended.stopped) == (0, True)


# ---- a pause


def test_pause_is_one_human_step_and_restarts_history():
    cell = FakeWorkcell(max_steps=8)
    policy = ChunkPolicy(cell.raw.spec, horizon=1, history={"ee_pose": 4})
    person = Person({3: sends(Event.PAUSE), 8: sends(Event.START)})
    episode = cell.actor(policy, operator=person).run(order())
    assert len(episode) == 8
    assert episode.column("source").tolist() == [0, 0, 0, Source.HUMAN, 0, 0, 0, 0]
    times = np.diff(episode.column("time_ns")) // TICK_NS
    assert times.tolist() == [1, 1, 1, 5, 1, 1, 1]  # its own tick, four polls more, then it went on
    assert not episode.column("executed")[3, :6].any()
    assert [int(observation["ee_pose/mask"].sum()) for observation in policy.observations] == [1, 2, 3, 1, 2, 3, 4]
    # the plan after the pause is a new one
    assert episode.column("chunk_id").tolist() == [0, 1, 2, -1, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", ACTORS)
def test_pause_discards_the_plan(kind):
    cell = FakeWorkcell(max_steps=8)
    policy = ChunkPolicy(cell.raw.spec, horizon=8, guidable=True)
    person = Person({2: sends(Event.PAUSE), 5: sends(Event.START)})
    episode = cell.actor(policy, kind=kind, operator=person).run(order())
    assert episode.column("chunk_id").tolist()[:5] == [0, 0, -1, 1, 1]
    assert episode.column("chunk_index").tolist()[:5] == [0, 1, 0, 0, 1]
    assert policy.contexts[1].prefix is None


# ---- time


class Slow(FakeArm):
    """Some of its calls take a while: `slow[n]` ticks the n-th time it is observed or sent something."""

    def __init__(self, config, *, task, clock):
        super().__init__(config, task=task)
        self._clock, self.slow, self._num_calls = clock, {}, 0

    def observe(self):
        self._dawdle()
        return super().observe()

    def send(self, action):
        self._dawdle()
        return super().send(action)

    def _dawdle(self):
        ticks = self.slow.get(self._num_calls, 0.0)
        self._num_calls += 1
        self._clock.sleep_until(self._clock.now_ns() + round(ticks * TICK_NS))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.integers(0, 30), st.floats(1.01, 2.9), max_size=6))
def test_overruns_are_counted_and_actions_keep_their_distance(slow):
    """Trap: an overrun tick did not re-anchor its deadline, so catch-up ticks fired back to back."""
    cell = FakeWorkcell(max_steps=14, raw=lambda **given: Slow(FakeArmConfig(), **given))
    loop, _, telemetry = cell.loop(ChunkPolicy(cell.raw.spec))
    cell.raw.slow = slow
    ended = loop.run(order())
    assert ended.fault is None
    assert min(np.diff(cell.sent_ns)) >= TICK_NS
    assert telemetry["ticks"] == 14
    # call 0 is the first look, before any deadline; a tick is a look and what is sent then; the last look is in none
    ticks = {call // 2 for call in slow if 0 < call < 28}
    assert telemetry["overruns"] == len(ticks)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.integers(0, 30), st.floats(0.0, 2.9), max_size=6))
def test_late_command_gets_a_whole_period(slow):
    cell = FakeWorkcell(max_steps=14, raw=lambda **given: Slow(FakeArmConfig(), **given))
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec))
    cell.raw.slow = slow
    loop.run(order())
    assert min(np.diff(cell.sent_ns)) >= 0.74 * TICK_NS


def test_acknowledge_does_not_start_the_episode():
    cell = FakeWorkcell(max_steps=4)
    person = Person({0: sends(Event.ACKNOWLEDGE), 3: sends(Event.ACKNOWLEDGE), 9: sends(Event.START)})
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec, value=0.01), operator=person, wait_for_start=True)
    loop.run(order())
    still = [not action[:6].any() for action in cell.sent]
    assert still.index(False) >= 7  # it held until the person sent the event
    assert not any(still[still.index(False) :])


def test_punctual_ticks_keep_absolute_deadlines():
    cell = FakeWorkcell(max_steps=14)
    loop, _, telemetry = cell.loop(ChunkPolicy(cell.raw.spec))
    loop.run(order())
    assert cell.sent_ns == [tick * TICK_NS for tick in range(14)]
    assert telemetry["overruns"] == 0
    assert telemetry.summary()["lateness_max_ms"] == 0.0


# ---- memory


class Filling(FakeArm):
    """A camera that writes into the given buffers."""

    def __init__(self, config, *, task, clock):
        super().__init__(config, task=task)
        self._clock, self._next = clock, None

    def use_buffers(self, next_buffer):
        self._next = next_buffer

    def observe(self):
        frame = self._next("front")
        frame[...] = self._clock.now_ns() // TICK_NS
        pose = np.array([*self._motion.state, 1, 0, 0, 0], np.float32)
        values = {
            "ee_pose": pose,
            "gripper": np.ones(1, np.float32),
            "goal": np.zeros(3, np.float32),
            "front": frame,
        }
        return Observation(time_ns=self._clock.now_ns(), values=values)


def test_a_tick_allocates_nothing_for_images():
    size = (640, 480)
    cell = FakeWorkcell(max_steps=40, raw=lambda **given: Filling(FakeArmConfig(image_size=size), **given))
    loop, board, _ = cell.loop(ChunkPolicy(cell.raw.spec), mode=Naive(), recorder_buffer_s=1.0, flush_every_s=0.5)
    peaks = []

    def look():
        now, peak = tracemalloc.get_traced_memory()
        peaks.append(peak - now)
        tracemalloc.reset_peak()

    tracemalloc.start()
    try:
        loop.run(order(), on_step=look)
    finally:
        tracemalloc.stop()
    image = 640 * 480 * 3
    assert len(peaks) == 40
    assert max(peaks[1:]) < image / 20
    last = board.observation(board.num_seen - 1).values["front"]
    assert (last == 40).all()
    assert not last.flags.writeable


# ---- the same again


@pytest.mark.parametrize("kind", ACTORS)
@pytest.mark.parametrize("delay", [0, 2])
def test_the_same_seed_gives_the_same_episode(kind, delay):
    episodes = []
    for warm_up in (False, False, True):
        cell = FakeWorkcell(bimanual=True, max_steps=30)
        policy = Wild(cell.raw.spec, horizon=8, guidable=True, history={"joint_pos": 3})
        operator = FakeOperator(FakeOperatorConfig(share=0.2), task=cell.task)
        actor = cell.actor(
            policy, kind=kind, operator=operator, simulated_delay_ticks=delay, replan_after_takeover_s=0.2
        )
        if warm_up:  # another episode before it, of which only the delay is remembered
            actor.run(order(index=4, purpose=Purpose.EVAL))
        episodes.append(actor.run(order(index=2)))
    one, same, warm = episodes
    assert 0 < one.num_human_steps < len(one) == 30
    for name in one.segments[0].columns:
        np.testing.assert_array_equal(one.column(name), same.column(name), err_msg=name)
        if name != "time_ns":
            np.testing.assert_array_equal(one.column(name), warm.column(name), err_msg=name)
    other = actor.run(order(index=3))
    assert not np.array_equal(one.column("executed"), other.column("executed"))


def test_frames_are_read_only():
    """Frames are handed out as they lie in the ring, which the recorder and the policy read too."""
    seen = []

    class Curious(Person):
        def poll(self, observation):
            seen.append(observation.values["head"])
            return super().poll(observation)

    cell = FakeWorkcell(bimanual=True, max_steps=3)
    loop, board, _ = cell.loop(ChunkPolicy(cell.raw.spec, value=0.0), operator=Curious({}))
    loop.run(order())
    assert not any(frame.flags.writeable for frame in seen)
    assert np.shares_memory(seen[1], board.observation(1).values["head"])


def test_repeated_acknowledge_does_not_prevent_the_end():
    asked = iter([False] * 5 + [True] * 100)
    cell = FakeWorkcell()
    loop, _, _ = cell.loop(
        ChunkPolicy(cell.raw.spec),
        operator=Person(dict.fromkeys(range(1000), sends(Event.ACKNOWLEDGE))),
        should_stop=lambda: next(asked),
    )
    ended = loop.run(order())
    assert (ended.outcome, ended.stopped, ended.num_steps) == (Outcome.ABORTED, True, 0)


class Counting(HealthCheck):
    """Reports a stop after `patience` checks."""

    def __init__(self, patience):
        self.num_asked, self._patience = 0, patience

    def stop_reason(self):
        self.num_asked += 1
        return "the button was pressed" if self.num_asked > self._patience else None


def test_stop_reason_is_checked_within_a_slow_tick():
    """With 4 real ticks per second it is checked many times per tick, and ends the current tick."""
    cell = FakeWorkcell(control_hz=4.0, max_steps=50)
    clock = RealClock()
    health_check = Counting(8)
    board = Board(
        board_layout(ActorConfig(), robot=cell.robot.spec, policy=None, extras=cell.robot.safety_extras())
    )
    arm = LiveArm(LiveArmConfig(control_hz=4.0), task=cell.task)
    loop = make_loop(
        ActorConfig(),
        Sequential(),
        robot=SafeRobot(arm, SafetyConfig(), clock),
        task=cell.task,
        operator=NoOperator(),
        policy=None,
        inference=None,
        board=board,
        clock=clock,
        telemetry=Telemetry(),
        probe=dict,
        should_stop=lambda: False,
        health_check=health_check,
    )
    with pytest.raises(RobotFault, match="button was pressed"):
        loop.run(order())
    assert board.num_stepped == 0  # within the first tick


def test_emergency_stop_is_a_fault_even_while_holding():
    for inputs in (
        {3: HumanInput(event=Event.EMERGENCY)},
        {2: HumanInput(event=Event.PAUSE), 6: HumanInput(event=Event.EMERGENCY)},
    ):
        cell = FakeWorkcell()
        loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec, value=0.0), operator=Person(inputs))
        ended = loop.run(order())
        assert "emergency stop" in ended.fault
        assert ended.outcome is Outcome.ABORTED
        with pytest.raises(RobotFault, match="Acknowledge"):
            cell.robot.hold()


def test_takeover_ends_a_pause():
    cell = FakeWorkcell(max_steps=6)
    taken = {number: HumanInput(action=np.zeros(7, np.float32)) for number in range(8, 20)}
    person = Person({2: HumanInput(event=Event.PAUSE), **taken})
    loop, board, _ = cell.loop(ChunkPolicy(cell.raw.spec, value=0.0), operator=person)
    loop.run(order())
    assert [board.action(row)[0] for row in range(6)] == [Source.POLICY] * 2 + [Source.HUMAN] * 4


@pytest.mark.parametrize("latched", [True, False], ids=["latched fault", "emergency stop"])
def test_nothing_moves_before_an_acknowledgement_neither_homing_nor_the_reset(latched):
    cell = FakeWorkcell(bimanual=True)
    num_resets = []
    cell.task.reset = lambda robot, *, rng: num_resets.append(1)
    alarm = Nervous() if latched else Nervous(stop_reason=-1)
    home = Home(action=(0.5,) * 24)
    policy = ChunkPolicy(cell.raw.spec, horizon=4, value=np.zeros(24, np.float32))
    loop, _, _ = cell.loop(policy, health_check=alarm, home=home)
    if latched:
        cell.robot.trip("a collision")
    with pytest.raises(RobotFault, match="a collision" if latched else "inference has died"):
        loop.run(order())
    assert cell.sent == []
    assert num_resets == []
    assert cell.robot.fault is not None


def lose(cell, *, after_steps):
    """From this step on, no call reaches the robot."""

    def lost(*_):
        raise ConnectionError("broken pipe")

    send = cell.raw.send

    def sends_until_lost(action):
        if len(cell.sent) < after_steps:
            return send(action)
        cell.raw.observe = cell.raw.stop = cell.raw.send = lost
        raise TimeoutError("no answer")

    cell.raw.send = sends_until_lost


@pytest.mark.parametrize("after_steps", [0, 4], ids=["before the first step", "in an episode"])
def test_lost_robot_is_a_fault_with_its_first_cause_and_the_failed_stop(after_steps):
    cell = FakeWorkcell()
    observe, send, stop = cell.raw.observe, cell.raw.send, cell.raw.stop
    lose(cell, after_steps=after_steps)
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec, value=0.0))
    expected = (
        r"send\(\) failed: TimeoutError.*; stop\(\) failed: ConnectionError: broken pipe\. .*own emergency stop"
    )
    if after_steps:
        ended = loop.run(order())
        assert (ended.outcome, ended.num_steps) == (Outcome.ABORTED, after_steps)
        assert re.search(expected, ended.fault)
        assert ended.fault.count("stop() failed") == 1
    else:
        with pytest.raises(RobotFault, match=expected):
            loop.run(order())
    cell.raw.observe, cell.raw.send, cell.raw.stop = observe, send, stop
    with pytest.raises(RobotFault, match=expected):  # it answers again, but no person has looked
        loop.run(order())
    cell.robot.acknowledge()
    assert loop.run(order()).fault is None


def test_failed_stop_after_a_complete_episode_is_a_fault():
    cell = FakeWorkcell(max_steps=3)
    stop = cell.raw.stop

    def fails():
        raise ConnectionError("broken pipe")

    cell.raw.stop = fails
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec, value=0.0))
    ended = loop.run(order())
    assert (ended.outcome, ended.num_steps) == (Outcome.TIMEOUT, 3)
    assert "stop() failed: ConnectionError: broken pipe" in ended.fault
    cell.raw.stop = stop
    with pytest.raises(RobotFault, match="Acknowledge the fault"):
        loop.run(order())


def test_fault_that_the_loop_has_found_names_the_failed_stop_too():
    cell = FakeWorkcell()

    def fails():
        raise ConnectionError("broken pipe")

    cell.raw.stop = fails
    loop, _, _ = cell.loop(ChunkPolicy(cell.raw.spec), health_check=Nervous(stop_reason=4))
    assert re.search(r"inference has died; stop\(\) failed: ConnectionError: broken pipe", loop.run(order()).fault)
