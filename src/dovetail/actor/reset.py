"""Executes the reset of a task that describes it in steps, and asks the person at the robot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from dovetail.actor.board import Board
from dovetail.actor.reset_motion import move_to
from dovetail.core.clock import NS_PER_S, RealClock
from dovetail.core.contracts import Clock, GuardedRobot, Task
from dovetail.core.errors import StopRequested
from dovetail.core.reset_steps import AskPerson, MoveTo, ResetStep, Wait
from dovetail.core.types import Event, HumanInput

__all__ = ["ResetExecutor"]


class ResetExecutor:
    """`tick` waits for the next tick and raises if the arm must stop; `restart` makes the next tick begin now. `poll`
    observes and returns the operator's input, and raises RobotFault for an emergency stop."""

    def __init__(
        self,
        *,
        robot: GuardedRobot,
        task: Task,
        board: Board,
        clock: Clock,
        tick: Callable[[], None],
        restart: Callable[[], None],
        poll: Callable[[], HumanInput],
    ) -> None:
        self._robot, self._task, self._board, self._clock = robot, task, board, clock
        self._tick, self._restart, self._poll = tick, restart, poll

    def execute(
        self, steps: Sequence[ResetStep], *, rng: np.random.Generator, reset_operator: Callable[[], None]
    ) -> bool:
        """Execute all steps, again from the start if a person asks for it. Returns whether a person started the episode."""
        while True:
            started = self._execute(steps, rng, reset_operator)
            if started is not None:
                return started

    def _execute(
        self, steps: Sequence[ResetStep], rng: np.random.Generator, reset_operator: Callable[[], None]
    ) -> bool | None:
        """Execute the steps once. Return None if a person wants the reset again."""
        is_last = False
        for number, step in enumerate(steps, start=1):
            is_last = number == len(steps) and isinstance(step, AskPerson)
            if isinstance(step, AskPerson):
                reset_operator()  # what was pressed before the request does not count
            self._restart()
            if isinstance(step, AskPerson):
                if not self._ask(step.text, is_last=is_last):
                    return None
                continue
            self._task.reset(self._robot, rng=rng)
            if isinstance(step, MoveTo):
                move_to(step, self._robot, self._clock, tick=self._tick)
            elif isinstance(step, Wait):
                self._stand_still(step.duration_s)
        return is_last

    def _stand_still(self, duration_s: float) -> None:
        self._robot.reset()
        until_ns = self._clock.now_ns() + round(duration_s * NS_PER_S)
        while self._clock.now_ns() < until_ns:
            self._robot.observe()
            self._robot.hold()
            self._tick()

    def _ask(self, text: str, *, is_last: bool) -> bool:
        """Stand still until a person signals start; False: reset again. A takeover starts the episode, too."""
        self._robot.reset()

        def is_answer(human: HumanInput) -> bool:
            return human.event in (Event.START, Event.RESET) or (is_last and human.action is not None)

        return self.wait_for_person(text, is_answer).event is not Event.RESET

    def wait_for_person(self, text: str, is_answer: Callable[[HumanInput], bool]) -> HumanInput:
        """Show a text and stand still until the operator answers. Raises StopRequested."""
        self._board.ask_person(text)
        try:
            while True:
                human = self._poll()
                if human.event is Event.STOP:
                    raise StopRequested
                if is_answer(human):
                    return human
                self._robot.hold()
                self._tick()
                if not isinstance(self._clock, RealClock):
                    time.sleep(1.0 / self._robot.spec.control_hz)  # a person answers in real time
        finally:
            self._board.ask_person("")
