"""Somebody who watches and says when it is done: an operator inside, and a judge of single observations beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from dovetail.core.contracts import Operator
from dovetail.core.types import Event, HumanInput, Observation

__all__ = ["AtOnce", "Beside", "Elsewhere", "Judge", "Judged"]

Judge = Callable[[Observation], float]  # how likely it is that this shows the task done


class Asked(Protocol):
    """A judge as a control loop may ask one: no call waits for its thinking, unless time does too."""

    def show(self, observation: Observation) -> None: ...

    def take(self) -> float | None:
        """What it said since it was last asked, if anything."""

    def forget(self) -> None:
        """A new episode: what it says of what it was shown before counts no more."""


_ENDS = (Event.SUCCESS, Event.FAILURE, Event.DISCARD, Event.RESET, Event.STOP)


class Judged:
    """See the Operator contract. Whatever the operator inside says or does comes first: once they have ended the episode,
    the judge has no say in how it ended.

    `consecutive` answers in a row of at least `probability` are a success, which ends the episode as a person would. The
    judge is shown every `every_steps`-th observation, and answers as it is one: `AtOnce`, `Beside`, `Elsewhere`.
    """

    def __init__(
        self,
        inner: Operator,
        judge: Asked,
        *,
        name: str,
        probability: float,
        consecutive: int,
        every_steps: int = 1,
    ) -> None:
        self._inner, self._name = inner, name
        self._probability, self._consecutive, self._every_steps = probability, consecutive, every_steps
        self._judge = judge
        self._num_polls = self._num_in_a_row = 0
        self._done = self._is_over = False

    @property
    def name(self) -> str:
        """Who judged is recorded with the episode too."""
        return f"{self._inner.name}+{self._name}"

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._inner.reset(rng=rng, robot_minutes=robot_minutes)
        self._judge.forget()
        self._num_polls = self._num_in_a_row = 0
        self._done = self._is_over = False

    def poll(self, observation: Observation) -> HumanInput:
        person = self._inner.poll(observation)
        self._is_over = self._is_over or person.event in _ENDS
        if self._is_over:
            return person
        if not self._done:  # after the end it is polled once more, to judge: then it stays with what it has said
            self._look(observation)
        if self._done and person.event is None:
            return HumanInput(event=Event.SUCCESS)
        return person

    def _look(self, observation: Observation) -> None:
        if self._num_polls % self._every_steps == 0:
            self._judge.show(observation)
        self._num_polls += 1
        answer = self._judge.take()
        if answer is not None:
            self._num_in_a_row = self._num_in_a_row + 1 if answer >= self._probability else 0
            self._done = self._num_in_a_row >= self._consecutive


class AtOnce:
    """There and then: where time is simulated, it waits."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._answer: float | None = None

    def show(self, observation: Observation) -> None:
        self._answer = self._judge(observation)

    def take(self) -> float | None:
        """What it said, once."""
        answer, self._answer = self._answer, None
        return answer

    def forget(self) -> None:
        self._answer = None


class Beside:
    """On a thread of its own, one observation at a time: what is shown while it thinks is passed over. Neither side ever
    waits for the other's work; what changes hands is one reference."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._shown: tuple[int, Observation] | None = None
        self._said: tuple[int, float] | BaseException | None = None
        self._episode = 0  # what was shown before the last reset is not answered any more
        self._free = True
        self._ring = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, observation: Observation) -> None:
        if not self._free:
            return
        self._free = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._think, name="judge", daemon=True)
            self._thread.start()
        # copied: a driver may write the next frame where this one lies
        values = {key: np.array(value) for key, value in observation.values.items()}
        self._shown = (self._episode, Observation(time_ns=observation.time_ns, values=values))
        self._ring.set()

    def take(self) -> float | None:
        said = self._said
        if said is None:
            return None
        self._said = None
        self._free = True
        if isinstance(said, BaseException):
            raise said
        episode, answer = said
        return answer if episode == self._episode else None

    def forget(self) -> None:
        self._episode += 1

    def _think(self) -> None:
        while True:
            self._ring.wait()
            self._ring.clear()
            assert self._shown is not None
            episode, observation = self._shown
            try:
                self._said = (episode, self._judge(observation))
            except BaseException as error:
                self._said = error


class Elsewhere:
    """Another process looks at what was observed by itself, and leaves its answer where `said` finds it: the row that it
    is about, and whether that shows the task done. `num_seen` counts the rows so far."""

    def __init__(self, said: Callable[[], tuple[int, bool]], num_seen: Callable[[], int]) -> None:
        self._said, self._num_seen = said, num_seen
        self._last = -1

    def show(self, observation: Observation) -> None:
        pass

    def take(self) -> float | None:
        row, done = self._said()
        if row <= self._last:
            return None
        self._last = row
        return float(done)

    def forget(self) -> None:
        self._last = self._num_seen() - 1
