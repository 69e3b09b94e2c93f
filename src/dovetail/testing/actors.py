"""Conformance suite for actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.contracts import Actor
from dovetail.core.errors import RobotFault
from dovetail.core.types import (
    Array,
    Episode,
    EpisodeOrder,
    EpisodeStart,
    Event,
    HumanInput,
    Observation,
    Outcome,
    Purpose,
    Segment,
    Source,
    WeightSnapshot,
)
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.testing._rig import expect, expect_array, expect_finite_numbers
from dovetail.testing.fake_learning import FakePolicy, FakePolicyConfig
from dovetail.testing.fakes import FakeArm, FakeArmConfig, FakeTask, FakeTaskConfig

__all__ = ["check_actor"]

_NUM_STEPS = 12  # time limit of the fake task
_VERSION = 7


def check_actor(make_actor: Callable[..., Actor], *, horizon: int = 8) -> None:
    """Run episodes of a fake arm in simulated time and check the recorded episodes.

    `make_actor(**handles)` receives robot, task, operator, policy, clock, recorder, probe and should_stop. The policy
    returns chunks of `horizon` actions.
    """
    _check_episode(_Workcell(make_actor, horizon))
    _check_randomness(make_actor, horizon)
    _check_weights(_Workcell(make_actor, horizon))
    _check_person(make_actor, horizon)
    _check_stop(make_actor, horizon)
    _check_fault(make_actor, horizon)


class _ScriptedPerson:
    """Gives a scripted input at each tick of an episode."""

    name = "person"

    def __init__(self, script: Mapping[int, HumanInput]) -> None:
        self._script, self._tick = script, -1

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._tick = -1

    def poll(self, observation: Observation) -> HumanInput:
        self._tick += 1
        return self._script.get(self._tick, HumanInput())


class _MemoryRecorder:
    """A recorder in memory."""

    def __init__(self) -> None:
        self.starts: list[EpisodeStart] = []
        self.segments: list[Segment] = []
        self.outcomes: list[Outcome] = []

    def begin(self, start: EpisodeStart) -> None:
        self.starts.append(start)

    def append(self, segment: Segment, *, after: Observation) -> None:
        self.segments.append(segment)

    def end(
        self,
        *,
        outcome: Outcome,
        judgement: Outcome | None,
        reset_s: float | None = None,
        has_success: bool = True,
    ) -> None:
        self.outcomes.append(outcome)


class _Workcell:
    """A fake arm with an unsolvable task, and the actor under test."""

    def __init__(
        self,
        make_actor: Callable[..., Actor],
        horizon: int,
        *,
        script: Mapping[int, HumanInput] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.task = FakeTask(FakeTaskConfig(max_steps=_NUM_STEPS, tolerance=0.0))
        raw = FakeArm(FakeArmConfig(), task=self.task)
        self.clock = SimulatedClock()
        self.clock.on_advance(raw.advance)
        self.robot = SafeRobot(raw, SafetyConfig(), self.clock)
        self.policy = FakePolicy(FakePolicyConfig(horizon=horizon), robot=raw.spec)
        self.notes = _MemoryRecorder()
        self.actor = make_actor(
            robot=self.robot,
            task=self.task,
            operator=_ScriptedPerson(script or {}),
            policy=self.policy,
            clock=self.clock,
            recorder=self.notes,
            probe=lambda: {"probed": np.array(self.clock.now_ns(), np.int64)},
            should_stop=should_stop,
        )
        expect(
            isinstance(self.actor, Actor),
            f"{type(self.actor).__name__} does not implement all of Actor: run, stopped, fault, acknowledge, load, "
            "telemetry, close",
        )

    def run(self, *, seed: int = 0) -> Episode:
        episode = self.actor.run(_order(seed))
        expect(isinstance(episode, Episode), f"run() should return an Episode, got {type(episode).__name__}")
        assert isinstance(episode, Episode)
        return episode

    def close(self) -> None:
        self.actor.close()


def _order(seed: int) -> EpisodeOrder:
    return EpisodeOrder(
        id=f"episode-{seed}", purpose=Purpose.ONLINE, seed=seed, index=3, config_hash="abc", started_unix_ns=5
    )


def _check_episode(cell: _Workcell) -> None:
    episode, order, spec = cell.run(), _order(0), cell.robot.spec
    for name in ("id", "purpose", "seed", "config_hash", "started_unix_ns"):
        got, wanted = getattr(episode, name), getattr(order, name)
        expect(got == wanted, f"the episode's {name} is {got!r}, but the order has {wanted!r}")
    expect(episode.operator == "person", f"the episode's operator is '{episode.operator}', but it was 'person'")
    expect(episode.prompt == cell.task.prompt, "the episode does not carry the task's prompt")
    expect(
        episode.outcome is Outcome.TIMEOUT and len(episode) == _NUM_STEPS,
        f"the task timed out after {_NUM_STEPS} steps; the episode has {len(episode)} and {episode.outcome}",
    )
    for action in episode.column("executed"):
        expect_array(action, spec.action, what="executed", within=True)
    times = np.append(episode.column("time_ns"), episode.last_observation.time_ns)
    periods = np.diff(times) * spec.control_hz / NS_PER_S
    expect(np.allclose(periods, 1.0, atol=0.01), f"steps should be a control period apart, got {periods} of them")
    expect(
        "extra/probed" in episode.segments[0].columns,
        "the columns of `probe` are missing from the episode's extras",
    )
    _check_notes(cell.notes, episode)
    expect_finite_numbers(cell.actor.telemetry(), what="telemetry")
    expect(
        not cell.actor.stopped and cell.actor.fault is None, "`stopped` or `fault` is set after a normal episode"
    )
    cell.close()


def _check_notes(notes: _MemoryRecorder, episode: Episode) -> None:
    """The recorder must receive the whole episode, because nothing else survives a crash."""
    begun = [start.id for start in notes.starts]
    expect(begun == [episode.id], f"the recorder should get one begin(), got {begun}")
    expect(
        notes.outcomes == [episode.outcome],
        f"the recorder should get one end() with the outcome, got {notes.outcomes}",
    )
    firsts, lengths = [s.first for s in notes.segments], [len(s) for s in notes.segments]
    expect(
        firsts == np.cumsum([0, *lengths])[:-1].tolist() and sum(lengths) == len(episode),
        f"the recorder got segments at {firsts} with {lengths} steps, but the episode has {len(episode)} steps",
    )
    recorded: Array = np.concatenate([s.columns["executed"] for s in notes.segments])
    expect(np.array_equal(recorded, episode.column("executed")), "the recorder got other actions")


def _check_randomness(make_actor: Callable[..., Actor], horizon: int) -> None:
    def executed(seed: int) -> Array:
        cell = _Workcell(make_actor, horizon)
        actions = cell.run(seed=seed).column("executed")
        cell.close()
        return actions

    first = executed(1)
    expect(
        np.array_equal(first, executed(1)), "the same order gave another episode: draw from (seed, role, index)"
    )
    expect(not np.array_equal(first, executed(2)), "orders of different seeds gave the same episode")


def _check_weights(cell: _Workcell) -> None:
    weights = {"actor": {"weights": cell.policy.weights.copy()}}
    cell.actor.load(WeightSnapshot(version=_VERSION, components=weights, hashes={}))
    versions = set(cell.run().column("policy_version").tolist())
    expect(
        versions <= {_VERSION, 0} and _VERSION in versions,
        f"after load() of version {_VERSION}, steps have {versions}",
    )
    cell.close()


def _check_person(make_actor: Callable[..., Actor], horizon: int) -> None:
    action = np.array([0.01, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0], np.float32)
    ticks = (3, 4, 5)
    cell = _Workcell(make_actor, horizon, script={tick: HumanInput(action=action) for tick in ticks})
    episode = cell.run()
    human = np.flatnonzero(episode.column("source") == Source.HUMAN).tolist()
    expect(human == list(ticks), f"a person drove in steps {list(ticks)}, but source is human in {human}")
    expect(
        np.allclose(episode.column("executed")[list(ticks)], action, atol=1e-6),
        "while a person drove, another action was executed",
    )
    cell.close()
    cell = _Workcell(make_actor, horizon, script={5: HumanInput(event=Event.SUCCESS)})
    episode = cell.run()
    expect(
        episode.outcome is Outcome.SUCCESS and len(episode) == 5,
        f"a person signaled success after 5 steps; the episode has {len(episode)} and {episode.outcome}",
    )
    cell.close()


def _check_stop(make_actor: Callable[..., Actor], horizon: int) -> None:
    asked: list[bool] = []

    def should_stop() -> bool:
        asked.append(True)
        return len(asked) > 4

    cell = _Workcell(make_actor, horizon, should_stop=should_stop)
    episode: Any = cell.actor.run(_order(0))
    expect(cell.actor.stopped, "should_stop() was true, but `stopped` is false")
    expect(
        episode is None or episode.outcome is Outcome.ABORTED,
        "should_stop() was true, but the episode was not aborted: it would train",
    )
    cell.close()


def _check_fault(make_actor: Callable[..., Actor], horizon: int) -> None:
    cell = _Workcell(make_actor, horizon, script={4: HumanInput(event=Event.EMERGENCY)})
    cell.actor.run(_order(0))
    expect(cell.actor.fault is not None, "an emergency stop in mid-episode is a fault, but `fault` is None")
    try:
        cell.actor.run(_order(1))
    except RobotFault:
        pass
    else:
        raise AssertionError("after a fault the next run() must raise RobotFault")
    cell.actor.acknowledge()
    cell.actor.run(_order(2))
    expect(len(cell.notes.starts) >= 2, "the fault was acknowledged, but no episode began")
    cell.close()
    cell.close()
