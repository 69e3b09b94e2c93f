"""Readers during continuous eviction and relabeling: rows and batches are always consistent."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Purpose, View
from dovetail.replay import _reader_files, _rings, reader
from dovetail.replay.reader import MappedReplayReader
from support.replay_model import EachOnce
from support.replay_processes import Child, SamplingProcess, open_mapped
from support.traceable_episodes import (
    CHECKABLE_WINDOW,
    batch,
    checkable_batch,
    checkable_episode,
    images,
    inconsistent,
    label,
    make_traceable_episode,
    pictures,
    steps,
    verdict,
)


def write_on_and_on(folder: Path, *, capacity_rows: int, relabels: int, demos: int = 0) -> Callable[..., None]:
    """Writes one byte per episode. Labels change all the time, and two robots append in turns."""

    def live(write: Callable[[bytes], None]) -> None:
        replay = open_mapped(folder, capacity_rows=capacity_rows)
        held = [checkable_episode(n, 3, purpose=Purpose.DEMO) for n in range(1, demos + 1)]
        for demo in held:
            replay.add(demo, verdict(demo, good=True))
        for number in itertools.count(demos + 1):
            # numbers start again in time: a float32 holds only so many
            episode = checkable_episode(10 + number % 9000, 5 + number % 4, cuts=(2, 4), id=f"e{number}")
            if number % 2:
                for segment in episode.segments[:2]:
                    replay.extend(episode.start, segment)
            replay.add(episode, verdict(episode, good=number % 3 == 0))
            for turn in range(relabels):
                for added in (*held, episode):
                    replay.relabel(verdict(added, good=turn % 2 == 0))
            write(b".")

    return live


@pytest.mark.extended
@pytest.mark.parametrize("num_batches", [1500, pytest.param(15_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("capacity_rows", "relabels", "demos"),
    [(20, 0, 0), (24, 3, 0), (40, 1, 3)],
    ids=["half evicted at each step", "relabeled all the time", "demonstrations moved"],
)
def test_reader_is_consistent_while_ring_is_rewritten(
    in_memory: Path, capacity_rows: int, relabels: int, demos: int, num_batches: int
) -> None:
    folder = in_memory / "replay"
    live = write_on_and_on(folder, capacity_rows=capacity_rows, relabels=relabels, demos=demos)
    view, into, rng = MappedReplayReader(folder), checkable_batch(24), np.random.default_rng(0)
    views = [View(), View(part="demo")] if demos else [View(), View(half_life_steps=4.0)]
    numbers = set()
    with Child(live, seconds=900) as child:
        child.wait_for(3)
        for number in range(num_batches):
            # never empty, not even while demonstrations are moved
            view.sample(into, view=views[number % 2], rng=rng, window=CHECKABLE_WINDOW)
            bad = inconsistent(into)
            assert not bad.any(), {name: values[bad][0] for name, values in into.items()}
            numbers.update(into["observation/state"][:, -1, 0].tolist())
        num_written = len(child.kill())
    assert num_written > num_batches / 100
    assert len(numbers) > num_batches / 200  # readers have seen many episodes


def test_many_reader_processes_are_consistent(in_memory: Path) -> None:
    folder = in_memory / "replay"
    with Child(write_on_and_on(folder, capacity_rows=40, relabels=2, demos=2)) as child:
        child.wait_for(2)
        with SamplingProcess(folder) as everything, SamplingProcess(folder, view=View(part="prior")) as prior:
            child.wait_for(60)
            for sampler in (everything, prior):
                sampler.wait_for(200)
            found = [everything.stop(), prior.stop()]
    for what in found:
        assert what["bad"] == 0
        assert what["empty"] == 0


def test_overwritten_batch_is_sampled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer overwrites rows between gathering and the check of the tail."""
    with closing(open_mapped(tmp_path / "replay", capacity_rows=10)) as replay:
        first, second = checkable_episode(1, 8), checkable_episode(2, 8)
        replay.add(first, verdict(first, good=True))
        view, into = MappedReplayReader(tmp_path / "replay"), checkable_batch(32)
        assert view.size(View()) == 8
        gather, calls = reader.ReaderFiles.gather, []

        def slow_gather(
            self: reader.ReaderFiles, into: dict, rows: np.ndarray, *arguments: object, **named: object
        ):
            found = gather(self, into, rows, *arguments, **named)
            if not calls:
                replay.add(second, verdict(second, good=False))
            calls.append(set(into["observation/state"][:, -1, 0]))
            return found

        monkeypatch.setattr(reader.ReaderFiles, "gather", slow_gather)
        view.sample(into, view=View(), rng=np.random.default_rng(0), window=CHECKABLE_WINDOW)
        assert calls == [{1.0}, {2.0}]
        assert not inconsistent(into).any()


def test_batch_is_sampled_again_after_concurrent_relabel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_mapped(tmp_path / "replay")) as replay:
        first = checkable_episode(1, 8)
        replay.add(first, verdict(first, good=True))
        view, into, turns = (
            MappedReplayReader(tmp_path / "replay"),
            checkable_batch(32),
            iter([False, True, False]),
        )
        take = reader.ReaderFiles._column

        def column(self: reader.ReaderFiles, name: str, rows: np.ndarray) -> np.ndarray:
            values = take(self, name, rows)
            if name == "reward":  # between the rewards and the discounts
                replay.relabel(verdict(first, good=next(turns, False)))
            return values

        monkeypatch.setattr(reader.ReaderFiles, "_column", column)
        view.sample(into, view=View(), rng=np.random.default_rng(0), window=CHECKABLE_WINDOW)
        assert not inconsistent(into).any()
        assert (into["reward"] < 0).all()
        assert next(turns, None) is None


def test_reader_that_is_always_overwritten_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_mapped(tmp_path / "replay", capacity_rows=10)) as replay:
        first = checkable_episode(1, 8)
        replay.add(first, verdict(first, good=True))
        monkeypatch.setattr(reader, "_TIMEOUT_S", 0.05)
        monkeypatch.setattr(reader.ReaderFiles, "none_overwritten", lambda self, oldest: False)
        with pytest.raises(StoreError, match="changes faster than a batch can be read") as error:
            replay.sample(checkable_batch(4), view=View(), rng=np.random.default_rng(0), window=CHECKABLE_WINDOW)
        assert "\n" not in str(error.value)


def test_old_snapshot_stays_valid_while_episode_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link to a new segment is written in place; a reader with an old snapshot must not follow it."""
    with closing(open_mapped(tmp_path / "replay")) as replay:
        slow, other = checkable_episode(1, 9, cuts=(4,)), checkable_episode(2, 3)
        replay.extend(slow.start, slow.segments[0])
        view, into = MappedReplayReader(tmp_path / "replay"), checkable_batch(32)
        assert view.size(View()) == 3
        state = view._state
        assert state is not None
        replay.add(other, verdict(other, good=True))
        replay.extend(slow.start, slow.segments[1])
        monkeypatch.setattr(view, "_refresh", lambda: state)
        view.sample(into, view=View(), rng=np.random.default_rng(0), window=CHECKABLE_WINDOW)
        assert not inconsistent(into).any()
        assert into["next/state"][..., 1].max() == 3
        assert set(into["observation/state"][:, -1, 1]) == {0.0, 1.0, 2.0}


def test_overwritten_frame_with_valid_rows_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an episode that has left, late rows may lie behind the tail of the ring while the frame they show, which was
    first seen much earlier, lies before it."""
    with closing(open_mapped(tmp_path / "replay", capacity_rows=12)) as replay:
        still, other, last = (
            make_traceable_episode(1, 4, cuts=(2,), frames=(0,) * 5),
            make_traceable_episode(2, 5),
            make_traceable_episode(3, 2),
        )
        replay.extend(still.start, still.segments[0])
        replay.add(other, label(other))
        replay.add(still, label(still))
        view = MappedReplayReader(tmp_path / "replay")
        into = {**batch(9), **images(9)}
        view.sample(into, view=View(), rng=EachOnce())
        assert steps(into) == {(1, t) for t in range(4)} | {(2, t) for t in range(5)}
        gather, calls = reader.ReaderFiles.gather, []

        def late_gather(
            self: reader.ReaderFiles, into: dict, rows: np.ndarray, *arguments: object, **named: object
        ):
            if not calls:  # between drawing and gathering
                replay.add(last, label(last))
                assert replay.ids() == ["e2", "e3"]
                rows = rows[into["observation/state"][:, 0] == 1][[-1] * 9]  # the still one's last step
                assert rows.min() >= self.counters["tail_row"]
            calls.append(rows)
            return gather(self, into, rows, *arguments, **named)

        monkeypatch.setattr(reader.ReaderFiles, "gather", late_gather)
        view.sample(into, view=View(), rng=EachOnce())
        assert len(calls) == 2
        assert steps(into) == {(2, t) for t in range(5)} | {(3, t) for t in range(2)}
        for picture, (number, tick) in zip(into["observation/wrist"], into["observation/state"], strict=True):
            np.testing.assert_array_equal(picture, pictures(int(number), np.array([int(tick)]))[0])


def test_files_reset_during_open_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of the old files and rows of the new ones could look consistent."""
    with closing(open_mapped(tmp_path / "replay")) as replay:
        for number in (1, 2):
            episode = make_traceable_episode(number, 4)
            replay.add(episode, label(episode))
        read, turns = _reader_files.read_file, []

        def read_slowly(path: Path) -> bytes:
            data = read(path)
            if not turns:
                replay.reset()
                replay.add(make_traceable_episode(3, 6), label(make_traceable_episode(3, 6)))
            turns.append(path)
            return data

        monkeypatch.setattr(_reader_files, "read_file", read_slowly)
        view, into = MappedReplayReader(tmp_path / "replay"), batch(50)
        assert view.size(View()) == 6
        assert len(turns) == 2
        view.sample(into, view=View(), rng=np.random.default_rng(0))
        assert steps(into) == {(3, t) for t in range(6)}


def test_first_episode_may_arrive_during_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader maps empty files and then reads counters that refer to rows."""
    with closing(open_mapped(tmp_path / "replay", capacity_rows=10)) as replay:
        too_long, first = make_traceable_episode(1, 20), make_traceable_episode(2, 4)
        with pytest.raises(UsageError, match="needs at least 21 rows"):
            replay.add(too_long, label(too_long))  # there are files now
        look, turns = _rings.Ring.remap, []

        def remap_slowly(self: _rings.Ring) -> int:
            found = look(self)
            if self._path.name == "spans.bin" and len(turns) == 0:
                turns.append(found)
                replay.add(first, label(first))
            return found

        view = MappedReplayReader(tmp_path / "replay")
        assert view.size(View()) == 0
        view = MappedReplayReader(tmp_path / "replay")
        monkeypatch.setattr(_rings.Ring, "remap", remap_slowly)
        assert view.size(View()) == 4
        assert turns == [0]


def test_reader_is_thread_safe(in_memory: Path) -> None:
    """A learner samples ahead in one thread and asks for sizes in another, while the store is reset
    with other rows, other keys and another length."""
    folder = in_memory / "replay"
    into, failures, num_batches = checkable_batch(24), [], [0, 0]
    view, over = MappedReplayReader(folder), threading.Event()

    def sample() -> None:
        rng = np.random.default_rng(0)
        while not over.is_set():
            try:
                view.sample(into, view=View(), rng=rng, window=CHECKABLE_WINDOW)
                num_batches[0] += 1
                if inconsistent(into).any():
                    failures.append("inconsistent")
            except UsageError as error:
                if "is empty" not in str(error):
                    failures.append(repr(error))
            except BaseException as error:
                failures.append(repr(error))

    def ask() -> None:
        while not over.is_set():
            try:
                size = view.size(View(part="online"))
                num_batches[1] += 1
                if size not in (0, 5, 10, 15):
                    failures.append(f"size {size}")
            except BaseException as error:
                failures.append(repr(error))

    threads = [threading.Thread(target=sample), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    for turn in range(25):
        with closing(open_mapped(folder, capacity_rows=(18, 40)[turn % 2])) as replay:
            assert (replay.open() is None) == (turn == 0)
            for number in range(1, 4):
                episode = checkable_episode(3 * turn + number, 5)
                replay.add(episode, verdict(episode, good=True))
                time.sleep(0.002)
    deadline_s = time.monotonic() + 20
    while min(num_batches) < 50 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    over.set()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]
    assert min(num_batches) >= 50


def test_number_of_cached_views_is_bounded(tmp_path: Path) -> None:
    """A sliding window of versions over a replay that no longer changes."""
    with closing(open_mapped(tmp_path / "replay")) as replay:
        episode = make_traceable_episode(1, 5, versions=3)
        replay.add(episode, label(episode))
        for version in range(500):
            assert replay.size(View(versions=(version, version + 1))) == (5 if version in (2, 3) else 0)
        state = replay._reader._state
        assert state is not None
        assert len(state[1]._view_steps) <= 64
