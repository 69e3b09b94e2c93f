"""The tick: observe, ask the person, take the action that is due, filter, send, record. One loop for every mode.

It makes no call that waits for anybody, and takes no lock. Deadlines are absolute; one that was missed is counted, and
time is counted on from there, so that no two actions ever come back to back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dovetail.actor.board import Board
from dovetail.actor.homing import Home, go_home
from dovetail.actor.planner import Due, Planner
from dovetail.actor.telemetry import Telemetry
from dovetail.core.clock import NS_PER_S, RealClock
from dovetail.core.contracts import Clock, GuardedRobot, Operator, Task
from dovetail.core.errors import RobotFault
from dovetail.core.streams import stream
from dovetail.core.types import Array, EpisodeOrder, Event, HumanInput, Observation, Outcome, Source

__all__ = ["EMERGENCY", "ControlLoop", "Ended", "Watch"]

ENDING_EVENTS = {
    Event.SUCCESS: Outcome.SUCCESS,
    Event.FAILURE: Outcome.FAILURE,
    Event.DISCARD: Outcome.ABORTED,
    Event.RESET: Outcome.ABORTED,
    Event.STOP: Outcome.ABORTED,
}
EMERGENCY = "the emergency stop was pressed"
JUDGING_EVENTS = (Event.SUCCESS, Event.FAILURE)
_EASE_TICKS = 4
_NAP_NS = 20_000_000
_LATE_SEND = 4  # a command later than this part of its tick makes time count from there


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an episode ended. A fault is one that the robot has latched: nothing moves until it is acknowledged."""

    outcome: Outcome
    judgement: Outcome | None
    num_steps: int
    stopped: bool
    fault: str | None = None


class _AskedToStop(Exception):  # no error
    """On the way home."""


class Watch:
    """Watches over all that the loop depends on; asked once a tick. This one has nothing to fear."""

    def worry(self) -> str | None:
        """Why to hold, for now; None if all is well."""
        return None

    def alarm(self) -> str | None:
        """Why to stop and latch a fault; None if there is no reason."""
        return None


class ControlLoop:
    """`run(order, on_begin=..., on_step=...)`: one episode, from reset to verdict, onto the board.

    `probe` reads what should be recorded beside each observation (a simulator's own state, say), and `should_stop` is
    asked once a tick: an episode that is cut short is kept, marked aborted, and never trained on.
    """

    def __init__(
        self,
        *,
        robot: GuardedRobot,
        task: Task,
        operator: Operator,
        planner: Planner | None,
        board: Board,
        clock: Clock,
        telemetry: Telemetry,
        probe: Callable[[], Mapping[str, Array]] = dict,
        should_stop: Callable[[], bool] = lambda: False,
        watch: Watch | None = None,
        settle_s: float = 1.0,
        wait_for_start: bool = False,
        home: Home | None = None,
    ) -> None:
        self._robot, self._task, self._operator, self._planner = robot, task, operator, planner
        self._board, self._clock, self._telemetry = board, clock, telemetry
        self._probe, self._should_stop, self._watch = probe, should_stop, watch or Watch()
        self._period_ns = round(NS_PER_S / robot.spec.control_hz)
        self._settle_ticks = round(settle_s * robot.spec.control_hz)
        self._wait_for_start, self._home = wait_for_start, home
        self._last = Observation(time_ns=0, values={})
        self._naps = isinstance(clock, RealClock)
        robot.use_buffers(board.frame_buffer)

    def run(
        self,
        order: EpisodeOrder,
        *,
        on_begin: Callable[[int], None] = lambda first: None,
        on_step: Callable[[], None] = lambda: None,
    ) -> Ended:
        try:
            self._first = self._board.begin(prompt=self._task.prompt)
            on_begin(self._first)
            try:
                self._begin(order)
            except _AskedToStop:
                return Ended(outcome=Outcome.ABORTED, judgement=None, num_steps=0, stopped=True)
            fault = None
            try:
                outcome = self._run(on_step)
            except RobotFault as error:
                self._robot.trip(str(error))  # latched already where the filter raised it
                # what led to a fault is what people want to look at; the robot itself refuses to move from here on
                outcome, fault = Outcome.ABORTED, str(error)
                if not self._num_steps:
                    raise
            return self._finish(outcome, fault)
        finally:
            self._robot.stop()  # at the end as after any mishap: nobody drives the arm between episodes

    def _run(self, on_step: Callable[[], None]) -> Outcome:
        row = self._observe()
        outcome: Outcome | None = None
        self._deadline_ns = self._clock.now_ns()
        waiting = self._wait_for_start
        while outcome is None:
            person = self._poll()
            if person.event is Event.ACKNOWLEDGE:
                self._robot.acknowledge()
                self._tick()
                self._observe_again(row)  # from what is true now, not from before the fault
                outcome = self._ended_by(None)  # somebody else may want it to end
                continue
            if waiting and not _goes_on(person):
                person = self._hold_until_told()
                self._observe_again(row)
            waiting = False
            outcome = self._ended_by(person.event)
            if outcome is not None:
                break
            if person.event is Event.PAUSE:
                outcome = self._ended_by(self._pause(row).event)
            else:
                self._act(row, person)
                self._tick()
            row = self._observe()
            verdict = self._task.judge(self._robot, self._last, num_steps=self._num_steps + 1)
            self._board.judge(row - 1, verdict, first=self._num_steps == 0)
            self._num_steps += 1
            on_step()
            outcome = outcome or verdict.outcome
        return outcome

    def _ended_by(self, event: Event | None) -> Outcome | None:
        self._stopped = event is Event.STOP or self._should_stop()
        if self._stopped:
            return Outcome.ABORTED
        return ENDING_EVENTS.get(event) if event else None

    # ---- one tick

    def _begin(self, order: EpisodeOrder) -> None:
        self._stopped = self._spoilt = False
        self._num_steps = 0
        self._since_human = self._settle_ticks
        self._num_idle = _EASE_TICKS  # it stands still
        self._sent_ns = self._deadline_ns = 0
        if self._home is not None:
            self._deadline_ns = self._clock.now_ns()
            go_home(self._home, self._robot, self._clock, tick=self._tick_home)
        self._task.reset(self._robot, rng=stream(order.seed, f"{order.purpose}/reset", order.index))
        self._robot.reset()
        self._operator.reset(
            rng=stream(order.seed, f"{order.purpose}/operator", order.index), robot_minutes=order.robot_minutes
        )
        if self._planner:
            self._planner.reset(
                first=self._first,
                rng=stream(order.seed, f"{order.purpose}/policy", order.index),
                deterministic=order.deterministic,
            )

    def _observe(self) -> int:
        row = self._board.observe(self._look())
        self._last = self._board.guarded(self._last, row)
        return row

    def _observe_again(self, row: int) -> None:
        self._board.observe_again(row, self._look())
        self._last = self._board.guarded(self._last, row)
        if self._planner:
            self._planner.forget_before(row)

    def _look(self) -> Observation:
        self._last = observation = self._robot.observe()
        self._spoilt |= (
            self._robot.problem is not None
        )  # the filter holds through it; nothing may ever learn from it
        return observation

    def _act(self, row: int, person: HumanInput) -> None:
        """Send what this tick is for, and write down who decided it."""
        extras = self._probe()
        if self._watch.worry() is not None:
            self._telemetry.count("worried")
            if self._planner:
                self._planner.interrupt()  # by the time it is over, what was planned is old
            self._note(row, extras, executed=self._hold())
        elif person.action is not None:
            if self._planner:
                self._planner.interrupt()  # a person moved the arm: what was planned is no longer true
            self._since_human = self._num_idle = 0
            proposed = np.asarray(person.action, np.float32)
            self._note(row, extras, executed=self._robot.send(proposed), proposed=proposed, source=Source.HUMAN)
        elif self._planner is None:
            self._note(row, extras, executed=self._hold(), source=Source.HUMAN)
        else:
            self._since_human += 1
            correcting = self._since_human <= self._settle_ticks
            due = self._planner.due(row, horizon=1 if correcting else None)
            if due is None:
                self._note(row, extras, executed=self._hold())
            else:
                self._num_idle = 0
                self._note(row, extras, executed=self._robot.send(due.action), proposed=due.action, due=due)

    def _note(
        self,
        row: int,
        extras: Mapping[str, Array],
        *,
        executed: Array,
        proposed: Array | None = None,
        source: Source = Source.POLICY,
        due: Due | None = None,
    ) -> None:
        """Just sent: what was asked for (no less than was done, unless somebody asked) and by whom."""
        self._sent_ns = self._clock.now_ns()
        safety = self._robot.safety_extras()
        self._telemetry.count("clipped", int(safety["safety_clipped"].any()))
        self._telemetry.count("held", int(safety["safety_held"]))
        self._board.act(
            row,
            proposed=executed if proposed is None else proposed,
            executed=executed,
            source=source,
            policy_version=due.policy_version if due else 0,
            chunk_id=due.chunk_id if due else -1,
            chunk_index=due.chunk_index if due else 0,
            extras={**extras, **safety},
        )

    def _hold(self) -> Array:
        """Come to rest over a few ticks, then hold."""
        self._num_idle += 1
        return self._robot.ease() if self._num_idle <= _EASE_TICKS else self._robot.hold()

    def _tick(self) -> None:
        """Sleep until the tick is over. After a late command its end is put off: an action has its whole period."""
        end_ns, now_ns = self._deadline_ns + self._period_ns, self._clock.now_ns()
        late_ns = now_ns - end_ns
        overrun = late_ns > 0
        if overrun or self._sent_ns - self._deadline_ns > self._period_ns // _LATE_SEND:
            end_ns = max(self._sent_ns + self._period_ns, now_ns)
        self._deadline_ns = end_ns
        self._sleep_until(end_ns)
        if not overrun:
            late_ns = self._clock.now_ns() - end_ns
        self._board.ticked(
            time.monotonic_ns(), late_ns=late_ns, overrun=overrun, thinking_ns=self._telemetry.thinking_ns
        )
        self._telemetry.tick(late_ns=late_ns, overrun=overrun, missed=late_ns > self._period_ns)

    def _sleep_until(self, end_ns: int) -> None:
        """In naps where time is real, so that an alarm need not wait for the next tick of a slow robot."""
        while self._naps and end_ns - self._clock.now_ns() > 2 * _NAP_NS:
            self._clock.sleep_until(self._clock.now_ns() + _NAP_NS)
            self._raise_alarm()
        self._clock.sleep_until(end_ns)

    def _tick_home(self) -> None:
        self._raise_alarm()
        if self._should_stop():
            raise _AskedToStop
        self._tick()

    def _poll(self) -> HumanInput:
        self._raise_alarm()
        person = self._operator.poll(self._last)
        if person.event is Event.EMERGENCY:
            raise RobotFault(f"robot '{self._robot.spec.name}' was stopped: {EMERGENCY}")
        return person

    def _raise_alarm(self) -> None:
        if (why := self._watch.alarm()) is not None:
            raise RobotFault(f"robot '{self._robot.spec.name}' was stopped: {why}")

    def _pause(self, row: int) -> HumanInput:
        """One step of holding, however long, until the person goes on or ends it; returns what they did then."""
        extras = self._probe()
        self._note(row, extras, executed=self._robot.hold(), source=Source.HUMAN)
        self._tick()
        person = self._hold_until_told()
        if self._planner:
            self._planner.forget_before(row + 1)
        return person

    def _hold_until_told(self) -> HumanInput:
        """Hold, unrecorded, until the person starts it, takes over, or ends it."""
        self._deadline_ns = self._clock.now_ns()
        self._num_idle = _EASE_TICKS
        while not self._should_stop():
            person = self._poll()
            if person.event is Event.ACKNOWLEDGE:
                self._robot.acknowledge()
                self._last = self._robot.observe()
            if _goes_on(person):
                return person
            self._robot.hold()
            self._sent_ns = self._clock.now_ns()
            self._tick()
            self._last = self._robot.observe()
        return HumanInput(event=Event.STOP)

    def _finish(self, outcome: Outcome, fault: str | None) -> Ended:
        judgement = None
        if outcome is not Outcome.ABORTED:
            event = self._operator.poll(self._last).event
            if event is Event.EMERGENCY:
                self._robot.trip(EMERGENCY)
                outcome, fault = Outcome.ABORTED, EMERGENCY
            judgement = ENDING_EVENTS[event] if event in JUDGING_EVENTS else None
            self._stopped = event is Event.STOP
            if self._spoilt or event is Event.DISCARD:
                outcome, judgement = Outcome.ABORTED, None
        return Ended(
            outcome=outcome, judgement=judgement, num_steps=self._num_steps, stopped=self._stopped, fault=fault
        )


def _goes_on(person: HumanInput) -> bool:
    """Whether a person who was waited for takes over, or has said that it starts, or that it ends here."""
    return person.action is not None or person.event is Event.START or person.event in ENDING_EVENTS
