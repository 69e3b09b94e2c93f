from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.core.errors import LabelError, UsageError
from dovetail.core.types import Labels, Outcome
from dovetail.labels.human import HumanLabeler, Mark, human_labels
from dovetail.labels.store import LabelStore
from support.example_labels import assert_same_labels, labels


def person(judgement: Outcome, *, by: str = "anna", outcome: Outcome = Outcome.TIMEOUT, **other: object) -> Labels:
    return human_labels("e1", num_steps=4, outcome=outcome, judgement=judgement, by=by, **other)  # type: ignore[arg-type]


def test_human_labels_for_each_judgement() -> None:
    done = person(Outcome.SUCCESS)
    assert done.rewards.tolist() == [0, 0, 0, 1]
    assert done.discounts.tolist() == [1, 1, 1, 0]
    assert (done.success, done.confidence, done.labeler, done.version) == (True, 1.0, "human", "anna")
    assert not done.discard
    not_done = person(Outcome.FAILURE)
    assert not_done.rewards.tolist() == [0, 0, 0, 0]
    assert not_done.discounts.tolist() == [1, 1, 1, 1]  # timeout: bootstraps
    assert person(Outcome.FAILURE, outcome=Outcome.SUCCESS).discounts.tolist() == [1, 1, 1, 0]
    thrown_away = person(Outcome.ABORTED)
    assert thrown_away.discard
    assert not thrown_away.success


def test_mark_divides_its_reward_among_steps() -> None:
    marked = person(Outcome.SUCCESS, marks=[Mark(first=0, last=1, reward=0.5), Mark(first=1, last=3, reward=-0.3)])
    assert marked.rewards == pytest.approx([0.25, 0.15, -0.1, 0.9])
    for mark in (
        Mark(first=2, last=4, reward=1.0),
        Mark(first=-1, last=0, reward=1.0),
        Mark(first=2, last=1, reward=1.0),
    ):
        with pytest.raises(UsageError, match="does not fit an episode of 4 steps"):
            person(Outcome.SUCCESS, marks=[mark])
    with pytest.raises(UsageError, match="must be finite"):
        person(Outcome.SUCCESS, marks=[Mark(first=0, last=1, reward=float("nan"))])


def test_invalid_human_labels_are_refused() -> None:
    with pytest.raises(UsageError, match="success, failure or aborted"):
        person(Outcome.TIMEOUT)
    with pytest.raises(UsageError, match="aborted"):
        person(Outcome.SUCCESS, outcome=Outcome.ABORTED)
    with pytest.raises(LabelError, match="waits for a person"):
        HumanLabeler().label(type("E", (), {"id": "e1"})())  # type: ignore[arg-type]


def test_discard_can_be_retracted(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    machine, first, second = labels(num_steps=4), person(Outcome.SUCCESS), person(Outcome.ABORTED)
    for each in (machine, first, second):
        store.add(each)
    current = LabelStore(tmp_path).current("e1")
    assert current is not None
    assert current.discard
    store.add(labels(num_steps=4, reward=0.5))  # a later machine label changes nothing
    assert store.retract(second)
    assert not store.retract(second)  # sent twice
    assert_same_labels(LabelStore(tmp_path).current("e1"), first)
    assert store.retract(first)
    assert_same_labels(LabelStore(tmp_path).current("e1"), labels(num_steps=4, reward=0.5))
    store.add(first)  # added again after the retraction
    assert_same_labels(LabelStore(tmp_path).current("e1"), first)
    assert [record.retracted for record in store.history("e1")] == [False, True, True, False, False]


def test_retraction_affects_only_same_person(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    store.add(person(Outcome.SUCCESS, by="anna"))
    store.add(person(Outcome.FAILURE, by="ben"))
    assert not store.retract(person(Outcome.FAILURE, by="anna"))
    assert store.retract(person(Outcome.SUCCESS, by="anna"))
    assert_same_labels(store.current("e1"), person(Outcome.FAILURE, by="ben"))
    assert store.retract(person(Outcome.FAILURE, by="ben"))
    assert store.current("e1") is None


def test_opinion_is_stored_but_never_valid(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    store.add(labels(priority=-1))
    assert store.current("e1") is None
    assert store.ids() == ["e1"]
    store.add(labels(labeler="vlm"))
    store.add(labels(priority=-1, reward=9.0))
    assert_same_labels(store.current("e1"), labels(labeler="vlm"))
    assert np.float32(9.0) in store.history("e1")[-1].labels.rewards
