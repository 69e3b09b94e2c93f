"""Success detection beside an operator: ends episodes without delaying a tick."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human.none import NoOperator
from dovetail.human.success_detection import InlineDetector, OperatorWithDetector, ProcessDetector, ThreadDetector


def seen(value: float) -> Observation:
    return Observation(time_ns=0, values={"state": np.array([value], np.float32)})


def said(observation: Observation) -> float:
    return float(observation.values["state"][0])


def judged(judge=said, inner=None, *, beside=False, **settings) -> OperatorWithDetector:
    wanted = {"name": "classifier", "probability": 0.8, "consecutive": 3} | settings
    operator = OperatorWithDetector(
        inner or NoOperator(), ThreadDetector(judge) if beside else InlineDetector(judge), **wanted
    )
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    return operator


def events(operator: OperatorWithDetector, *values: float) -> list[Event | None]:
    return [operator.poll(seen(value)).event for value in values]


def test_success_needs_consecutive_answers() -> None:
    operator = judged()
    assert events(operator, 0.9, 0.9, 0.79, 0.9, 0.8) == [None] * 5  # a low answer resets the count
    assert events(operator, 0.85) == [Event.SUCCESS]
    assert events(operator, 0.0) == [Event.SUCCESS]  # polled once more, to judge: it has said so
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    assert events(operator, 0.9, 0.9) == [None, None]
    assert operator.name == "none+classifier"


def test_detector_gets_every_nth_observation() -> None:
    asked = []

    def judge(observation: Observation) -> float:
        asked.append(said(observation))
        return 1.0

    operator = judged(judge, every_steps=3, consecutive=2)
    assert events(operator, 0, 1, 2, 3, 4) == [None, None, None, Event.SUCCESS, Event.SUCCESS]
    assert asked == [0, 3]


def test_inner_operator_has_priority_over_detector() -> None:
    class Person(NoOperator):
        says: HumanInput = HumanInput()

        def poll(self, observation: Observation) -> HumanInput:
            return self.says

    person = Person()
    operator = judged(inner=person, consecutive=2)
    drive = person.says = HumanInput(action=np.ones(2, np.float32))
    assert operator.poll(seen(1.0)) is drive
    person.says = HumanInput(event=Event.DISCARD)
    assert events(operator, 1.0) == [Event.DISCARD]
    person.says = HumanInput()
    assert events(operator, 0.0) == [None]


@pytest.mark.parametrize("said", [Event.FAILURE, Event.DISCARD, Event.SUCCESS])
def test_detector_is_ignored_after_operator_ended_the_episode(said: Event) -> None:
    """The loop polls once more after the end: a judge that is sure by then, or was while they paused, is not asked."""

    class Person(NoOperator):
        says: HumanInput = HumanInput(event=Event.PAUSE)

        def poll(self, observation: Observation) -> HumanInput:
            return self.says

    for num_seen in (2, 5):
        person = Person()
        operator = judged(inner=person)
        assert events(operator, *[1.0] * num_seen) == [Event.PAUSE] * num_seen
        person.says = HumanInput(event=said)
        assert events(operator, 1.0) == [said]
        person.says = HumanInput()
        assert events(operator, 1.0) == [None]


def test_thread_detector_never_blocks_the_loop() -> None:
    """It thinks as long as it likes; what is shown meanwhile is passed over, and frames may be written over."""
    go, began, asked = threading.Semaphore(0), threading.Semaphore(0), []

    def judge(observation: Observation) -> float:
        began.release()
        assert go.acquire(timeout=30)
        asked.append(said(observation))
        return 1.0

    operator = judged(judge, beside=True, consecutive=1)
    frame = seen(1.0)
    assert operator.poll(frame).event is None
    assert began.acquire(timeout=30)
    frame.values["state"][0] = 7.0
    assert events(operator, 2.0, 3.0) == [None, None]  # at once, though nothing was answered
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    go.release()
    while operator._judge._answer is None:  # type: ignore[union-attr]
        pass
    assert asked == [1.0]
    assert events(operator, 4.0) == [None]  # what it said was of the episode before
    assert operator.poll(seen(5.0)).event is None
    assert began.acquire(timeout=30)
    go.release()
    while operator._judge._answer is None:  # type: ignore[union-attr]
        pass
    assert events(operator, 6.0) == [Event.SUCCESS]
    assert asked[1:] == [5.0]


def test_failure_of_detector_thread_is_raised() -> None:
    def broken(observation: Observation) -> float:
        raise KeyError("wrist")

    operator = judged(broken, beside=True)
    operator.poll(seen(0.0))
    while operator._judge._answer is None:  # type: ignore[union-attr]
        pass
    with pytest.raises(KeyError, match="wrist"):
        operator.poll(seen(0.0))
    with pytest.raises(KeyError, match="wrist"):
        judged(broken).poll(seen(0.0))


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
    assert events(operator, 0.0, 0.0) == [None, None]  # one answer is one, however often it is read
    num_seen = 6
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    answer = (5, True)  # of the episode before
    assert events(operator, 0.0) == [None]
    answer = (6, True)
    assert events(operator, 0.0) == [None]
    answer = (8, True)
    assert events(operator, 0.0) == [Event.SUCCESS]
