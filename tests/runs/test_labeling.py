"""The label desk: nobody waits for it, nothing is lost, and what others say is heard."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.config.schema import LabelingConfig
from dovetail.core.errors import LabelError, UsageError
from dovetail.core.types import Episode, Labels, Outcome
from dovetail.labels.human import HumanLabeler, human_labels
from dovetail.labels.chain import LabelerChain
from dovetail.labels.queue import LabelQueue, Reason
from dovetail.labels.store import LabelStore
from dovetail.runs.labeling import LabelDispatcher


class Named:
    """All of an episode that these labelers look at."""

    def __init__(self, name: str) -> None:
        self.id = name


def said(name: str, labeler: str, *, success: bool = True, confidence: float = 1.0) -> Labels:
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
    """Answers when it is let to; counts how many ask at once."""

    max_concurrent = 2

    def __init__(self, *, confidence: float = 1.0) -> None:
        self.go, self.away = threading.Event(), False
        self.asked: list[str] = []
        self.most = self._now = 0
        self._lock = threading.Lock()
        self._confidence = confidence

    def label(self, episode: Episode) -> Labels:
        with self._lock:
            self.asked.append(episode.id)
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            assert self.go.wait(30)
            if self.away:
                raise LabelError("the server is away")
            return said(episode.id, "slow", confidence=self._confidence)
        finally:
            with self._lock:
                self._now -= 1


class Time:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def desk_of(folder: Path, *labelers: Any, **settings: Any) -> tuple[LabelDispatcher, LabelStore, LabelQueue, Time]:
    store, queue, time = LabelStore(folder), LabelQueue(folder / "queue"), Time()
    desk = LabelDispatcher(
        panel=LabelerChain(labelers),
        store=store,
        queue=queue,
        load=lambda name: Named(name),  # type: ignore[arg-type, return-value]
        settings=LabelingConfig(**settings),
        now_s=time,
    )
    return desk, store, queue, time


def label(desk: LabelDispatcher, *names: str) -> list[Labels | None]:
    return [desk.label(Named(name)) for name in names]  # type: ignore[arg-type]


def until(desk: LabelDispatcher, *, num: int = 0) -> None:
    """Wait for answers, which are let out."""
    while desk.num_under_way > num:
        desk._turn(wait_s=5.0)


def test_a_slow_labeler_holds_nobody_up(tmp_path: Path) -> None:
    slow = Slow()
    desk, store, queue, _ = desk_of(tmp_path, slow)
    assert label(desk, *(f"e{number}" for number in range(7))) == [None] * 7  # at once
    assert desk.news() == []
    assert desk.num_under_way == 7
    assert desk.waiting() == {"under way": 7}
    slow.go.set()
    until(desk)
    assert sorted(desk.news()) == [f"e{number}" for number in range(7)]
    assert desk.news() == []
    assert slow.most == 2  # at once
    assert sorted(slow.asked) == [f"e{number}" for number in range(7)]  # each once
    assert all(store.current(f"e{number}") is not None for number in range(7))
    assert desk.waiting() == {}
    assert queue.ids() == []


def test_a_server_that_is_away(tmp_path: Path) -> None:
    """Asked less and less often, about one episode at a time; nothing is lost, and all is asked once it is back."""
    slow = Slow()
    slow.away = True
    slow.go.set()
    desk, store, queue, time = desk_of(tmp_path, slow, retry_s=5.0, max_retry_s=15.0)
    label(desk, "e0", "e1", "e2")
    until(desk)
    assert set(desk.waiting()) == {"away", "under way"} or set(desk.waiting()) == {"away"}
    first = len(slow.asked)
    assert 1 <= first <= 2  # what had begun before it was noticed
    seen = []
    for _ in range(60):
        time.s += 1.0
        before = len(slow.asked)
        desk.news()
        until(desk)
        if len(slow.asked) > before:
            seen.append(time.s)
    assert np.diff(seen).max() <= 15.0
    assert 4 <= len(seen) <= 7  # of 60 seconds: after 5 or 10, and then every 15
    assert len(set(slow.asked)) == 3  # in turn
    assert sorted(queue.ids()) == ["e0", "e1", "e2"]
    assert {item.note for item in queue.waiting()} == {"the server is away"}
    slow.away = False
    time.s += 15.0
    for _ in range(3):
        desk.news()
        until(desk)
    assert all(store.current(name) is not None for name in ("e0", "e1", "e2"))
    assert queue.ids() == []
    assert [len(store.history(name)) for name in ("e0", "e1", "e2")] == [1, 1, 1]


def test_who_is_not_sure_leaves_it_to_a_person(tmp_path: Path) -> None:
    slow = Slow(confidence=0.5)
    slow.go.set()
    desk, store, queue, _ = desk_of(tmp_path, slow, HumanLabeler())
    label(desk, "e1")
    until(desk)
    assert desk.news() == ["e1"]  # an opinion
    assert store.current("e1") is None
    (item,) = queue.waiting()
    assert item.reasons == (Reason.UNCERTAIN,)
    assert [(one.labeler, one.confidence) for one in item.opinions] == [("slow", 0.5)]
    assert desk.waiting() == {"uncertain": 1}
    person = human_labels("e1", num_steps=3, outcome=Outcome.TIMEOUT, judgement=Outcome.SUCCESS, by="anna")
    LabelStore(tmp_path).add(person)  # the console, killed before it could say that it was done
    assert desk.news() == ["e1"]
    assert queue.ids() == []
    assert desk.waiting() == {}


def test_nobody_is_asked_about_what_a_person_has_labelled_meanwhile(tmp_path: Path) -> None:
    slow = Slow()
    desk, store, _, _ = desk_of(tmp_path, slow)
    label(desk, "e0", "e1", "e2", "e3")
    person = human_labels("e3", num_steps=3, outcome=Outcome.TIMEOUT, judgement=Outcome.FAILURE, by="anna")
    LabelStore(tmp_path).add(person)
    slow.go.set()
    until(desk)
    assert "e3" not in slow.asked
    assert [record.labels.labeler for record in store.history("e3")] == ["human"]


def test_who_labels_while_a_server_fails_is_not_asked_again(tmp_path: Path) -> None:
    slow = Slow()
    slow.away = True
    desk, store, queue, time = desk_of(tmp_path, slow, retry_s=5.0)
    label(desk, "e0")
    store.add(human_labels("e0", num_steps=3, outcome=Outcome.TIMEOUT, judgement=Outcome.SUCCESS, by="somebody"))
    assert desk.news() == ["e0"]
    slow.go.set()
    until(desk)
    time.s += 6.0
    desk.news()
    assert queue.ids() == []
    assert desk.waiting() == {}


def test_what_waits_is_taken_up_again(tmp_path: Path) -> None:
    """Another process: nothing but the files is left."""
    slow = Slow()
    desk, *_ = desk_of(tmp_path, slow)
    label(desk, "e0")
    desk.close()
    queue = LabelQueue(tmp_path / "queue")
    queue.put("e1", [Reason.UNCERTAIN])
    queue.put("e2", [Reason.AWAY])
    fresh = Slow()
    fresh.go.set()
    again, _, queue, _ = desk_of(tmp_path, fresh)
    assert [again.take_up(name) for name in ("e0", "e1", "e2")] == [None] * 3
    assert again.take_up("e0") is None  # asked about once, however often it is taken up
    until(again)
    assert sorted(fresh.asked) == ["e0", "e2"]  # the other one waits for a person
    assert sorted(again.news()) == ["e0", "e2"]
    assert queue.ids() == ["e1"]
    slow.go.set()


def test_any_other_trouble_is_told(tmp_path: Path) -> None:
    class Broken:
        max_concurrent = 1

        def label(self, episode: Episode) -> Labels:
            raise UsageError("no such camera")

    desk, *_ = desk_of(tmp_path, Broken())
    label(desk, "e0")
    with pytest.raises(UsageError, match="no such camera"):
        until(desk)


def test_a_quick_labeler_that_gives_no_answer_is_asked_again(tmp_path: Path) -> None:
    class Moody:
        away = True

        def label(self, episode: Episode) -> Labels:
            if self.away:
                raise LabelError("not now")
            return said(episode.id, "faulty")

    faulty = Moody()
    desk, store, queue, time = desk_of(tmp_path, faulty, retry_s=1.0)
    assert label(desk, "e0") == [None]
    assert queue.ids() == ["e0"]
    faulty.away = False
    time.s = 2.0
    desk.news()
    until(desk)
    assert desk.news() in (["e0"], [])
    assert store.current("e0") is not None
    assert queue.ids() == []


def test_waiting_has_an_end(tmp_path: Path) -> None:
    slow = Slow()
    desk, _, _, time = desk_of(tmp_path, slow)
    label(desk, "e0", "e1", "e2")
    looks = []

    def look_up() -> None:
        looks.append(desk.num_under_way)
        time.s += 1.0

    desk.wait(3.0, look_up=look_up)
    assert looks == [3, 3, 3]
    slow.go.set()
    desk.wait(1000.0, look_up=look_up)
    assert desk.num_under_way == 0
