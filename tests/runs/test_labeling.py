"""The label dispatcher never blocks, loses nothing, and finds the labels of others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.config.schema import LabelingConfig
from dovetail.core.errors import LabelError, UsageError
from dovetail.core.types import Episode, Labels, Outcome
from dovetail.labels.chain import LabelerChain
from dovetail.labels.human import HumanLabeler, human_labels
from dovetail.labels.queue import LabelQueue, Reason
from dovetail.labels.store import LabelStore
from dovetail.runs.labeling import LabelDispatcher


class Named:
    """An episode with an id only; these labelers read nothing else."""

    def __init__(self, name: str) -> None:
        self.id = name


def labels_by(name: str, labeler: str, *, success: bool = True, confidence: float = 1.0) -> Labels:
    ones = np.ones(3, np.float32)
    return Labels(
        episode_id=name,
        rewards=ones,
        discounts=ones,
        success=success,
        confidence=confidence,
        labeler=labeler,
        version="1",
    )


class Slow:
    """Answers after `go` is set; records the largest number of concurrent calls."""

    max_concurrent = 2

    def __init__(self, *, confidence: float = 1.0) -> None:
        self.go, self.away = threading.Event(), False
        self.asked: list[str] = []
        self.max_calls = self._num_calls = 0
        self._lock = threading.Lock()
        self._confidence = confidence

    def label(self, episode: Episode) -> Labels:
        with self._lock:
            self.asked.append(episode.id)
            self._num_calls += 1
            self.max_calls = max(self.max_calls, self._num_calls)
        try:
            assert self.go.wait(30)
            if self.away:
                raise LabelError("the server is away")
            return labels_by(episode.id, "slow", confidence=self._confidence)
        finally:
            with self._lock:
                self._num_calls -= 1


class Time:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def make_dispatcher(
    folder: Path, *labelers: Any, **settings: Any
) -> tuple[LabelDispatcher, LabelStore, LabelQueue, Time]:
    store, queue, time = LabelStore(folder), LabelQueue(folder / "queue"), Time()
    dispatcher = LabelDispatcher(
        labelers=LabelerChain(labelers),
        store=store,
        queue=queue,
        load=lambda name: Named(name),  # type: ignore[arg-type, return-value]
        settings=LabelingConfig(**settings),
        now_s=time,
    )
    return dispatcher, store, queue, time


def label(dispatcher: LabelDispatcher, *names: str) -> list[Labels | None]:
    return [dispatcher.label(Named(name)) for name in names]  # type: ignore[arg-type]


def wait_until_labeled(dispatcher: LabelDispatcher, *, num: int = 0) -> None:
    """Wait wait_until_labeled at most `num` episodes are under way."""
    while dispatcher.num_under_way > num:
        dispatcher._dispatch(wait_s=5.0)


def test_slow_labeler_does_not_block(tmp_path: Path) -> None:
    slow = Slow()
    dispatcher, store, queue, _ = make_dispatcher(tmp_path, slow)
    assert label(dispatcher, *(f"e{number}" for number in range(7))) == [None] * 7  # at once
    assert dispatcher.changed() == []
    assert dispatcher.num_under_way == 7
    assert dispatcher.waiting() == {"under way": 7}
    slow.go.set()
    wait_until_labeled(dispatcher)
    assert sorted(dispatcher.changed()) == [f"e{number}" for number in range(7)]
    assert dispatcher.changed() == []
    assert slow.max_calls == 2  # at once
    assert sorted(slow.asked) == [f"e{number}" for number in range(7)]  # each once
    assert all(store.current(f"e{number}") is not None for number in range(7))
    assert dispatcher.waiting() == {}
    assert queue.ids() == []


def test_unavailable_labeler_is_retried(tmp_path: Path) -> None:
    """It is asked less and less often, one episode at a time. After it returns, every episode gets labels."""
    slow = Slow()
    slow.away = True
    slow.go.set()
    dispatcher, store, queue, time = make_dispatcher(tmp_path, slow, retry_s=5.0, max_retry_s=15.0)
    label(dispatcher, "e0", "e1", "e2")
    wait_until_labeled(dispatcher)
    assert set(dispatcher.waiting()) == {"away", "under way"} or set(dispatcher.waiting()) == {"away"}
    first = len(slow.asked)
    assert 1 <= first <= 2  # calls that began before the first error
    asked_at_s = []
    for _ in range(60):
        time.s += 1.0
        before = len(slow.asked)
        dispatcher.changed()
        wait_until_labeled(dispatcher)
        if len(slow.asked) > before:
            asked_at_s.append(time.s)
    assert np.diff(asked_at_s).max() <= 15.0
    assert 4 <= len(asked_at_s) <= 7  # of 60 seconds: after 5 or 10, and then every 15
    assert len(set(slow.asked)) == 3  # in turn
    assert sorted(queue.ids()) == ["e0", "e1", "e2"]
    assert {item.note for item in queue.waiting()} == {"the server is away"}
    slow.away = False
    time.s += 15.0
    for _ in range(3):
        dispatcher.changed()
        wait_until_labeled(dispatcher)
    assert all(store.current(name) is not None for name in ("e0", "e1", "e2"))
    assert queue.ids() == []
    assert [len(store.history(name)) for name in ("e0", "e1", "e2")] == [1, 1, 1]


def test_uncertain_labeler_asks_a_person(tmp_path: Path) -> None:
    slow = Slow(confidence=0.5)
    slow.go.set()
    dispatcher, store, queue, _ = make_dispatcher(tmp_path, slow, HumanLabeler())
    label(dispatcher, "e1")
    wait_until_labeled(dispatcher)
    assert dispatcher.changed() == ["e1"]  # an opinion
    assert store.current("e1") is None
    (item,) = queue.waiting()
    assert item.reasons == (Reason.UNCERTAIN,)
    assert [(labels.labeler, labels.confidence) for labels in item.opinions] == [("slow", 0.5)]
    assert dispatcher.waiting() == {"uncertain": 1}
    person = human_labels("e1", num_steps=3, outcome=Outcome.TIMEOUT, judgement=Outcome.SUCCESS, by="anna")
    LabelStore(tmp_path).add(person)  # the console was killed before it removed the item
    assert dispatcher.changed() == ["e1"]
    assert queue.ids() == []
    assert dispatcher.waiting() == {}


def test_labeler_is_not_asked_after_a_person_has_labeled(tmp_path: Path) -> None:
    slow = Slow()
    dispatcher, store, _, _ = make_dispatcher(tmp_path, slow)
    label(dispatcher, "e0", "e1", "e2", "e3")
    person = human_labels("e3", num_steps=3, outcome=Outcome.TIMEOUT, judgement=Outcome.FAILURE, by="anna")
    LabelStore(tmp_path).add(person)
    slow.go.set()
    wait_until_labeled(dispatcher)
    assert "e3" not in slow.asked
    assert [record.labels.labeler for record in store.history("e3")] == ["human"]


def test_label_of_a_person_settles_a_failed_episode(tmp_path: Path) -> None:
    slow = Slow()
    slow.away = True
    dispatcher, store, queue, time = make_dispatcher(tmp_path, slow, retry_s=5.0)
    label(dispatcher, "e0")
    store.add(human_labels("e0", num_steps=3, outcome=Outcome.TIMEOUT, judgement=Outcome.SUCCESS, by="anna"))
    assert dispatcher.changed() == ["e0"]
    slow.go.set()
    wait_until_labeled(dispatcher)
    time.s += 6.0
    dispatcher.changed()
    assert queue.ids() == []
    assert dispatcher.waiting() == {}


def test_pending_episodes_are_labeled_after_a_restart(tmp_path: Path) -> None:
    """The new process has only the files."""
    slow = Slow()
    dispatcher, *_ = make_dispatcher(tmp_path, slow)
    label(dispatcher, "e0")
    dispatcher.close()
    queue = LabelQueue(tmp_path / "queue")
    queue.put("e1", [Reason.UNCERTAIN])
    queue.put("e2", [Reason.AWAY])
    fresh = Slow()
    fresh.go.set()
    again, _, queue, _ = make_dispatcher(tmp_path, fresh)
    assert [again.label_again(name) for name in ("e0", "e1", "e2")] == [None] * 3
    assert again.label_again("e0") is None  # a second call does not ask again
    wait_until_labeled(again)
    assert sorted(fresh.asked) == ["e0", "e2"]  # e1 waits for a person
    assert sorted(again.changed()) == ["e0", "e2"]
    assert queue.ids() == ["e1"]
    slow.go.set()


def test_other_errors_are_raised(tmp_path: Path) -> None:
    class Broken:
        max_concurrent = 1

        def label(self, episode: Episode) -> Labels:
            raise UsageError("no such camera")

    dispatcher, *_ = make_dispatcher(tmp_path, Broken())
    label(dispatcher, "e0")
    with pytest.raises(UsageError, match="no such camera"):
        wait_until_labeled(dispatcher)


def test_fast_labeler_without_an_answer_is_asked_again(tmp_path: Path) -> None:
    class Faulty:
        away = True

        def label(self, episode: Episode) -> Labels:
            if self.away:
                raise LabelError("not now")
            return labels_by(episode.id, "faulty")

    faulty = Faulty()
    dispatcher, store, queue, time = make_dispatcher(tmp_path, faulty, retry_s=1.0)
    assert label(dispatcher, "e0") == [None]
    assert queue.ids() == ["e0"]
    faulty.away = False
    time.s = 2.0
    dispatcher.changed()
    wait_until_labeled(dispatcher)
    assert dispatcher.changed() in (["e0"], [])
    assert store.current("e0") is not None
    assert queue.ids() == []


def test_wait_ends_after_its_limit(tmp_path: Path) -> None:
    slow = Slow()
    dispatcher, _, _, time = make_dispatcher(tmp_path, slow)
    label(dispatcher, "e0", "e1", "e2")
    num_under_way = []

    def poll() -> None:
        num_under_way.append(dispatcher.num_under_way)
        time.s += 1.0

    dispatcher.wait(3.0, on_poll=poll)
    assert num_under_way == [3, 3, 3]
    slow.go.set()
    dispatcher.wait(1000.0, on_poll=poll)
    assert dispatcher.num_under_way == 0
