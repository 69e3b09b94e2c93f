from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.errors import StoreError, UsageError
from dovetail.labels._label_file import encode
from dovetail.labels.store import LabelStore
from support.example_labels import assert_same_labels, labels


def test_newest_labels_are_current_and_history_is_complete(tmp_path: Path) -> None:
    store = LabelStore(tmp_path / "labels")
    assert store.current("e1") is None
    given_ = [labels(), labels("e2"), labels(reward=0.2), labels(reward=0.1)]
    for each in given_:
        store.add(each)
    for reader in (store, LabelStore(tmp_path / "labels")):
        assert_same_labels(reader.current("e1"), given_[3])
        assert_same_labels(reader.current("e2"), given_[1])
        assert [h.labels.rewards[0] for h in reader.history("e1")] == [np.float32(x) for x in (0.1, 0.2, 0.1)]
        assert reader.ids() == ["e1", "e2"]


def test_adding_same_labels_twice_is_harmless(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    store.add(labels())
    LabelStore(tmp_path).add(labels())
    assert len(store.history("e1")) == 1
    store.add(labels(labeler="classifier", success=False))
    LabelStore(tmp_path).add(labels())  # late: newer labels stay valid
    assert [record.labels.labeler for record in store.history("e1")] == ["outcome", "classifier"]
    assert_same_labels(store.current("e1"), labels(labeler="classifier", success=False))


def test_higher_priority_wins_over_newer_labels(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    store.add(labels(success=True))
    store.add(labels(success=False, labeler="anna", priority=10))
    store.add(labels(success=True, version="2"))
    assert_same_labels(store.current("e1"), labels(success=False, labeler="anna", priority=10))
    store.add(labels(success=True, labeler="ben", priority=10))
    for reader in (store, LabelStore(tmp_path)):
        assert_same_labels(reader.current("e1"), labels(success=True, labeler="ben", priority=10))
        assert [record.labels.priority for record in reader.history("e1")] == [0, 10, 0, 10]


def test_order_of_adding_wins_over_clock(tmp_path: Path) -> None:
    """A clock that is set back must not make old labels new."""
    clock = iter([2000, 1000, 1500])
    store = LabelStore(tmp_path, now_unix_ns=lambda: next(clock))
    for reward in (0.1, 0.2, 0.3):
        store.add(labels(reward=reward))
    assert_same_labels(store.current("e1"), labels(reward=0.3))
    assert [record.added_unix_ns for record in store.history("e1")] == [2000, 1000, 1500]


# As an earlier version wrote them, before there were priorities and a count of what is committed.
OLD_LINES = (
    b'{"episode_id": "e1", "labeler": "outcome", "version": "1", "success": true, "confidence": 0.75, '
    b'"num_steps": 1, "rewards": "AACAPw==", "discounts": "AAAAAA==", "added_unix_ns": 5, "checksum": '
    b'"924c8f447c3276c7d427d6581ced6edb7440b173cb85cf9abb6ab8b93df7eb75"}\n'
)


def test_lines_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    (tmp_path / "labels.jsonl").write_bytes(OLD_LINES)
    store = LabelStore(tmp_path)
    old = labels(rewards=np.ones(1, np.float32), discounts=np.zeros(1, np.float32))
    assert_same_labels(store.current("e1"), old)
    assert store.history("e1")[0].added_unix_ns == 5
    store.add(old)  # already stored
    store.add(labels(labeler="later"))
    assert_same_labels(LabelStore(tmp_path).current("e1"), labels(labeler="later"))
    assert [record.labels.priority for record in store.history("e1")] == [0, 0]


def test_large_label_file_is_read_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    with path.open("wb") as file:
        for number in range(20_000):
            file.write(encode(labels(f"e{number}", num_steps=100), added_unix_ns=number) + b"\n")
    started = time.monotonic()
    store = LabelStore(tmp_path)
    assert len(store.ids()) == 20_000
    assert_same_labels(store.current("e19999"), labels("e19999", num_steps=100))
    assert time.monotonic() - started < 5.0  # 0.2 s here


def test_reader_sees_labels_of_other_process(tmp_path: Path) -> None:
    reader, writer = LabelStore(tmp_path), LabelStore(tmp_path)
    assert reader.history("e1") == []
    for reward in (0.1, 0.2):
        writer.add(labels(reward=reward))
        assert_same_labels(reader.current("e1"), labels(reward=reward))


def test_incomplete_last_line_is_ignored_and_removed(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    store.add(labels())
    path, mark = tmp_path / "labels.jsonl", tmp_path / "committed.json"
    whole, committed = path.read_bytes(), mark.read_bytes()
    store.add(labels("e2"))
    line = path.read_bytes()[len(whole) :]
    for cut in range(1, len(line) - 1, 7):
        path.write_bytes(whole + line[:cut])
        mark.write_bytes(committed)  # the crash came before
        fresh = LabelStore(tmp_path)
        assert fresh.current("e2") is None
        assert_same_labels(fresh.current("e1"), labels())
        fresh.add(labels("e3"))
        again = LabelStore(tmp_path)
        assert again.ids() == ["e1", "e3"]
        assert len(path.read_bytes().splitlines()) == 2


def test_line_without_newline_is_valid(tmp_path: Path) -> None:
    LabelStore(tmp_path).add(labels())
    path = tmp_path / "labels.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    early = LabelStore(tmp_path)
    assert_same_labels(early.current("e1"), labels())
    LabelStore(tmp_path).add(labels("e2"))
    for reader in (early, LabelStore(tmp_path)):
        assert reader.ids() == ["e1", "e2"]


def test_lines_that_go_missing_are_noticed(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    store.add(labels())
    (tmp_path / "labels.jsonl").write_bytes(b"")
    with pytest.raises(StoreError, match="lost committed lines"):
        store.current("e1")
    (tmp_path / "labels.jsonl").unlink()
    with pytest.raises(StoreError, match="is missing"):
        store.add(labels("e2"))


def test_refuses_uneven_labels(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="3 rewards and 2 discounts"):
        LabelStore(tmp_path).add(labels(discounts=np.ones(2, np.float32)))
    assert list(tmp_path.iterdir()) == []


floats = hnp.arrays(np.float32, 4, elements=st.floats(width=32))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=5), floats, st.text(max_size=5)), max_size=5))
def test_round_trip_is_exact(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, np.ndarray, str]]
) -> None:
    folder = tmp_path_factory.mktemp("labels")
    store = LabelStore(folder)
    expected = [
        labels(name, rewards=rewards, discounts=-rewards, version=f"{number}{version}")
        for number, (name, rewards, version) in enumerate(entries)
    ]
    for each in expected:
        store.add(each)
    reader = LabelStore(folder)
    for name in {each.episode_id for each in expected}:
        mine = [each for each in expected if each.episode_id == name]
        found = reader.history(name)
        assert len(found) == len(mine)
        for a, b in zip(found, mine, strict=True):
            assert_same_labels(a.labels, b)
