"""Success detection beside an operator: ends episodes without delaying a tick."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human.none import NoOperator
from dovetail.human.success_detection import InlineDetector, OperatorWithDetector, ProcessDetector, ThreadDetector


def observation_of(value: float) -> Observation:
    return Observation(time_ns=0, values={"state": np.array([value], np.float32)})


def value_of(observation: Observation) -> float:
    return float(observation.values["state"][0])


def with_detector(judge=value_of, inner=None, *, beside=False, **settings) -> OperatorWithDetector:
    wanted = {"name": "classifier", "probability": 0.8, "consecutive": 3} | settings
    operator = OperatorWithDetector(
        inner or NoOperator(), ThreadDetector(judge) if beside else InlineDetector(judge), **wanted
    )
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    return operator


def events(operator: OperatorWithDetector, *values: float) -> list[Event | None]:
    return [operator.poll(observation_of(value)).event for value in values]


def test_success_needs_consecutive_answers() -> None:
    operator = with_detector()
    assert events(operator, 0.9, 0.9, 0.79, 0.9, 0.8) == [None] * 5  # a low answer resets the count
    assert events(operator, 0.85) == [Event.SUCCESS]
    assert events(operator, 0.0) == [Event.SUCCESS]  # the last poll returns the same event
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    assert events(operator, 0.9, 0.9) == [None, None]
    assert operator.name == "none+classifier"


def test_detector_gets_every_nth_observation() -> None:
    asked = []

    def judge(observation: Observation) -> float:
        asked.append(value_of(observation))
        return 1.0

    operator = with_detector(judge, every_steps=3, consecutive=2)
    assert events(operator, 0, 1, 2, 3, 4) == [None, None, None, Event.SUCCESS, Event.SUCCESS]
    assert asked == [0, 3]


def test_inner_operator_has_priority_over_detector() -> None:
    class Person(NoOperator):
        input: HumanInput = HumanInput()

        def poll(self, observation: Observation) -> HumanInput:
            return self.input

    person = Person()
    operator = with_detector(inner=person, consecutive=2)
    drive = person.input = HumanInput(action=np.ones(2, np.float32))
    assert operator.poll(observation_of(1.0)) is drive
    person.input = HumanInput(event=Event.DISCARD)
    assert events(operator, 1.0) == [Event.DISCARD]
    person.input = HumanInput()
    assert events(operator, 0.0) == [None]


@pytest.mark.parametrize("event", [Event.FAILURE, Event.DISCARD, Event.SUCCESS])
def test_detector_is_ignored_after_operator_ended_the_episode(event: Event) -> None:
    """The loop polls once more after the end. A success detected then, or during a pause, is ignored."""

    class Person(NoOperator):
        input: HumanInput = HumanInput(event=Event.PAUSE)

        def poll(self, observation: Observation) -> HumanInput:
            return self.input

    for num_seen in (2, 5):
        person = Person()
        operator = with_detector(inner=person)
        assert events(operator, *[1.0] * num_seen) == [Event.PAUSE] * num_seen
        person.input = HumanInput(event=event)
        assert events(operator, 1.0) == [event]
        person.input = HumanInput()
        assert events(operator, 1.0) == [None]


def test_thread_detector_never_blocks_the_loop() -> None:
    """Observations during a slow call are skipped, and the caller may overwrite frames."""
    go, began, asked = threading.Semaphore(0), threading.Semaphore(0), []

    def judge(observation: Observation) -> float:
        began.release()
        assert go.acquire(timeout=30)
        asked.append(value_of(observation))
        return 1.0

    operator = with_detector(judge, beside=True, consecutive=1)
    frame = observation_of(1.0)
    assert operator.poll(frame).event is None
    assert began.acquire(timeout=30)
    frame.values["state"][0] = 7.0
    assert events(operator, 2.0, 3.0) == [None, None]  # immediately, without an answer
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    go.release()
    while operator._judge._answer is None:  # type: ignore[union-attr]
        pass
    assert asked == [1.0]
    assert events(operator, 4.0) == [None]  # the answer belongs to the earlier episode
    assert operator.poll(observation_of(5.0)).event is None
    assert began.acquire(timeout=30)
    go.release()
    while operator._judge._answer is None:  # type: ignore[union-attr]
        pass
    assert events(operator, 6.0) == [Event.SUCCESS]
    assert asked[1:] == [5.0]


def test_failure_of_detector_thread_is_raised() -> None:
    def broken(observation: Observation) -> float:
        raise KeyError("wrist")

    operator = with_detector(broken, beside=True)
    operator.poll(observation_of(0.0))
    while operator._judge._answer is None:  # type: ignore[union-attr]
        pass
    with pytest.raises(KeyError, match="wrist"):
        operator.poll(observation_of(0.0))
    with pytest.raises(KeyError, match="wrist"):
        with_detector(broken).poll(observation_of(0.0))


def test_process_detector_ignores_rows_of_earlier_episodes() -> None:
    answer, num_seen = (-1, False), 0
    operator = OperatorWithDetector(
        NoOperator(),
        ProcessDetector(lambda: answer, lambda: num_seen),
        name="judge",
        probability=1.0,
        consecutive=2,
    )
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    assert events(operator, 0.0) == [None]
    answer = (4, True)
    assert events(operator, 0.0, 0.0) == [None, None]  # the same answer counts once
    num_seen = 6
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    answer = (5, True)  # of the earlier episode
    assert events(operator, 0.0) == [None]
    answer = (6, True)
    assert events(operator, 0.0) == [None]
    answer = (8, True)
    assert events(operator, 0.0) == [Event.SUCCESS]
