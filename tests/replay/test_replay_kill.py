"""kill -9 at any time: acknowledged data is intact, or the replay reports a reset."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Purpose, View
from dovetail.replay import _rings, reader
from dovetail.replay.mapped import MappedReplay
from dovetail.replay.reader import MappedReplayReader
from support.replay_model import Model, assert_matches_model
from support.replay_processes import CAPACITY_ROWS, Child, Operation, SamplingProcess, open_mapped, operations
from support.traceable_episodes import (
    CHECKABLE_WINDOW,
    checkable_batch,
    checkable_episode,
    inconsistent,
    label,
    make_traceable_episode,
    verdict,
)


def is_same(replay: MappedReplay, model: Model) -> bool:
    try:
        assert replay.ids() == model.ids()
        assert_matches_model(replay, model)
    except AssertionError:
        return False
    return True


def settle(replay: MappedReplay, model: Model, underway: Operation) -> bool:
    """Bring the model to where the replay was killed: before, in the middle of, or after an operation. Returns whether
    that operation was done."""
    if is_same(replay, model):
        return False
    if underway.name in ("add", "extend"):
        underway.apply_to_model(model, only_evict=True)  # evictions are done
        if is_same(replay, model):
            return False
    underway.apply_to_model(model)
    assert replay.ids() == model.ids()
    assert_matches_model(replay, model)  # prints the differences
    return True


@pytest.mark.parametrize("rounds", [6, pytest.param(240, marks=pytest.mark.slow)])
def test_writer_killed_at_random_times_leaves_valid_replay(in_memory: Path, rounds: int) -> None:
    """Reader processes sample all the time and see consistent rows."""
    folder, dice = in_memory / "replay", random.Random()
    source = operations(dice.randrange(2**32))
    todo: list[Operation] = []  # that were not done yet
    model, log = Model(CAPACITY_ROWS, keep_demos=True), []
    num_done = num_resets = num_unfinished = 0
    with SamplingProcess(folder) as anything, SamplingProcess(folder, view=View(part="online")) as online:
        for _ in range(rounds):
            todo += itertools.islice(source, 500 - len(todo))

            def live(write: Callable[[bytes], None], todo: list[Operation] = todo) -> None:
                replay = open_mapped(folder)
                assert replay.open() is None  # what was killed was settled below
                write(b".")
                for operation in todo:
                    operation.do(replay)
                    write(b".")
                raise AssertionError("it was not killed")

            with Child(live) as child:
                if dice.random() < 0.8:
                    child.wait_for(2)  # it has opened, and done something
                time.sleep(dice.uniform(0.0, 0.03))
                acknowledged = max(0, len(child.kill()) - 1)
            for operation in todo[:acknowledged]:
                operation.apply_to_model(model)
                if operation.name == "add":
                    log.append(operation)
            del todo[:acknowledged]
            num_done += acknowledged
            with closing(open_mapped(folder)) as replay:
                reason = replay.open()
                if reason is not None:
                    num_resets += 1
                    assert reason == "its writer was killed while it was publishing"
                    assert replay.ids() == []
                    assert replay.size(View()) == 0
                    model = Model(CAPACITY_ROWS, keep_demos=True)
                    for operation in log[-12:]:  # made again from what the log has
                        operation.do(replay)
                        operation.apply_to_model(model)
                    assert_matches_model(replay, model)
                elif settle(replay, model, todo[0]):
                    num_unfinished += 1
                    if todo[0].name == "add":
                        log.append(todo[0])
                    del todo[0]
        for sampler in (anything, online):
            sampler.wait_for(5 * rounds)
        watched = [anything.stop(), online.stop()]
    assert num_done > rounds / 4
    if rounds > 100:
        assert num_resets > 0  # some kills interrupted a publication
        assert num_unfinished > 0
        assert num_resets < rounds / 2
    for found in watched:
        assert found["bad"] == 0


# ---- kills at each write of one operation


class Moments:
    """Kills its own process before, during or after the n-th write."""

    def __init__(self, when: int | None) -> None:
        self.count, self._when = 0, when
        self._pwrite, self._set = os.pwrite, _rings.Counters.__setitem__

    def install(self) -> None:
        """Not undone, because the process is killed."""
        os.pwrite = self._half  # type: ignore[assignment]
        _rings.Counters.__setitem__ = lambda *given: self._store(*given)  # type: ignore[method-assign]

    def _pass(self) -> None:
        if self.count == self._when:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def _half(self, descriptor: int, data: bytes, place: int) -> int:
        self._pass()
        if self.count == self._when:
            self._pwrite(descriptor, memoryview(data)[: len(data) // 2], place)
        self._pass()
        return self._pwrite(descriptor, data, place)

    def _store(self, counters: _rings.Counters, name: str, value: int) -> None:
        self._pass()
        self._set(counters, name, value)


def scene(name: str) -> tuple[list[Operation], Operation]:
    """What was done before, and what is being done when the kill comes."""

    def add(number: int, num_steps: int, *, demo: bool = False) -> Operation:
        episode = checkable_episode(number, num_steps, purpose=Purpose.DEMO if demo else Purpose.ONLINE)
        return Operation("add", (episode, verdict(episode, good=number % 2 == 0)))

    slow = checkable_episode(9, 6, cuts=(2, 4))
    extend = [Operation("extend", (slow.start, segment), slow) for segment in slow.segments]
    filled = [add(1, 5, demo=True), add(2, 6), add(3, 7), extend[0], add(4, 5)]
    scenes = {
        "create": ([], add(1, 5)),
        "add": (filled[:2], add(5, 4)),
        "evict": ([add(1, 9), add(2, 9), add(3, 9)], add(4, 9)),
        "move": (filled, add(5, 9)),
        "extend": (filled, extend[1]),
        "finish": ([*filled, extend[1]], Operation("add", (slow, verdict(slow, good=True)))),
        "finish and move": (
            [extend[0], *filled[:3], filled[4]],
            Operation("add", (slow, verdict(slow, good=True))),
        ),
        "relabel": (filled, Operation("relabel", (verdict(checkable_episode(3, 7), good=True),))),
        "drop": (filled, Operation("drop", ("e3",))),
    }
    return scenes[name]


@pytest.mark.extended
@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["create", "add", "evict", "move", "extend", "finish", "finish and move", "relabel", "drop"]
)
def test_writer_killed_at_each_write_leaves_valid_replay(in_memory: Path, name: str, every: int) -> None:
    before, underway = scene(name)
    outcomes, when = set(), random.randrange(every)
    while True:
        folder = in_memory / str(when)
        model = Model(CAPACITY_ROWS, keep_demos=True)
        with closing(open_mapped(folder)) as replay:
            for operation in before:
                operation.do(replay)
                operation.apply_to_model(model)

        def live(write: Callable[[bytes], None], folder: Path = folder, when: int = when) -> None:
            replay = open_mapped(folder)
            replay.open()
            Moments(when).install()
            underway.do(replay)
            write(b"done")

        output, code = Child(live).join()
        with closing(open_mapped(folder)) as replay:
            reason = replay.open()
            if reason is not None:
                assert code == -signal.SIGKILL
                assert reason == "its writer was killed while it was publishing"
                assert replay.size(View()) == 0
                model = Model(CAPACITY_ROWS, keep_demos=True)
                for operation in before:
                    operation.do(replay)
                    operation.apply_to_model(model)
                outcomes.add("reset")
            else:
                outcomes.add("after" if settle(replay, model, underway) else "before")
            if output:  # acknowledged
                assert code == 0
                assert reason is None
                underway.apply_to_model(model)
                assert is_same(replay, model)
            underway.do(replay)  # repeating it is harmless
            underway.apply_to_model(model)
            assert is_same(replay, model)
            for number in (101, 102, 103):  # also after its episode was evicted
                episode = checkable_episode(number, 9)
                for operation in (Operation("add", (episode, verdict(episode, good=True))), underway):
                    operation.do(replay)
                    operation.apply_to_model(model)
            assert is_same(replay, model)
        if output:
            break  # it finished before the kill
        assert code == -signal.SIGKILL
        when += every
    assert when > 3
    if every == 1:
        assert outcomes == {"before", "after", "reset"}


def test_kill_during_reset_leaves_empty_replay(tmp_path: Path) -> None:
    """Leftovers of the old replay, such as its counters, must not be used."""
    first, second = make_traceable_episode(1, 5), make_traceable_episode(2, 3)
    files = ("counters", "episodes.bin", "rows-action.bin", "frames-wrist.bin")
    for number, left in enumerate([(), *((name,) for name in files), files]):
        folder = tmp_path / str(number)
        with closing(open_mapped(folder)) as replay:
            replay.add(first, label(first))
        (folder / "layout.json").unlink()  # this goes first
        for path in folder.iterdir():
            if path.name not in left and path.name != ".lock":
                path.unlink()
        if "counters" in left:
            _rings.Counters(folder / "counters", writable=True)["retired"] = 1
        with closing(open_mapped(folder)) as replay:
            assert replay.open() is None
            assert replay.ids() == []
            model = Model(CAPACITY_ROWS, keep_demos=True)
            for episode in (first, second):
                replay.add(episode, label(episode))
                model.add(episode, label(episode))
            assert_matches_model(replay, model)
            assert_matches_model(MappedReplayReader(folder), model)


# ---- readers after the writer was killed


def kill_inside_publishing(folder: Path, number: int, *, relabeling: bool) -> None:
    """A writer that dies with the version, or also the count of relabels, odd."""

    def live(write: Callable[[bytes], None]) -> None:
        replay = open_mapped(folder)
        replay.open()
        name, counters = ("relabels" if relabeling else "version"), replay._files.counters
        setter = _rings.Counters.__setitem__

        def store(self: _rings.Counters, key: str, value: int) -> None:
            setter(self, key, value)
            if key == name and value % 2:
                os.kill(os.getpid(), signal.SIGKILL)

        assert counters["version"] % 2 == 0
        _rings.Counters.__setitem__ = store  # type: ignore[method-assign]
        episode = checkable_episode(number, 6)
        if relabeling:
            replay.relabel(verdict(episode, good=True))
        else:
            replay.add(episode, verdict(episode, good=True))

    assert Child(live).join()[1] == -signal.SIGKILL


def test_readers_survive_interrupted_publication_and_follow_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "replay"
    first = checkable_episode(1, 6)
    with closing(open_mapped(folder)) as replay:
        replay.add(first, verdict(first, good=False))
    old, late, into = MappedReplayReader(folder), MappedReplayReader(folder), checkable_batch(64)
    assert old.size(View()) == 6
    kill_inside_publishing(folder, 2, relabeling=False)
    for _ in range(3):  # the old snapshot is still valid
        old.sample(into, view=View(), rng=np.random.default_rng(0), window=CHECKABLE_WINDOW)
        assert not inconsistent(into).any()
    assert old.size(View()) == 6
    monkeypatch.setattr(reader, "_TIMEOUT_S", 0.05)
    with pytest.raises(StoreError, match=r"stopped during a publication. Restart the writer"):
        late.size(View())  # a new reader has no valid snapshot
    with closing(open_mapped(folder)) as replay:
        assert replay.open() == "its writer was killed while it was publishing"
        for view in (old, late):
            assert view.size(View()) == 0
            with pytest.raises(UsageError, match="is empty"):
                view.sample(into, view=View(), rng=np.random.default_rng(0), window=CHECKABLE_WINDOW)
        second = checkable_episode(2, 4)
        replay.add(second, verdict(second, good=True))
        for view in (old, late):
            assert view.size(View()) == 4
            view.sample(into, view=View(), rng=np.random.default_rng(0), window=CHECKABLE_WINDOW)
            assert set(into["observation/state"][:, -1, 0]) == {2.0}


def test_reader_waiting_for_relabel_continues_after_writer_restart(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "replay"
    first = checkable_episode(1, 6)
    with closing(open_mapped(folder)) as replay:
        replay.add(first, verdict(first, good=False))
    with SamplingProcess(folder) as sampler, closing(open_mapped(folder)) as replay:
        sampler.wait_for(1)
        kill_inside_publishing(folder, 1, relabeling=True)
        time.sleep(0.2)  # it must wait: some rewards may be new
        assert replay.open() == "its writer was killed while it was publishing"
        second = checkable_episode(2, 4)
        replay.add(second, verdict(second, good=True))
        sampler.wait_for(sampler.num_batches + 5)
        found = sampler.stop()
    assert found["bad"] == 0
    assert found["numbers"] == 2  # it has seen the first episode, and the second


def test_reader_raises_if_relabel_is_never_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "replay"
    first = checkable_episode(1, 6)
    with closing(open_mapped(folder)) as replay:
        replay.add(first, verdict(first, good=False))
    view = MappedReplayReader(folder)
    assert view.size(View()) == 6
    kill_inside_publishing(folder, 1, relabeling=True)
    monkeypatch.setattr(reader, "_TIMEOUT_S", 0.05)
    with pytest.raises(StoreError, match=r"its writer was killed.*restart the writer") as error:
        view.sample(checkable_batch(4), view=View(), rng=np.random.default_rng(0), window=CHECKABLE_WINDOW)
    assert "\n" not in str(error.value)


def test_interrupted_publication_resets_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt during a publication: no more writes, and the next open resets the replay."""
    folder = tmp_path / "replay"
    first, second = checkable_episode(1, 6), checkable_episode(2, 6)
    with closing(open_mapped(folder)) as replay:
        replay.add(first, verdict(first, good=False))
        setter = _rings.Counters.__setitem__

        def interrupted(self: _rings.Counters, key: str, value: int) -> None:
            if key == "head_row":
                raise KeyboardInterrupt
            setter(self, key, value)

        monkeypatch.setattr(_rings.Counters, "__setitem__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            replay.add(second, verdict(second, good=False))
        monkeypatch.undo()
        with pytest.raises(StoreError, match=r"interrupted a change of the replay. Close it and open it again"):
            replay.add(second, verdict(second, good=False))
    with closing(open_mapped(folder)) as replay:
        assert replay.open() == "its writer was killed while it was publishing"
        replay.add(second, verdict(second, good=False))
        assert replay.size(View()) == 6
