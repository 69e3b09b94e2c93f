"""The synchronous actor: it thinks when its chunk is used up, and the arm waits meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.actor._notes import Notes
from dovetail.actor.history import History
from dovetail.config.model import Config
from dovetail.core.clock import NS_PER_S, boot_id
from dovetail.core.contracts import Clock, GuardedRobot, Operator, Policy, Recorder, Task
from dovetail.core.errors import RobotFault
from dovetail.core.streams import stream
from dovetail.core.types import (
    ActContext,
    ActionChunk,
    Array,
    Episode,
    EpisodeOrder,
    EpisodeStart,
    Event,
    HumanInput,
    Observation,
    Outcome,
    Source,
    Step,
    Verdict,
)

__all__ = ["SequentialActor", "SequentialConfig"]

ENDING_EVENTS = {
    Event.SUCCESS: Outcome.SUCCESS,
    Event.FAILURE: Outcome.FAILURE,
    Event.DISCARD: Outcome.ABORTED,
    Event.RESET: Outcome.ABORTED,
    Event.STOP: Outcome.ABORTED,
}
JUDGING_EVENTS = (Event.SUCCESS, Event.FAILURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """A step before its consequence is known."""

    proposed: Array
    executed: Array
    source: Source
    policy_version: int
    chunk_id: int
    chunk_index: int
    extras: Mapping[str, Array]

    def step(self, observation: Observation, verdict: Verdict) -> Step:
        return Step(
            observation=observation,
            proposed=self.proposed,
            executed=self.executed,
            source=self.source,
            policy_version=self.policy_version,
            chunk_id=self.chunk_id,
            chunk_index=self.chunk_index,
            verdict=verdict,
            extras=self.extras,
        )


class SequentialConfig(Config):
    execution_horizon: int | None = Field(default=None, ge=1)
    """Actions of a chunk to execute open loop before thinking again; none: all of them."""
    flush_s: float = Field(default=2.0, gt=0.0)
    """Robot time between two flushes of an episode to the spool: what a crash can cost."""


class SequentialActor:
    """See the Actor contract.

    `recorder` takes an episode down while it happens, `probe` reads what should be recorded beside each observation
    (a simulator's own state, say), and `should_stop` is asked once a tick: an episode that is cut short is kept,
    marked aborted, and never trained on.
    """

    Config: ClassVar[type[SequentialConfig]] = SequentialConfig

    def __init__(
        self,
        config: SequentialConfig,
        *,
        robot: GuardedRobot,
        task: Task,
        operator: Operator,
        policy: Policy | None,
        clock: Clock,
        recorder: Recorder | None = None,
        probe: Callable[[], Mapping[str, Array]] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._robot, self._task, self._operator, self._policy = robot, task, operator, policy
        self._clock = clock
        self._recorder = recorder
        self._probe = probe or dict
        self._should_stop = should_stop
        self._history = History(policy.spec) if policy else None
        self._period_ns = round(NS_PER_S / robot.spec.control_hz)
        self._flush_steps = max(1, round(config.flush_s * robot.spec.control_hz))
        self._stopped = self._spoilt = False
        self.num_overruns = 0

    @property
    def stopped(self) -> bool:
        return self._stopped

    def run(self, order: EpisodeOrder) -> Episode | None:
        try:
            self._begin(order)
            notes = Notes(self._start(order), self._recorder, flush_steps=self._flush_steps)
            try:
                outcome = self._run(order, notes)
            except RobotFault:
                if not notes.num_steps:
                    raise
                # what led to a fault is what people want to look at; the robot itself refuses to move from here on
                outcome = Outcome.ABORTED
            return self._finish(notes, outcome)
        finally:
            self._robot.stop()  # at the end as after any mishap: nobody drives the arm between episodes

    def _run(self, order: EpisodeOrder, notes: Notes) -> Outcome:
        observation = self._observe()
        outcome: Outcome | None = None
        deadline_ns = self._clock.now_ns()
        while outcome is None:
            person = self._operator.poll(observation)
            if person.event is Event.PAUSE:
                person = self._pause(observation)
                observation, deadline_ns = self._observe(), self._clock.now_ns()
            if person.event is Event.ACKNOWLEDGE:
                self._robot.acknowledge()
                observation = self._observe()  # from what is true now, not from before the fault
                continue
            outcome = self._ended_by(person.event)
            if outcome is not None:
                break
            move = self._act(observation, person, order)
            deadline_ns = self._tick(deadline_ns)
            before, observation = observation, self._observe()
            verdict = self._task.judge(self._robot, observation, num_steps=notes.num_steps + 1)
            notes.add(move.step(before, verdict))
            outcome = verdict.outcome
        return outcome

    def _ended_by(self, event: Event | None) -> Outcome | None:
        self._stopped = event is Event.STOP or self._should_stop()
        if self._stopped:
            return Outcome.ABORTED
        return ENDING_EVENTS.get(event) if event else None

    # ---- one tick

    def _begin(self, order: EpisodeOrder) -> None:
        self._task.reset(self._robot, rng=stream(order.seed, f"{order.purpose}/reset", order.index))
        self._robot.reset()
        self._operator.reset(
            rng=stream(order.seed, f"{order.purpose}/operator", order.index), robot_minutes=order.robot_minutes
        )
        self._noise = stream(order.seed, f"{order.purpose}/policy", order.index)
        self._chunk: ActionChunk | None = None
        self._chunk_id, self._chunk_index = -1, 0
        self._stopped = self._spoilt = False
        if self._policy and self._history:
            self._policy.reset()
            self._history.reset()

    def _observe(self) -> Observation:
        self._last = observation = self._robot.observe()
        # the filter holds the arm through a bad reading; nothing may ever learn from one
        self._spoilt |= not all(np.isfinite(v).all() for v in observation.values.values() if v.dtype.kind == "f")
        if self._history:
            self._history.add(observation)
        return observation

    def _act(self, observation: Observation, person: HumanInput, order: EpisodeOrder) -> _Move:
        extras = dict(self._probe())
        if person.action is not None:
            self._chunk = None  # a person moved the arm: what the policy had planned is no longer true
            proposed, source = np.asarray(person.action, np.float32), Source.HUMAN
            executed = self._robot.send(proposed)
        elif self._policy is not None:
            proposed, source = self._next_action(observation, deterministic=order.deterministic), Source.POLICY
            executed = self._robot.send(proposed)
        else:
            executed = self._robot.hold()
            proposed, source = executed, Source.HUMAN
        extras |= self._robot.safety_extras()
        return _Move(
            proposed=proposed,
            executed=executed,
            source=source,
            policy_version=self._chunk.policy_version if self._chunk else 0,
            chunk_id=self._chunk_id if self._chunk else -1,
            chunk_index=self._chunk_index - 1 if self._chunk else 0,
            extras=extras,
        )

    def _next_action(self, observation: Observation, *, deterministic: bool) -> Array:
        assert self._policy is not None and self._history is not None
        if self._chunk is None or self._chunk_index >= self._num_to_execute(self._chunk):
            context = ActContext(deterministic=deterministic, seed=int(self._noise.integers(2**63)))
            self._chunk = self._policy.act(self._history.batch(observation), context).at(0)
            self._chunk_id += 1
            self._chunk_index = 0
        action: Array = self._chunk.actions[self._chunk_index]
        self._chunk_index += 1
        return action

    def _num_to_execute(self, chunk: ActionChunk) -> int:
        return min(self._config.execution_horizon or len(chunk.actions), len(chunk.actions))

    def _tick(self, deadline_ns: int) -> int:
        deadline_ns += self._period_ns
        now_ns = self._clock.now_ns()
        if now_ns > deadline_ns:  # late: the action just sent gets its whole period, and so do those to come
            self.num_overruns += 1
            deadline_ns = now_ns + self._period_ns
        self._clock.sleep_until(deadline_ns)
        return deadline_ns

    def _pause(self, observation: Observation) -> HumanInput:
        """Hold, unrecorded, until the person goes on or ends it; returns what they did then."""
        self._chunk = None
        deadline_ns = self._clock.now_ns()
        while not self._should_stop():
            person = self._operator.poll(observation)
            if person.event in (Event.START, Event.ACKNOWLEDGE) or person.event in ENDING_EVENTS:
                return person
            self._robot.hold()
            deadline_ns = self._tick(deadline_ns)
            observation = self._robot.observe()
        return HumanInput(event=Event.STOP)

    # ---- begin and end

    def _start(self, order: EpisodeOrder) -> EpisodeStart:
        return EpisodeStart(
            id=order.id,
            task=self._task.spec.name,
            prompt=self._task.prompt,
            robot=self._robot.spec,
            operator=self._operator.name,
            purpose=order.purpose,
            seed=order.seed,
            config_hash=order.config_hash,
            started_unix_ns=order.started_unix_ns,
            boot_id=boot_id(),
        )

    def _finish(self, notes: Notes, outcome: Outcome) -> Episode | None:
        judgement = None
        if outcome is not Outcome.ABORTED:
            event = self._operator.poll(self._last).event
            judgement = ENDING_EVENTS[event] if event in JUDGING_EVENTS else None
            self._stopped = event is Event.STOP
            if self._spoilt or event is Event.DISCARD:
                outcome, judgement = Outcome.ABORTED, None
        return notes.end(self._last, outcome=outcome, judgement=judgement)
