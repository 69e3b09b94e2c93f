"""Ends an episode when a success detector, such as a reward classifier, reports success."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from dovetail.core.contracts import Operator
from dovetail.core.types import Event, HumanInput, Observation

__all__ = ["InlineDetector", "Judge", "OperatorWithDetector", "ProcessDetector", "ThreadDetector"]

Judge = Callable[[Observation], float]  # probability that the observation shows success


class Detector(Protocol):
    """A success detector for the control loop. Calls never block, except in simulated time."""

    def show(self, observation: Observation) -> None: ...

    def take(self) -> float | None:
        """Return the newest answer once, or None."""

    def forget(self) -> None:
        """Start a new episode: ignore answers about earlier observations."""


_ENDS = (Event.SUCCESS, Event.FAILURE, Event.DISCARD, Event.RESET, Event.STOP)


class OperatorWithDetector:
    """See the Operator contract. Input of the inner operator has priority over the detector.

    `consecutive` answers of at least `probability` end the episode with success. The detector receives every
    `every_steps`-th observation.
    """

    def __init__(
        self,
        inner: Operator,
        judge: Detector,
        *,
        name: str,
        probability: float,
        consecutive: int,
        every_steps: int = 1,
    ) -> None:
        self._inner, self._name = inner, name
        self._probability, self._consecutive, self._every_steps = probability, consecutive, every_steps
        self._judge = judge
        self._num_polls = self._num_consecutive = 0
        self._done = self._is_over = False

    @property
    def name(self) -> str:
        """The detector's name is recorded with the episode too."""
        return f"{self._inner.name}+{self._name}"

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._inner.reset(rng=rng, robot_minutes=robot_minutes)
        self.restart()

    def restart(self) -> None:
        """Forget what was seen, for example while a person prepared the scene."""
        self._judge.forget()
        self._num_polls = self._num_consecutive = 0
        self._done = self._is_over = False

    def poll(self, observation: Observation) -> HumanInput:
        human = self._inner.poll(observation)
        self._is_over = self._is_over or human.event in _ENDS
        if self._is_over:
            return human
        if not self._done:  # the poll after the last tick repeats the result
            self._check(observation)
        if self._done and human.event is None:
            return HumanInput(event=Event.SUCCESS)
        return human

    def _check(self, observation: Observation) -> None:
        if self._num_polls % self._every_steps == 0:
            self._judge.show(observation)
        self._num_polls += 1
        answer = self._judge.take()
        if answer is not None:
            self._num_consecutive = self._num_consecutive + 1 if answer >= self._probability else 0
            self._done = self._num_consecutive >= self._consecutive


class InlineDetector:
    """Runs in the caller's thread. For simulated time."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._answer: float | None = None

    def show(self, observation: Observation) -> None:
        self._answer = self._judge(observation)

    def take(self) -> float | None:
        """Return the answer once."""
        answer, self._answer = self._answer, None
        return answer

    def forget(self) -> None:
        self._answer = None


class ThreadDetector:
    """Runs in a thread, one observation at a time, and ignores observations while it is busy. Neither side blocks."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._shown: tuple[int, Observation] | None = None
        self._answer: tuple[int, float] | BaseException | None = None
        self._episode = 0  # answers about earlier episodes are ignored
        self._is_idle = True
        self._wakeup = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, observation: Observation) -> None:
        if not self._is_idle:
            return
        self._is_idle = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="judge", daemon=True)
            self._thread.start()
        # copy, because a driver may reuse the memory
        values = {key: np.array(value) for key, value in observation.values.items()}
        self._shown = (self._episode, Observation(time_ns=observation.time_ns, values=values))
        self._wakeup.set()

    def take(self) -> float | None:
        answer = self._answer
        if answer is None:
            return None
        self._answer = None
        self._is_idle = True
        if isinstance(answer, BaseException):
            raise answer
        episode, probability = answer
        return probability if episode == self._episode else None

    def forget(self) -> None:
        self._episode += 1

    def _run(self) -> None:
        while True:
            self._wakeup.wait()
            self._wakeup.clear()
            assert self._shown is not None
            episode, observation = self._shown
            try:
                self._answer = (episode, self._judge(observation))
            except BaseException as error:
                self._answer = error


class ProcessDetector:
    """Runs in another process. `answer` returns the last checked row and whether it shows success; `num_seen` is the
    number of rows so far."""

    def __init__(self, answer: Callable[[], tuple[int, bool]], num_seen: Callable[[], int]) -> None:
        self._get_answer, self._num_seen = answer, num_seen
        self._last = -1

    def show(self, observation: Observation) -> None:
        pass

    def take(self) -> float | None:
        row, done = self._get_answer()
        if row <= self._last:
            return None
        self._last = row
        return float(done)

    def forget(self) -> None:
        self._last = self._num_seen() - 1
