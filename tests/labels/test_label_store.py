from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Labels
from dovetail.labels.store import LabelStore


def labels(episode_id: str = "e1", *, reward: float = 0.1, num_steps: int = 3, **other: Any) -> Labels:
    fields: dict[str, Any] = {
        "episode_id": episode_id,
        "rewards": np.full(num_steps, reward, np.float32),
        "discounts": np.ones(num_steps, np.float32),
        "success": True,
        "confidence": 0.75,
        "labeler": "outcome",
        "version": "1",
    }
    return Labels(**{**fields, **other})


def assert_same(a: Labels | None, b: Labels | None) -> None:
    assert a is not None
    assert b is not None
    for field in dataclasses.fields(Labels):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            assert x.dtype == np.float32
            assert x.tobytes() == y.tobytes()
        else:
            assert x == y


def test_the_newest_counts_and_history_is_kept(tmp_path: Path) -> None:
    store = LabelStore(tmp_path / "labels")
    assert store.newest("e1") is None
    given_ = [labels(), labels("e2"), labels(reward=0.2), labels(reward=0.1)]
    for each in given_:
        store.add(each)
    for reader in (store, LabelStore(tmp_path / "labels")):
        assert_same(reader.newest("e1"), given_[3])
        assert_same(reader.newest("e2"), given_[1])
        assert [h.rewards[0] for h in reader.history("e1")] == [np.float32(x) for x in (0.1, 0.2, 0.1)]
        assert reader.ids() == ["e1", "e2"]


def test_sending_the_newest_again_is_harmless(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    store.add(labels())
    LabelStore(tmp_path).add(labels())
    assert len(store.history("e1")) == 1


def test_a_reader_sees_what_another_adds(tmp_path: Path) -> None:
    reader, writer = LabelStore(tmp_path), LabelStore(tmp_path)
    assert reader.history("e1") == []
    for reward in (0.1, 0.2):
        writer.add(labels(reward=reward))
        assert_same(reader.newest("e1"), labels(reward=reward))


def test_a_torn_last_line_is_ignored_and_nothing_glues_on_to_it(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    store.add(labels())
    path = tmp_path / "labels.jsonl"
    whole = path.read_bytes()
    store.add(labels("e2"))
    line = path.read_bytes()[len(whole) :]
    for cut in range(1, len(line) - 1, 7):
        path.write_bytes(whole + line[:cut])
        fresh = LabelStore(tmp_path)
        assert fresh.newest("e2") is None
        assert_same(fresh.newest("e1"), labels())
        fresh.add(labels("e3"))
        again = LabelStore(tmp_path)
        assert again.ids() == ["e1", "e3"]
        assert len(path.read_bytes().splitlines()) == 2


def test_a_line_that_only_lost_its_newline_counts(tmp_path: Path) -> None:
    LabelStore(tmp_path).add(labels())
    path = tmp_path / "labels.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    early = LabelStore(tmp_path)
    assert_same(early.newest("e1"), labels())
    LabelStore(tmp_path).add(labels("e2"))
    for reader in (early, LabelStore(tmp_path)):
        assert reader.ids() == ["e1", "e2"]


def test_any_flipped_byte_is_found(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    for name in ("e1", "e2", "e3"):
        store.add(labels(name))
    path = tmp_path / "labels.jsonl"
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    newlines = [place for place, byte in enumerate(data) if byte == ord("\n")]
    for place in {*newlines, *rng.integers(len(data), size=250).tolist()}:
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"labels\.jsonl line \d is damaged"):
            LabelStore(tmp_path).newest("e1")


def test_lines_that_go_missing_are_noticed(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    store.add(labels())
    (tmp_path / "labels.jsonl").write_bytes(b"")
    with pytest.raises(StoreError, match="lost lines"):
        store.newest("e1")
    (tmp_path / "labels.jsonl").unlink()
    with pytest.raises(StoreError, match="has gone"):
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
            assert_same(a, b)
