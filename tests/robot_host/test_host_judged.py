"""A judge ends an episode that a process of its own controls: it looks at the board, and no tick waits for it."""

from __future__ import annotations

import threading
import time

from dovetail.core.errors import FailureError
from dovetail.core.types import Observation, Outcome, Purpose
from dovetail.rewards.early_success import SuccessDetection
from support.live_host import eventually


class Patient:
    """Sure after a while, and slow: it is asked far less often than control ticks."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []

    def judge(self, observation: Observation) -> float:
        time.sleep(0.05)
        self.times_ns.append(observation.time_ns)
        return 0.6 if len(self.times_ns) > 4 else 0.4


class Hanging:
    """Never comes back from its second look, unless it is let go."""

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


def test_a_judge_beside_ends_practice_and_nothing_else(live):
    judge = Patient()
    one = live("actor.inference_timeout_s=5.0", success_detection=success_detection(judge))
    one.go()
    episode = one.ended(within_s=20.0)
    assert episode is not None
    assert (episode.outcome, episode.judgement) == (Outcome.SUCCESS, Outcome.SUCCESS)
    assert episode.operator == "none+patient"
    assert len(judge.times_ns) >= 7  # four that were not sure, three in a row that were
    assert sorted(set(judge.times_ns)) == judge.times_ns  # each of another moment
    num_asked = len(judge.times_ns)
    one.go(purpose=Purpose.EVAL)
    one.stop.set()
    episode = one.ended()
    assert episode is not None and episode.outcome is Outcome.ABORTED
    assert episode.operator == "none"
    assert len(judge.times_ns) == num_asked  # nobody looks at an evaluation


def test_a_judge_that_fails_is_told_of_and_the_episode_kept(live):
    one = live("task.max_steps=40", success_detection=success_detection(Broken()))
    one.go()
    one.ended(within_s=20.0)
    assert isinstance(one.error, FailureError)
    assert "the judge that ends episodes failed" in str(one.error)
    assert len(list(one.spool.glob("*.journal"))) == 1
    one.error = None  # its trace holds the board


def test_a_judge_that_hangs_holds_up_nobody(live):
    judge, before = Hanging(), set(threading.enumerate())
    one = live("task.max_steps=40", success_detection=success_detection(judge))
    one.go()
    episode = one.ended(within_s=20.0)
    judge.let_go.set()
    assert judge.num_asked == 2
    assert one.error is None and episode is not None and episode.outcome is Outcome.TIMEOUT
    eventually(
        lambda: all(thread.name != "judge" for thread in set(threading.enumerate()) - before), within_s=60.0
    )
