"""The synchronous actor: sources, recordings and outcomes."""

import numpy as np
import pytest

from dovetail.actor.actors import ActorConfig, SequentialActor
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import RobotFault
from dovetail.core.types import Event, HumanInput, Outcome, Purpose, Source
from dovetail.human.none import NoOperator
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.testing.fakes import (
    FakeArm,
    FakeArmConfig,
    FakeBimanual,
    FakeBimanualConfig,
    FakeTask,
    FakeTaskConfig,
)
from support.acting import ChunkPolicy, Person, order


def setup(*, operator=None, policy="chunks", bimanual=False, max_steps=12, config=None, **settings):
    task = FakeTask(FakeTaskConfig(max_steps=max_steps, tolerance=0.0))
    raw = FakeBimanual(FakeBimanualConfig(), task=task) if bimanual else FakeArm(FakeArmConfig(), task=task)
    clock = SimulatedClock()
    clock.on_advance(raw.advance)
    robot = SafeRobot(raw, SafetyConfig(), clock)
    if policy == "chunks":
        policy = ChunkPolicy(raw.spec)
    actor = SequentialActor(
        config or ActorConfig(),
        robot=robot,
        task=task,
        operator=operator or NoOperator(),
        policy=policy,
        clock=clock,
        **settings,
    )
    return actor, policy, raw, clock


def test_chunk_is_executed_before_the_next_inference():
    actor, policy, _, _ = setup()
    episode = actor.run(order())
    assert len(episode) == 12
    assert policy.calls == 3
    assert episode.column("chunk_id").tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert episode.column("chunk_index").tolist() == [0, 1, 2, 3] * 3
    assert set(episode.column("policy_version")) == {7}


def test_shorter_execution_horizon_computes_more_chunks():
    actor, policy, _, _ = setup(config=ActorConfig(execution_horizon=1))
    actor.run(order())
    assert policy.calls == 12


def test_a_takeover_discards_the_chunk_in_flight():
    action = np.zeros(7, np.float32)
    operator = Person({2: HumanInput(action=action), 3: HumanInput(action=action)})
    actor, _, _, _ = setup(operator=operator)
    episode = actor.run(order())
    assert episode.column("source").tolist()[:6] == [0, 0, Source.HUMAN, Source.HUMAN, 0, 0]
    assert episode.column("chunk_index").tolist()[:6] == [
        0,
        1,
        0,
        0,
        0,
        0,
    ]  # after the release: a new chunk per tick
    assert episode.column("chunk_id").tolist()[:6] == [0, 0, -1, -1, 1, 2]
    assert episode.num_interventions == 1
    assert episode.operator == "person"


def test_proposed_and_executed_are_kept_apart():
    actor, _, _, _ = setup(policy=ChunkPolicy(FakeArm(FakeArmConfig()).spec, value=5.0))  # far beyond the limits
    episode = actor.run(order())
    assert episode.column("proposed")[0, 0] == 5.0
    assert episode.column("executed")[0, 0] == pytest.approx(0.02)
    assert episode.column("extra/safety_clipped")[0].all()
    assert not episode.column("extra/safety_held").any()


def test_every_tick_takes_one_period_and_the_last_observation_is_kept():
    actor, _, _, clock = setup()
    episode = actor.run(order())
    assert np.diff(episode.column("time_ns")).tolist() == [100_000_000] * 11
    assert episode.last_observation.time_ns == episode.column("time_ns")[-1] + 100_000_000
    assert clock.now_ns() == 12 * 100_000_000


def test_running_out_of_time_is_a_timeout():
    assert setup()[0].run(order()).outcome is Outcome.TIMEOUT


@pytest.mark.parametrize(
    ("event", "outcome"),
    [(Event.SUCCESS, Outcome.SUCCESS), (Event.FAILURE, Outcome.FAILURE), (Event.DISCARD, Outcome.ABORTED)],
)
def test_a_person_can_end_an_episode(event, outcome):
    actor, _, _, _ = setup(operator=Person({3: HumanInput(event=event)}))
    episode = actor.run(order())
    assert (len(episode), episode.outcome) == (3, outcome)


def test_operator_gives_verdict_after_the_last_tick():
    actor, _, _, _ = setup(operator=Person({12: HumanInput(event=Event.SUCCESS)}))
    episode = actor.run(order())
    assert (episode.outcome, episode.judgement) == (Outcome.TIMEOUT, Outcome.SUCCESS)


def test_episode_without_steps_is_none():
    assert setup(operator=Person({0: HumanInput(event=Event.STOP)}))[0].run(order()) is None


def test_a_pause_holds_and_is_not_recorded():
    pause = {2: HumanInput(event=Event.PAUSE), 5: HumanInput(event=Event.START)}
    actor, _, _, clock = setup(operator=Person(pause))
    episode = actor.run(order())
    assert len(episode) == 12
    assert clock.now_ns() > 12 * 100_000_000  # time passed meanwhile
    assert episode.column("chunk_index").tolist()[2] == 0  # and the old plan is gone


def test_stop_request_keeps_the_episode_as_aborted():
    ticks = iter(range(100))
    actor, _, _, _ = setup(should_stop=lambda: next(ticks) >= 5)
    episode = actor.run(order())
    assert (len(episode), episode.outcome) == (5, Outcome.ABORTED)


def test_arm_stops_after_any_error():
    actor, policy, raw, _ = setup()
    stops = []
    raw.stop = lambda: stops.append(True)
    policy.act = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        actor.run(order())
    assert stops


def test_nan_actions_hold_then_fault_and_steps_are_kept():
    actor, _, _, _ = setup(policy=ChunkPolicy(FakeArm(FakeArmConfig()).spec, value=np.nan))
    episode = actor.run(order())
    assert episode.outcome is Outcome.ABORTED
    assert len(episode) == 4  # held four times, the fifth is a fault
    assert episode.column("extra/safety_held").all()
    with pytest.raises(RobotFault, match=r"does not move after a fault.*not finite"):
        actor.run(order())  # until a person has acknowledged it


def test_the_same_order_gives_the_same_episode():
    (a, p, _, _), (b, q, _, _) = setup(), setup()
    b.run(order(index=4))  # what ran before does not matter
    q.calls = 0
    first, second = a.run(order(index=9)), b.run(order(index=9))
    assert p.seeds == q.seeds[3:]
    assert np.array_equal(first.column("observation/ee_pose"), second.column("observation/ee_pose"))
    assert p.seeds != q.seeds[:3]


def test_evaluation_is_deterministic_with_separate_streams():
    (a, p, _, _), (b, q, _, _) = setup(), setup()
    a.run(order(purpose=Purpose.EVAL, deterministic=True))
    b.run(order())
    assert all(deterministic for _, deterministic in p.seeds)
    assert p.seeds[0][0] != q.seeds[0][0]


def test_a_bimanual_robot_with_fifty_ticks_of_history():
    task = FakeTask(FakeTaskConfig(max_steps=60, tolerance=0.0))
    spec = FakeBimanual(FakeBimanualConfig(), task=task).spec
    policy = ChunkPolicy(spec, horizon=1, history={"joint_pos": 50})
    actor, _, _, _ = setup(policy=policy, bimanual=True, max_steps=60)
    episode = actor.run(order())
    assert episode.column("executed").shape == (60, 24)
    assert episode.column("observation/head").shape == (60, 240, 320, 3)
    assert policy.observations[0]["joint_pos/mask"].sum() == 1
    assert policy.observations[-1]["joint_pos/mask"].all()
    np.testing.assert_array_equal(
        policy.observations[-1]["joint_pos"][0], episode.column("observation/joint_pos")[10:60]
    )


def test_overrun_is_counted_and_actions_keep_their_distance():
    """Trap: catch-up ticks that fire at once, so that two deltas add up in one."""
    actor, policy, raw, clock = setup(config=ActorConfig(execution_horizon=1))
    sent_ns, slow, send = [], policy.act, raw.send

    def act(observations, context):
        if policy.calls == 3:
            clock.sleep_until(clock.now_ns() + 250_000_000)  # inference takes two and a half ticks
        return slow(observations, context)

    def note(action):
        sent_ns.append(clock.now_ns())
        return send(action)

    policy.act, raw.send = act, note
    actor.run(order())
    assert actor.telemetry()["overruns"] == 1
    assert min(np.diff(sent_ns)) == 100_000_000


def test_nan_observation_aborts_the_episode():
    """Trap: a missing sensor that became a number. The filter holds; the log keeps it; nothing learns from it."""
    actor, _, raw, _ = setup()
    observe, count = raw.observe, iter(range(1000))

    def broken():
        seen = observe()
        if next(count) == 5:
            seen.values["ee_pose"][0] = np.nan
        return seen

    raw.observe = broken
    episode = actor.run(order())
    assert len(episode) == 12
    assert episode.outcome is Outcome.ABORTED
    assert episode.column("extra/safety_held").tolist().count(True) == 1


@pytest.mark.parametrize("tick", [0, 3])
def test_stop_ends_the_run_and_discard_only_the_episode(tick):
    for event, stopped in ((Event.STOP, True), (Event.DISCARD, False)):
        actor, _, _, _ = setup(operator=Person({tick: HumanInput(event=event)}))
        actor.run(order())
        assert actor.stopped is stopped


def test_a_pause_can_end_in_a_stop():
    pause = {2: HumanInput(event=Event.PAUSE), 5: HumanInput(event=Event.STOP)}
    actor, _, _, _ = setup(operator=Person(pause))
    episode = actor.run(order())
    assert (len(episode), episode.outcome, actor.stopped) == (3, Outcome.ABORTED, True)


def test_discard_after_the_last_tick_aborts():
    actor, _, _, _ = setup(operator=Person({12: HumanInput(event=Event.DISCARD)}))
    episode = actor.run(order())
    assert (episode.outcome, episode.judgement) == (Outcome.ABORTED, None)


def test_acknowledge_continues_from_a_new_observation():
    actor, _, _, _ = setup(operator=Person({4: HumanInput(event=Event.ACKNOWLEDGE)}))
    assert len(actor.run(order())) == 12


def test_arm_is_stopped_between_episodes():
    actor, _, raw, _ = setup()
    stops = []
    raw.stop = lambda: stops.append(True)
    actor.run(order())
    assert stops
