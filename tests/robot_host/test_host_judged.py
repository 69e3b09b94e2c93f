"""A success detector in the supervisor ends episodes of the control process, and never delays a tick."""

from __future__ import annotations

import threading
import time

from dovetail.core.errors import FailureError
from dovetail.core.types import Observation, Outcome, Purpose
from dovetail.rewards.early_success import SuccessDetection
from support.waiting import wait_until


class Patient:
    """Detects success from the fifth call on. Slower than the control loop."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []

    def judge(self, observation: Observation) -> float:
        time.sleep(0.05)
        self.times_ns.append(observation.time_ns)
        return 0.6 if len(self.times_ns) > 4 else 0.4


class Hanging:
    """Its second call does not return until `let_go`."""

    def __init__(self) -> None:
        self.num_asked, self.let_go = 0, threading.Event()

    def judge(self, observation: Observation) -> float:
        self.num_asked += 1
        if self.num_asked == 2:
            self.let_go.wait(60.0)
        return 0.0


class Broken:
    def judge(self, observation: Observation) -> float:
        raise KeyError("no such camera")


def success_detection(judge: object) -> SuccessDetection:
    return SuccessDetection(judge=judge, probability=0.5, consecutive=3, every_steps=1)


def test_detected_success_ends_online_episodes_only(live):
    judge = Patient()
    arm = live("actor.inference_timeout_s=5.0", success_detection=success_detection(judge))
    arm.go()
    episode = arm.ended(within_s=20.0)
    assert episode is not None
    assert (episode.outcome, episode.judgement) == (Outcome.SUCCESS, Outcome.SUCCESS)
    assert episode.operator == "none+patient"
    assert len(judge.times_ns) >= 7  # four without success, then three in a row
    assert sorted(set(judge.times_ns)) == judge.times_ns  # each observation once
    num_asked = len(judge.times_ns)
    arm.go(purpose=Purpose.EVAL)
    arm.stop.set()
    episode = arm.ended()
    assert episode is not None and episode.outcome is Outcome.ABORTED
    assert episode.operator == "none"
    assert len(judge.times_ns) == num_asked  # not called in an evaluation


def test_failing_detector_is_reported_and_the_episode_recorded(live):
    arm = live("task.max_steps=40", success_detection=success_detection(Broken()))
    arm.go()
    arm.ended(within_s=20.0)
    assert isinstance(arm.error, FailureError)
    assert "the success detector failed" in str(arm.error)
    assert len(list(arm.spool.glob("*.journal"))) == 1
    arm.error = None  # its traceback keeps the board alive


def test_hanging_detector_does_not_delay_the_episode(live):
    judge, before = Hanging(), set(threading.enumerate())
    arm = live("task.max_steps=40", success_detection=success_detection(judge))
    arm.go()
    episode = arm.ended(within_s=20.0)
    judge.let_go.set()
    assert judge.num_asked == 2
    assert arm.error is None and episode is not None and episode.outcome is Outcome.TIMEOUT
    wait_until(
        lambda: all(thread.name != "judge" for thread in set(threading.enumerate()) - before), timeout_s=60.0
    )
