"""The stores of a run, each with a sequence of operations and a check of everything that was acknowledged.

An operation is a line of text such as `commit a1`, so that it can be written to the record of a run and read back.
`state_after` says what a store must contain after a list of operations. A failed operation happened completely or not at
all, so the store must equal the state before it or after it.
"""

from __future__ import annotations

import copy
import functools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.core.specs import ArraySpec
from dovetail.core.types import Episode, Labels, Purpose, View
from dovetail.episodes import _parquet_pages
from dovetail.episodes.lerobot import export, open_dataset
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.episodes.verify import verify_log, verify_spool
from dovetail.labels.queue import LabelQueue, Reason
from dovetail.labels.store import LabelStore
from dovetail.labels.verify import verify_labels
from dovetail.learn.checkpoint import load_checkpoint, save_checkpoint
from dovetail.replay.mapped import MappedReplay, MappedReplayConfig
from dovetail.replay.reader import MappedReplayReader
from dovetail.weights.store import DiskWeightStore
from support.example_labels import labels
from support.lerobot_episodes import ROBOT as LEROBOT
from support.lerobot_episodes import MemoryLog
from support.replay_model import KEYS, Model, Stopped, assert_matches_model
from support.small_episodes import after, assert_same_episode, cut_short, make_episode
from support.traceable_episodes import label, make_traceable_episode

__all__ = ["STORES", "StoreUnderTest"]


class StoreUnderTest(ABC):
    """One opened store. `operations` repeats with other names for each prefix."""

    name: ClassVar[str]
    is_rebuilt: ClassVar[bool] = False  # a cache that may be empty after a power cut
    finishes_later: ClassVar[bool] = False  # the next operation finishes a failed one that was committed

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fresh = True  # no operation was run through this object

    @abstractmethod
    def operations(self, prefix: str) -> list[str]: ...

    def run(self, operation: str) -> None:
        self.fresh = False
        what, *arguments = operation.split()
        getattr(self, f"do_{what}")(*arguments)

    @abstractmethod
    def state_after(self, done: Sequence[str]) -> Any: ...

    @abstractmethod
    def assert_state(self, state: Any) -> None: ...

    def check(self, done: list[str], pending: str | None = None) -> list[str]:
        """Return `done`, with the failed operation if it happened after all."""
        candidates = [done] if pending is None else [done, [*done, pending], *self.partly(done, pending)]
        problems = []
        for candidate in candidates:
            try:
                self.assert_state(self.state_after(candidate))
            except AssertionError as error:
                problems.append(str(error))
            else:
                return candidate
        raise AssertionError(f"after {done} and the failed {pending!r}:\n" + "\n".join(problems))

    def partly(self, done: list[str], pending: str) -> list[list[str]]:
        """Other states that a failed operation may leave, as lists of operations."""
        return []

    @property
    def is_empty(self) -> bool:
        raise NotImplementedError(f"{self.name} is not rebuilt")

    def assert_clean(self) -> None:
        """The store's own verification finds nothing."""
        return

    def close(self) -> None:
        return


@functools.cache
def small_episode(name: str) -> Episode:
    return make_episode(id=name, num_steps=4, seed=sum(name.encode()), cuts=(2,))


class Episodes(StoreUnderTest):
    name = "episodes"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log = EpisodeLog(folder / "run" / "episodes")

    def operations(self, prefix: str) -> list[str]:
        p = prefix
        return [f"commit {p}1", f"commit {p}2", f"remove {p}1", f"commit {p}3", f"commit {p}2"]

    def do_commit(self, name: str) -> None:
        self.log.commit(small_episode(name))

    def do_remove(self, name: str) -> None:
        if name in self.log.ids():  # else a failed call removed it
            self.log.remove(name)

    def state_after(self, done: Sequence[str]) -> list[str]:
        names: dict[str, None] = {}
        for operation in done:
            what, name = operation.split()
            if what == "commit":
                names.setdefault(name)
            else:
                names.pop(name, None)
        return list(names)

    def assert_state(self, state: list[str]) -> None:
        assert self.log.ids() == state
        for name in state:
            assert_same_episode(self.log.load(name), small_episode(name))

    def assert_clean(self) -> None:
        assert [one for one in verify_log(self.folder / "run" / "episodes") if not one.is_intact] == []


class SpoolJournals(StoreUnderTest):
    name = "spool"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.spool = Spool(folder / "run" / "spool")

    def operations(self, prefix: str) -> list[str]:
        p = prefix
        first = [f"begin {p}1", f"append {p}1 0", f"append {p}1 1", f"end {p}1"]
        return [*first, f"begin {p}2", f"append {p}2 0", f"end {p}2", f"acknowledge {p}1"]

    def do_begin(self, name: str) -> None:
        self.spool.begin(small_episode(name).start)

    def do_append(self, name: str, index: str) -> None:
        episode = small_episode(name)
        self.spool.append(episode.segments[int(index)], after=after(episode, int(index)))

    def do_end(self, name: str) -> None:
        self.spool.end(outcome=small_episode(name).outcome, judgement=None)

    def do_acknowledge(self, name: str) -> None:
        self.spool.acknowledge(name)

    def state_after(self, done: Sequence[str]) -> dict[str, tuple[int, bool]]:
        """Number of segments of each journal, and whether it has an end."""
        found: dict[str, tuple[int, bool]] = {}
        for operation in done:
            what, name, *_ = operation.split()
            num_segments, _ended = found.get(name, (0, False))
            if what == "acknowledge":
                found.pop(name)
            else:
                found[name] = (num_segments + (what == "append"), what == "end")
        return found

    def assert_state(self, state: dict[str, tuple[int, bool]]) -> None:
        running = self.spool.running()
        assert sorted([*running, *self.spool.pending()]) == sorted(state)
        assert self.spool.pending() == [name for name in state if name not in running]
        for name, (num_segments, ended) in state.items():
            if name in running:
                assert not ended
                continue
            loaded, whole = self.spool.load(name), small_episode(name)
            if num_segments == 0:
                assert loaded is None
                continue
            assert loaded is not None
            expected = cut_short(whole, num_segments)
            if ended and num_segments == len(whole.segments):
                expected = whole
            elif ended:
                expected = Episode(**{**vars_of(expected), "outcome": whole.outcome})
            assert_same_episode(loaded, expected)

    def assert_clean(self) -> None:
        for finding in verify_spool(self.folder / "run" / "spool"):
            # a later record may reach the disk before an earlier one: neither was acknowledged
            usual = ("no end", "as a crash leaves it", "is damaged after step")
            assert finding.is_intact or any(words in finding.problem for words in usual), finding
        assert not list((self.folder / "run" / "spool").glob(".*.new"))

    def close(self) -> None:
        self.spool.close()


def vars_of(episode: Episode) -> dict[str, Any]:
    return {name: getattr(episode, name) for name in episode.__dataclass_fields__}


class LabelLines(StoreUnderTest):
    name = "labels"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.store = LabelStore(folder / "run" / "labels")

    def operations(self, prefix: str) -> list[str]:
        p = prefix
        return [
            f"add {p}1 1 outcome",
            f"add {p}2 1 outcome",
            f"add {p}1 2 human",
            f"retract {p}1 2 human",
            f"add {p}1 3 outcome",
        ]

    def _labels(self, name: str, reward: str, labeler: str) -> Labels:
        return labels(name, reward=float(reward), labeler=labeler)

    def do_add(self, *one: str) -> None:
        self.store.add(self._labels(*one))

    def do_retract(self, *one: str) -> None:
        self.store.retract(self._labels(*one))

    def state_after(self, done: Sequence[str]) -> dict[str, list[tuple[float, str, bool]]]:
        found: dict[str, list[tuple[float, str, bool]]] = {}
        for operation in done:
            what, name, reward, labeler = operation.split()
            lines = found.setdefault(name, [])
            if what == "add":
                lines.append((float(reward), labeler, False))
            else:
                lines[lines.index((float(reward), labeler, False))] = (float(reward), labeler, True)
        return found

    def assert_state(self, state: dict[str, list[tuple[float, str, bool]]]) -> None:
        found = {
            name: [
                (float(one.labels.rewards[0]), one.labels.labeler, one.retracted)
                for one in self.store.history(name)
            ]
            for name in self.store.ids()
        }
        assert found == state

    def assert_clean(self) -> None:
        assert verify_labels(self.folder / "run" / "labels") == []


class Queue(StoreUnderTest):
    name = "label queue"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.queue = LabelQueue(folder / "run" / "queue")

    def operations(self, prefix: str) -> list[str]:
        return [f"put {prefix}1 new", f"put {prefix}2 uncertain", f"put {prefix}2 away", f"take {prefix}1"]

    def do_put(self, name: str, reason: str) -> None:
        self.queue.put(name, [Reason(reason)])

    def do_take(self, name: str) -> None:
        self.queue.done(name)

    def state_after(self, done: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for operation in done:
            what, name, *reason = operation.split()
            if what == "put":
                found[name] = reason[0]
            else:
                found.pop(name)
        return found

    def assert_state(self, state: dict[str, str]) -> None:
        assert {one.episode_id: one.reasons[0].value for one in self.queue.waiting()} == state
        assert all(not one.note for one in self.queue.waiting())


class Weights(StoreUnderTest):
    name = "weights"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.store = DiskWeightStore(folder / "run" / "weights", keep=2)

    def operations(self, prefix: str) -> list[str]:
        first = [f"publish {prefix}1", f"publish {prefix}2", "pin"]
        return [*first, f"publish {prefix}3", f"publish {prefix}4", "unpin", f"publish {prefix}5"]

    def do_publish(self, content: str) -> None:
        number = sum(content.encode())
        shared = np.full(3, number // 2, np.float32)  # two versions in a row share a component
        self.store.publish({"actor": {"w": np.full((4, 5), number, np.float32)}, "encoder": {"w": shared}})

    def do_pin(self) -> None:
        self.store.pin(max(self.store.versions()))

    def do_unpin(self) -> None:
        self.store.pin(None)

    def state_after(self, done: Sequence[str]) -> tuple[int | None, int | None]:
        """The newest and the pinned content."""
        newest: int | None = None
        pinned: int | None = None
        for operation in done:
            what, *content = operation.split()
            if what == "publish":
                newest = sum(content[0].encode())
            else:
                pinned = newest if what == "pin" else None
        return newest, pinned

    def assert_state(self, state: tuple[int | None, int | None]) -> None:
        versions, pinned = self.store.versions(), self.store.pinned()
        found = {version: self.store.load(version) for version in versions}  # whatever is listed can be loaded
        content = {version: int(one.components["actor"]["w"][0, 0]) for version, one in found.items()}
        newest = content[max(versions)] if versions else None
        assert (newest, None if pinned is None else content[pinned]) == state
        latest = self.store.latest()
        assert (None if latest is None else content[latest.version]) == (
            newest if pinned is None else content[pinned]
        )

    def assert_clean(self) -> None:
        assert len(self.store.versions()) <= 2 + (self.store.pinned() is not None)
        used = {digest for version in self.store.versions() for digest in self.store.hashes(version).values()}
        components = self.folder / "run" / "weights" / "components"
        assert {path.stem for path in components.iterdir()} == used


class Checkpoint(StoreUnderTest):
    name = "checkpoints"

    def operations(self, prefix: str) -> list[str]:
        return [f"save {prefix}{number}" for number in (1, 2, 3)]

    def do_save(self, content: str) -> None:
        state = {"w": np.full(100, sum(content.encode()), np.float32)}
        save_checkpoint(self._path(), state, facts={"content": content})

    def _path(self) -> Path:
        return self.folder / "run" / "checkpoints" / "last"

    def state_after(self, done: Sequence[str]) -> str | None:
        return done[-1].split()[1] if done else None

    def assert_state(self, state: str | None) -> None:
        if state is None:
            assert not (self._path() / "manifest.json").exists()
            return
        saved, facts = load_checkpoint(self._path())
        assert facts == {"content": state}
        assert (saved["w"] == sum(state.encode())).all()

    def assert_clean(self) -> None:
        assert len(list(self._path().iterdir())) == 2


class Replay(StoreUnderTest):
    """Demonstrations are kept, so that an eviction moves them."""

    name = "replay"
    is_rebuilt = True
    _CAPACITY = 24

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        config = MappedReplayConfig(capacity_rows=self._CAPACITY)
        self.replay = MappedReplay(config, folder=folder / "run" / "replay", keys=KEYS)
        self.reset_reason = self.replay.open()

    @property
    def is_empty(self) -> bool:
        return self.reset_reason is not None or not self.replay.ids()

    def operations(self, prefix: str) -> list[str]:
        base = 10 * (ord(prefix) - ord("a") + 1)
        demo, one, two, three = (f"{base + number}" for number in range(4))
        return [
            f"add {demo}d 0",
            f"add {one} 0",
            f"relabel {one} 3",
            f"extend {two} 0",
            f"extend {two} 1",
            f"add {two} 1",
            f"drop {one}",
            f"add {three} 0",  # evicts the oldest
            f"drop {demo}d",
        ]

    @staticmethod
    @functools.cache
    def _episode(name: str) -> Episode:
        purpose = Purpose.DEMO if name.endswith("d") else Purpose.ONLINE
        number = int(name.removesuffix("d"))
        return make_traceable_episode(
            number, 5 + number % 3, id=f"e{name}", cuts=(2, 4), human=(1,), versions=number % 4, purpose=purpose
        )

    @staticmethod
    def _apply(to: Any, operation: str) -> None:
        what, name, *number = operation.split()
        episode = Replay._episode(name)
        if what == "add":
            to.add(episode, label(episode, reward=float(number[0])))
        elif what == "relabel":
            to.relabel(label(episode, reward=float(number[0])))
        elif what == "drop":
            to.drop(episode.id)
        elif isinstance(to, Model):
            to.extend(episode.start, episode.segments[int(number[0])], episode)
        else:
            to.extend(episode.start, episode.segments[int(number[0])])

    def run(self, operation: str) -> None:
        self.fresh = False
        self._apply(self.replay, operation)

    def state_after(self, done: Sequence[str]) -> Model:
        return copy.deepcopy(self._model(tuple(done)))

    @staticmethod
    @functools.cache
    def _model(done: tuple[str, ...]) -> Model:
        if not done or done[-1] == "power cut":
            return Model(Replay._CAPACITY, keep_demos=True)
        model = copy.deepcopy(Replay._model(done[:-1]))
        if done[-1].startswith("evict for "):
            model.only_evict = True
            with suppress(Stopped):
                Replay._apply(model, done[-1].removeprefix("evict for "))
            model.only_evict = False
        else:
            Replay._apply(model, done[-1])
        return model

    def partly(self, done: list[str], pending: str) -> list[list[str]]:
        return [[*done, f"evict for {pending}"]] if pending.split()[0] in ("add", "extend") else []

    def assert_state(self, state: Model) -> None:
        assert self.replay.ids() == state.ids()
        views = (View(), View(part="demo"), View(part="accepted"))
        for reader in (self.replay, MappedReplayReader(self.folder / "run" / "replay")):
            assert_matches_model(reader, state, views=views)
        for name in {record.id for record in state.records}:
            assert self.replay.was_added(name) == (name in state.whole)

    def close(self) -> None:
        self.replay.close()


# Equal files are read thousands of times, and parsing their footers would take three quarters of the time of an export.
_parquet_pages._parse_footer = functools.lru_cache(maxsize=512)(_parquet_pages._parse_footer)


class Export(StoreUnderTest):
    name = "export"
    finishes_later = True
    _ROBOT = LEROBOT.__class__(
        **{
            **{
                name: getattr(LEROBOT, name)
                for name in ("name", "embodiment", "action", "action_kind", "control_hz")
            },
            "observation": {
                "joint_pos": ArraySpec(shape=(3,)),
                "camera": ArraySpec(shape=(16, 16, 3), dtype="uint8"),
            },
        }
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.out = folder / "out" / "dataset"

    def operations(self, prefix: str) -> list[str]:
        base = 10 * (ord(prefix) - ord("a") + 1)
        return [f"export {base}", f"export {base} {base + 1}"]

    def do_export(self, *numbers: str) -> None:
        export(self._log([int(number) for number in numbers]), self.out, codec="h264")

    def _log(self, numbers: Sequence[int]) -> MemoryLog:
        return MemoryLog(numbers, robot=self._ROBOT, num_steps=2)

    def state_after(self, done: Sequence[str]) -> list[int]:
        return list(dict.fromkeys(int(number) for one in done for number in one.split()[1:]))

    def assert_state(self, state: list[int]) -> None:
        """Read the files directly, because Dovetail's reader takes half a second."""
        info = self.out / "meta" / "info.json"
        num_episodes = json.loads(info.read_bytes())["total_episodes"] if info.exists() else 0
        files = sorted((self.out / "meta" / "episodes").rglob("*.parquet"))
        columns = ["dovetail/id", "data/file_index"]
        rows = [row for path in files for row in _table(path, columns).to_pylist()][:num_episodes]
        log = self._log(state)
        assert [row["dovetail/id"] for row in rows] == log.ids()
        for number in {row["data/file_index"] for row in rows}:
            names = [row["dovetail/id"] for row in rows if row["data/file_index"] == number]
            actions = _table(self.out / f"data/chunk-000/file-{number:03d}.parquet", ["action"])["action"]
            expected = np.concatenate([log.episode(name).column("executed") for name in names])
            np.testing.assert_array_equal(np.stack(actions.to_numpy()), expected)
            video = self.out / f"videos/observation.images.camera/chunk-000/file-{number:03d}.mp4"
            with av.open(str(video)) as container:
                assert sum(1 for _ in container.decode(video=0)) == 3 * len(names)

    def assert_clean(self) -> None:
        assert not (self.out / ".export").exists()
        dataset = open_dataset(self.out)
        assert [episode.id for episode in dataset.episodes()] == [
            dataset.episode_id(i) for i in range(len(dataset))
        ]


def _table(path: Path, columns: list[str]) -> pa.Table:
    """Read from memory: Arrow would close the file some time later, which looks like a file that the export left open."""
    return pq.read_table(pa.BufferReader(path.read_bytes()), columns=columns)


STORES: dict[str, type[StoreUnderTest]] = {
    one.name: one for one in (Episodes, SpoolJournals, LabelLines, Queue, Weights, Checkpoint, Replay, Export)
}


def open_descriptors(folder: Path) -> list[str]:
    """Files below a folder that this process still has open."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{entry}")
            if path.startswith(str(folder)):
                found.append(path)
    return found
