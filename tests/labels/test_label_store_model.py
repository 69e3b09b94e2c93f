"""The label store against a plain list, over random sequences of adds and retractions by several labelers, stores
and processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.types import Labels
from dovetail.labels.store import LabelStore
from dovetail.labels.verify import verify_labels
from support import TESTS
from support.example_labels import assert_same_labels, labels

EPISODES = ("e1", "e2")

random_labels = st.builds(
    lambda episode_id, labeler, version, priority, success: labels(
        episode_id, labeler=labeler, version=version, priority=priority, success=success, reward=float(success)
    ),
    st.sampled_from(EPISODES),
    st.sampled_from(["outcome", "classifier", "anna"]),
    st.sampled_from(["1", "2"]),
    st.sampled_from([-1, 0, 10]),
    st.booleans(),
)
# labels, whether they are retracted, which of two stores does it, and whether it is reopened first
adds = st.lists(
    st.tuples(random_labels, st.sampled_from([False, False, True]), st.integers(0, 1), st.booleans()), max_size=25
)


class Model:
    def __init__(self) -> None:
        self.lines: list[Labels] = []
        self.retracted: set[int] = set()  # numbers of lines

    def _last_of(self, new: Labels) -> int | None:
        def source(each: Labels) -> tuple[object, ...]:
            return each.episode_id, each.labeler, each.version, each.priority

        matching = [
            number
            for number, each in enumerate(self.lines)
            if number not in self.retracted and source(each) == source(new)
        ]
        return matching[-1] if matching else None

    def add(self, new: Labels) -> None:
        last = self._last_of(new)
        if last is None or self.lines[last].success != new.success:
            self.lines.append(new)

    def retract(self, old: Labels) -> bool:
        last = self._last_of(old)
        if last is None or self.lines[last].success != old.success:
            return False
        self.retracted.add(last)
        return True

    def history(self, episode_id: str) -> list[tuple[Labels, bool]]:
        return [
            (each, number in self.retracted)
            for number, each in enumerate(self.lines)
            if each.episode_id == episode_id
        ]

    def current(self, episode_id: str) -> Labels | None:
        best = None
        for each, retracted in self.history(episode_id):
            if not retracted and each.priority >= 0 and (best is None or each.priority >= best.priority):
                best = each
        return best


@settings(max_examples=60, deadline=None)
@given(adds, st.randoms(use_true_random=False))
def test_random_adds_match_reference_model(tmp_path_factory: pytest.TempPathFactory, sequence, random) -> None:
    folder = tmp_path_factory.mktemp("labels")

    def jumping() -> int:
        return random.randrange(10**18)  # the clock must not matter

    stores = [LabelStore(folder, now_unix_ns=jumping) for _ in range(2)]
    model = Model()
    follower, cursor = LabelStore(folder), None
    for new, taken_back, which, restarted in sequence:
        if restarted:
            stores[which] = LabelStore(folder, now_unix_ns=jumping)
        num_bytes = size(folder)
        if taken_back:
            assert stores[which].retract(new) == model.retract(new)
        else:
            stores[which].add(new)
            model.add(new)
        check(stores[1 - which], model)
        changed, cursor = follower.changed(cursor)
        assert changed == ([new.episode_id] if size(folder) > num_bytes else [])
    check(LabelStore(folder), model)
    assert verify_labels(folder) == []


def size(folder: Path) -> int:
    path = folder / "labels.jsonl"
    return path.stat().st_size if path.exists() else 0


def check(store: LabelStore, model: Model) -> None:
    assert store.ids() == sorted({each.episode_id for each in model.lines})
    for episode_id in EPISODES:
        history, expected = store.history(episode_id), model.history(episode_id)
        assert len(history) == len(expected)
        for record, (each, retracted) in zip(history, expected, strict=True):
            assert_same_labels(record.labels, each)
            assert record.retracted == retracted
        current = model.current(episode_id)
        if current is None:
            assert store.current(episode_id) is None
        else:
            assert_same_labels(store.current(episode_id), current)


ADDING = """
import sys
sys.path.insert(0, sys.argv[1])
from support.example_labels import labels
from dovetail.labels.store import LabelStore
store = LabelStore(sys.argv[2])
for number in range(40):
    store.add(labels(f"e{number % 4}", labeler=sys.argv[3], reward=number))
"""


def test_concurrent_processes_add_all_labels(tmp_path: Path) -> None:
    here = str(TESTS)
    names = ("left", "right")
    processes = [
        subprocess.Popen([sys.executable, "-c", ADDING, here, str(tmp_path), name], stderr=subprocess.PIPE)
        for name in names
    ]
    reader = LabelStore(tmp_path)
    while any(process.poll() is None for process in processes):
        reader.ids()  # a concurrent reader never sees an incomplete line
    assert [process.communicate()[1] for process in processes] == [b"", b""]
    assert verify_labels(tmp_path) == []
    for name in names:
        for episode in range(4):
            mine = [r.labels.rewards[0] for r in reader.history(f"e{episode}") if r.labels.labeler == name]
            assert mine == list(range(episode, 40, 4))
