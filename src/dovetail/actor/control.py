"""The control loop: observe, poll the operator, take the planned action, filter, send, record. One loop for all modes.

It never blocks and takes no locks. Deadlines are absolute. A missed deadline is counted and later deadlines move with it,
so that two actions never follow each other without a pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from dovetail.actor.board import Board
from dovetail.actor.episode_end import EpisodeEnd, HealthCheck
from dovetail.actor.episode_prompt import next_prompt, prepare_prompt
from dovetail.actor.homing import Home, go_home
from dovetail.actor.planner import PlannedAction, Planner
from dovetail.actor.proposals import Proposals
from dovetail.actor.reset import ResetExecutor
from dovetail.actor.telemetry import Telemetry
from dovetail.actor.tick_timer import TickTimer
from dovetail.core.abilities import AsksVerdict, PlansReset, Restarts
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Clock, GuardedRobot, Operator, Task
from dovetail.core.errors import RobotError, RobotFault, StopRequested, one_line, stop_failure
from dovetail.core.streams import stream
from dovetail.core.types import Array, EpisodeOrder, Event, HumanInput, Observation, Outcome, Purpose, Source

__all__ = ["EMERGENCY", "HUMAN_AXES", "ControlLoop"]

HUMAN_AXES = "human_axes"
"""Extra column, bool [A]: the axes that a person drove, if an operator of the run may drive some of them only."""

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


class ControlLoop:
    """Runs one episode, from reset to verdict, and writes it to the board.

    `probe` returns extra columns to record, such as a simulator's state. `should_stop` is called once per tick; an episode
    that it ends is recorded as aborted and never trains.
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
        health_check: HealthCheck | None = None,
        replan_after_takeover_s: float = 1.0,
        wait_for_start: bool = False,
        probe_share: float = 0.0,
        probe_steps: int = 1,
        home: Home | None = None,
    ) -> None:
        self._robot, self._task, self._operator, self._planner = robot, task, operator, planner
        self._board, self._clock, self._telemetry = board, clock, telemetry
        self._proposals = Proposals(board, planner, robot.spec)
        self._probe, self._should_stop, self._health_check = probe, should_stop, health_check or HealthCheck()
        self._ticks = TickTimer(
            board,
            clock,
            telemetry,
            period_ns=round(NS_PER_S / robot.spec.control_hz),
            may_wait=self._may_wait,
        )
        self._settle_ticks = round(replan_after_takeover_s * robot.spec.control_hz)
        self._wait_for_start, self._home = wait_for_start, home
        self._probe_share, self._probe_steps = probe_share, probe_steps
        self._last = Observation(time_ns=0, values={})
        self._reset_start_ns = 0
        self._reset_end_ns: int | None = None
        self._reset = ResetExecutor(
            robot=robot,
            task=task,
            board=board,
            clock=clock,
            tick=self._tick_in_reset,
            restart=self._ticks.restart,
            poll=self._poll_now,
        )
        robot.use_buffers(board.frame_buffer)

    def run(
        self,
        order: EpisodeOrder,
        *,
        on_begin: Callable[[int], None] = lambda first: None,
        on_step: Callable[[], None] = lambda: None,
    ) -> EpisodeEnd:
        try:
            ended = self._run_episode(order, on_begin, on_step)
        except RobotError as error:
            if (failure := self._leave_robot()) is not None:  # the robot is lost: a fault, with its first cause
                raise RobotFault(_joined(one_line(error), failure)) from error
            raise
        except BaseException:
            self._leave_robot()
            raise
        if (failure := self._leave_robot()) is None:
            return ended
        return replace(ended, fault=_joined(ended.fault or f"robot '{self._robot.spec.name}'", failure))

    def _leave_robot(self) -> str | None:
        """Stop: nothing drives the arm between episodes. Returns why that failed; the filter has latched a fault then."""
        self._board.beat_control(0)
        try:
            self._robot.stop()
        except Exception as error:  # any driver: a person must acknowledge it, like every fault
            return stop_failure(error)
        return None

    def _run_episode(
        self, order: EpisodeOrder, on_begin: Callable[[int], None], on_step: Callable[[], None]
    ) -> EpisodeEnd:
        prepare_prompt(self._task, order)
        self._first = self._board.begin(prompt=self._task.prompt)
        on_begin(self._first)
        try:
            self._begin(order)
        except StopRequested:
            return EpisodeEnd(outcome=Outcome.ABORTED, judgement=None, num_steps=0, stopped=True)
        except RobotFault as error:
            self._robot.trip(str(error))  # no effect if the filter raised it
            if not self._should_stop():
                raise
            return EpisodeEnd(outcome=Outcome.ABORTED, judgement=None, num_steps=0, stopped=True, fault=str(error))
        fault = None
        try:
            outcome = self._run(on_step)
        except StopRequested:  # while a person was asked for the verdict
            outcome, self._stopped = Outcome.ABORTED, True
        except RobotFault as error:
            self._robot.trip(str(error))  # no effect if the filter raised it
            # keep the steps before the fault, for inspection
            outcome, fault = Outcome.ABORTED, str(error)
            self._stopped = self._should_stop()
            if not self._num_steps and not self._stopped:
                raise
        return self._finish(outcome, fault)

    def _run(self, on_step: Callable[[], None]) -> Outcome:
        row = self._observe()  # may take long: a driver connects with its first observation
        outcome: Outcome | None = None
        self._ticks.restart()
        self._board.beat_control(time.monotonic_ns())
        waiting = self._wait_for_start and not self._was_started
        while outcome is None:
            human = self._poll()
            if human.event is Event.ACKNOWLEDGE:
                self._robot.acknowledge()
                self._ticks.wait()
                self._observe_again(row)  # not from before the fault
                outcome = self._ended_by(None)  # should_stop may be true by now
                continue
            if waiting and not _continues(human):
                human = self._hold_until_input()
                self._observe_again(row)
            waiting = False
            if self._reset_end_ns is None:
                self._reset_end_ns = self._clock.now_ns()
            outcome = self._ended_by(human.event)
            if outcome is not None:
                break
            if human.event is Event.PAUSE:
                outcome = self._ended_by(self._pause(row).event)
            else:
                self._act(row, human)
                self._ticks.wait()
            row = self._observe()
            verdict = self._task.judge(self._robot, self._last, num_steps=self._num_steps + 1)
            self._board.judge(row - 1, verdict, first=self._num_steps == 0)
            self._use_prompt(row)
            self._num_steps += 1
            on_step()
            outcome = outcome or verdict.outcome
        self._proposals.update(row, self._executed)  # learning may bootstrap from the last observation
        if outcome is Outcome.TIMEOUT and isinstance(self._task, AsksVerdict) and self._task.verdict_request:
            outcome = self._ask_verdict(self._task.verdict_request)
        return outcome

    def _use_prompt(self, row: int) -> None:
        """Use the task's prompt from this row on. A changed prompt invalidates the plan."""
        prompt = next_prompt(self._task)
        if prompt is not None and self._board.change_prompt(row, prompt) and self._planner:
            self._planner.replan(row)

    def _ended_by(self, event: Event | None) -> Outcome | None:
        self._stopped = event is Event.STOP or self._should_stop()
        if self._stopped:
            return Outcome.ABORTED
        return ENDING_EVENTS.get(event) if event else None

    # ---- one tick

    def _begin(self, order: EpisodeOrder) -> None:
        self._stopped = self._is_invalid = self._was_started = False
        self._num_steps = 0
        self._is_demo = order.purpose is Purpose.DEMO
        self._executed: Array | None = None  # the last action of the episode
        self._since_human = self._settle_ticks
        self._num_idle = _EASE_TICKS  # at rest
        self._ticks.reset()
        self._reset_start_ns, self._reset_end_ns = self._clock.now_ns(), None
        self._raise_if_faulted()
        if self._home is not None:
            self._ticks.restart()
            go_home(self._home, self._robot, self._clock, tick=self._tick_in_reset)
            self._board.beat_control(0)  # a reset may wait for a person
        self._ticks.restart()
        self._robot.prepare_reset(tick=self._tick_in_preparation)
        rng = stream(order.seed, f"{order.purpose}/reset", order.index)
        if isinstance(self._task, PlansReset):
            steps = self._task.reset_steps(self._robot.spec, rng=rng)
            self._was_started = self._reset.execute(
                steps, rng=rng, reset_operator=lambda: self._reset_operator(order)
            )
            self._board.beat_control(0)
        self._task.reset(self._robot, rng=rng)
        self._robot.reset()
        if not self._was_started:
            self._reset_operator(order)
        elif isinstance(self._operator, Restarts):
            self._operator.restart()
        if self._planner:
            self._planner.reset(
                first=self._first,
                rng=stream(order.seed, f"{order.purpose}/policy", order.index),
                deterministic=order.deterministic,
                base_steps=self._base_steps(order),
            )

    def _base_steps(self, order: EpisodeOrder) -> int:
        """Steps that the base takes alone at first. None in episodes without noise, which evaluate the policy itself."""
        if order.purpose is not Purpose.ONLINE or order.deterministic:
            return 0
        rng = stream(order.seed, "probe", order.index)
        return int(rng.integers(1, self._probe_steps + 1)) if rng.random() < self._probe_share else 0

    def _reset_operator(self, order: EpisodeOrder) -> None:
        self._board.beat_control(0)  # the first reset connects the operator's device, which may take seconds
        self._operator.reset(
            rng=stream(order.seed, f"{order.purpose}/operator", order.index), robot_minutes=order.robot_minutes
        )

    def _ask_verdict(self, text: str) -> Outcome:
        """Stand still after a timeout until a person has judged the episode."""
        human = self._reset.wait_for_person(text, lambda human: human.event in ENDING_EVENTS)
        return Outcome.TIMEOUT if human.event is None else ENDING_EVENTS[human.event]

    def _observe(self) -> int:
        row = self._board.observe(self._read())
        self._last = self._board.guarded(self._last, row)
        return row

    def _observe_again(self, row: int) -> None:
        self._board.observe_again(row, self._read())
        self._last = self._board.guarded(self._last, row)
        if self._planner:
            self._planner.forget_before(row)

    def _read(self) -> Observation:
        self._last = observation = self._robot.observe()
        self._is_invalid |= self._robot.problem is not None  # the episode must not train
        return observation

    def _act(self, row: int, human: HumanInput) -> None:
        """Send the action of this tick and record its source."""
        extras = self._probe()
        if self._health_check.hold_reason() is not None:
            self._telemetry.count("health_holds")
            if self._planner:
                self._planner.interrupt()  # the plan will be out of date
            self._proposals.update(row, self._executed)
            self._record(row, extras, executed=self._hold())
        elif human.action is not None:
            proposed = self._with_others(row, human)
            if human.axes is None:
                self._proposals.update(row, self._executed)
            self._since_human = self._num_idle = 0
            if HUMAN_AXES in extras:
                extras = {**extras, HUMAN_AXES: _driven_axes(human)}
            self._record(row, extras, executed=self._robot.send(proposed), proposed=proposed, source=Source.HUMAN)
        elif self._planner is None or self._is_demo:
            self._proposals.update(row, self._executed)
            self._record(row, extras, executed=self._hold(), source=Source.HUMAN)
        else:
            self._since_human += 1
            correcting = self._since_human <= self._settle_ticks
            planned = self._planner.action_for(row, horizon=1 if correcting else None, before=self._executed)
            if planned is None:
                self._record(row, extras, executed=self._hold())
            else:
                self._num_idle = 0
                self._record(
                    row,
                    extras,
                    executed=self._robot.send(planned.action),
                    proposed=planned.action,
                    planned=planned,
                )

    def _with_others(self, row: int, human: HumanInput) -> Array:
        """The person's action. If the person drives only some axes, the policy drives the others, or they stand still
        while it has no plan. A plan stays valid then; after a takeover of the whole robot it is out of date."""
        action = np.asarray(human.action, np.float32)
        if human.keeps is not None and human.keeps.any():
            action = np.where(human.keeps, self._robot.holding_action(), action)
        if human.axes is None:
            if self._planner and not self._proposals.are_recorded:
                self._planner.interrupt()
            return action
        planned = self._planner.action_for(row) if self._planner else None
        others = self._robot.holding_action() if planned is None else np.asarray(planned.action, np.float32)
        return np.where(human.axes, action, others)

    def _record(
        self,
        row: int,
        extras: Mapping[str, Array],
        *,
        executed: Array,
        proposed: Array | None = None,
        source: Source = Source.POLICY,
        planned: PlannedAction | None = None,
    ) -> None:
        """Record the action that was just sent. `proposed` defaults to `executed`."""
        self._executed = executed
        self._ticks.sent()
        self._proposals.record(row, executed)
        safety = self._robot.safety_extras()
        self._telemetry.count("clipped", int(safety["safety_clipped"].any()))
        self._telemetry.count("held", int(safety["safety_held"]))
        self._board.act(
            row,
            proposed=executed if proposed is None else proposed,
            executed=executed,
            source=source,
            policy_version=planned.policy_version if planned else 0,
            chunk_id=planned.chunk_id if planned else -1,
            chunk_index=planned.chunk_index if planned else 0,
            extras={**extras, **safety},
        )

    def _hold(self) -> Array:
        """Slow down over a few ticks, then hold."""
        self._num_idle += 1
        return self._robot.ease() if self._num_idle <= _EASE_TICKS else self._robot.hold()

    def _may_wait(self) -> bool:
        self._raise_if_stopped()
        return not self._should_stop()

    def _tick_in_reset(self) -> None:
        self._ticks.sent()
        self._raise_if_stopped()
        if self._should_stop():
            raise StopRequested
        self._ticks.wait()

    def _tick_in_preparation(self) -> None:
        self._tick_in_reset()
        self._board.beat_control(0)  # a motion of the robot's own controller may follow, without ticks

    def _poll_now(self) -> HumanInput:
        self._last = self._robot.observe()
        return self._poll()

    def _poll(self) -> HumanInput:
        self._raise_if_stopped()
        human = self._operator.poll(self._last)
        if human.event is Event.EMERGENCY:
            raise RobotFault(f"robot '{self._robot.spec.name}' was stopped: {self._emergency()}")
        return human

    def _emergency(self) -> str:
        """Report the operator's emergency stop; returns the reason of the fault."""
        self._health_check.report_emergency(self._operator.name)
        return self._health_check.stop_reason() or EMERGENCY

    def _raise_if_faulted(self) -> None:
        """Nothing moves before an acknowledgement: neither homing nor the task's reset."""
        self._raise_if_stopped()
        if (fault := self._robot.fault) is not None:
            raise RobotFault(
                f"robot '{self._robot.spec.name}' does not move after a fault: {fault}. Acknowledge the fault first"
            )

    def _raise_if_stopped(self) -> None:
        if (why := self._health_check.stop_reason()) is not None:
            raise RobotFault(f"robot '{self._robot.spec.name}' was stopped: {why}")

    def _pause(self, row: int) -> HumanInput:
        """Hold as one recorded step until the operator continues or ends the episode. Return that input."""
        extras = self._probe()
        self._record(row, extras, executed=self._robot.hold(), source=Source.HUMAN)
        self._ticks.wait()
        human = self._hold_until_input()
        if self._planner:
            self._planner.forget_before(row + 1)
        return human

    def _hold_until_input(self) -> HumanInput:
        """Hold without recording until the operator starts, takes over or ends the episode."""
        self._ticks.restart()
        self._num_idle = _EASE_TICKS
        while not self._should_stop():
            human = self._poll()
            if human.event is Event.ACKNOWLEDGE:
                self._robot.acknowledge()
                self._last = self._robot.observe()
            if _continues(human):
                return human
            self._robot.hold()
            self._ticks.sent()
            self._ticks.wait()
            self._last = self._robot.observe()
        return HumanInput(event=Event.STOP)

    def _finish(self, outcome: Outcome, fault: str | None) -> EpisodeEnd:
        judgement = None
        if outcome is not Outcome.ABORTED:
            event = self._operator.poll(self._last).event
            if event is Event.EMERGENCY:
                outcome, fault = Outcome.ABORTED, self._emergency()
                self._robot.trip(fault)
            judgement = ENDING_EVENTS[event] if event in JUDGING_EVENTS else None
            self._stopped = event is Event.STOP
            if self._is_invalid or event is Event.DISCARD:
                outcome, judgement = Outcome.ABORTED, None
        reset_ns = None if self._reset_end_ns is None else self._reset_end_ns - self._reset_start_ns
        return EpisodeEnd(
            outcome=outcome,
            judgement=judgement,
            num_steps=self._num_steps,
            stopped=self._stopped,
            fault=fault,
            reset_s=None if reset_ns is None else reset_ns / NS_PER_S,
            has_success=self._task.spec.has_success,
        )


def _joined(cause: str, failure: str) -> str:
    """A fault and the failed stop after it, unless the fault names one already."""
    return cause if "stop() failed" in cause else f"{cause}; {failure}"


def _driven_axes(human: HumanInput) -> Array:
    """Mask [A] of the axes that the person drives."""
    assert human.action is not None
    return np.ones(len(human.action), np.bool_) if human.axes is None else human.axes


def _continues(human: HumanInput) -> bool:
    """Whether the operator takes over, starts or ends the episode."""
    return human.action is not None or human.event is Event.START or human.event in ENDING_EVENTS
