"""One small test for each defect that the failing calls, the power cuts and the fuzzing have found."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.core import disk
from dovetail.core.disk import dump_json
from dovetail.core.errors import StoreError
from dovetail.core.types import Outcome, View
from dovetail.episodes import _order
from dovetail.episodes import spool as spool_module
from dovetail.episodes.lerobot import _video, export
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.episodes.verify import verify_spool
from dovetail.labels._label_file import encode
from dovetail.labels.queue import LabelQueue, Reason
from dovetail.labels.store import LabelStore
from dovetail.labels.verify import verify_labels
from dovetail.learn.checkpoint import load_checkpoint, save_checkpoint
from dovetail.processes.array_channel import ArrayChannel
from dovetail.processes.channel import Channel, ChannelClosed
from dovetail.replay._added_ids import AddedIds
from dovetail.replay._rings import Ring
from dovetail.replay.mapped import MappedReplay, MappedReplayConfig
from dovetail.replay.reader import MappedReplayReader
from dovetail.weights.store import DiskWeightStore
from support.example_labels import assert_same_labels, labels
from support.faults.stores import open_descriptors
from support.lerobot_episodes import MemoryLog
from support.small_episodes import after, make_episode
from support.traceable_episodes import label, make_traceable_episode


def broken(*arguments: object, **more: object) -> Any:
    raise OSError(errno.EIO, "Input/output error")


def fails_once(work: Callable[..., Any], *, when: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    failures = iter([True])

    def call(*arguments: Any, **more: Any) -> Any:
        if when(*arguments) and next(failures, False):
            return broken()
        return work(*arguments, **more)

    return call


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files and folders that were synced."""
    found: list[str] = []
    fsync = os.fsync

    def remember(descriptor: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", remember)
    return found


# ---- folders and names


def test_new_store_syncs_every_folder_that_it_made(tmp_path: Path, synced: list[str]) -> None:
    with disk.writer(tmp_path / "run" / "a" / "b"):
        pass
    assert {tmp_path.name, "run", "a"} <= set(synced)


def test_repeated_call_syncs_a_folder_whose_fsync_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    monkeypatch.setattr(
        disk, "fsync_folder", fails_once(disk.fsync_folder, when=lambda folder: folder.name == "run")
    )
    with pytest.raises(StoreError), disk.writer(tmp_path / "run" / "labels"):
        pass
    assert (tmp_path / "run" / "labels").is_dir()
    with disk.writer(tmp_path / "run" / "labels"):
        assert "run" in synced


def test_order_file_has_a_durable_name_before_its_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_order, "fsync_folder", broken)
    with pytest.raises(OSError, match="Input/output"):
        _order.append(tmp_path, _order.line(1, "e1"))
    assert (tmp_path / ".order").read_bytes() == b""  # so the next call tries again


def test_failure_to_clean_up_does_not_fail_a_finished_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk.writer(tmp_path) as temporary:
        (temporary / "leftover").write_bytes(b"")
        monkeypatch.setattr(os, "unlink", broken)
    monkeypatch.undo()
    with disk.writer(tmp_path) as temporary:
        assert list(temporary.iterdir()) == []


# ---- spool


def test_begin_can_be_repeated_after_a_failed_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, episode = Spool(tmp_path), make_episode()
    monkeypatch.setattr(spool_module, "fsync_folder", fails_once(spool_module.fsync_folder))
    with pytest.raises(StoreError):
        spool.begin(episode.start)
    assert open_descriptors(tmp_path) == []
    assert spool.running() == []
    spool.begin(episode.start)
    assert spool.running() == ["e1"]
    spool.close()


def test_begin_replaces_a_journal_without_steps(tmp_path: Path) -> None:
    killed, spool = Spool(tmp_path), Spool(tmp_path)
    killed.begin(make_episode().start)
    killed.close()
    spool.begin(make_episode().start)
    spool.close()


def test_bytes_of_a_failed_append_do_not_follow_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, episode = Spool(tmp_path), make_episode(cuts=(2,))
    spool.begin(episode.start)
    spool.append(episode.segments[0], after=after(episode, 0))
    monkeypatch.setattr(os, "fdatasync", broken)
    monkeypatch.setattr(os, "ftruncate", broken)
    with pytest.raises(StoreError):
        spool.append(episode.segments[1], after=after(episode, 1))
    monkeypatch.undo()
    spool.end(outcome=Outcome.SUCCESS, judgement=None)
    assert [finding.is_intact for finding in verify_spool(tmp_path)] == [True]


# ---- labels


def test_repeated_add_syncs_a_line_whose_fsync_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    store = LabelStore(tmp_path)
    store.add(labels())
    remember = os.fsync
    monkeypatch.setattr(
        os, "fsync", fails_once(remember, when=lambda fd: "jsonl" in os.readlink(f"/proc/self/fd/{fd}"))
    )
    with pytest.raises(StoreError):
        store.add(labels(reward=0.5))
    synced.clear()
    store.add(labels(reward=0.5))
    assert "labels.jsonl" in synced
    assert len(store.history("e1")) == 2


def test_zeros_after_the_last_line_are_not_damage(tmp_path: Path) -> None:
    """A power cut loses data that was not synced, but not always the size of the file."""
    LabelStore(tmp_path).add(labels())
    path = tmp_path / "labels.jsonl"
    unsynced = encode(labels("e2"), added_unix_ns=0)
    path.write_bytes(path.read_bytes().rstrip(b"\n") + bytes(7) + unsynced)
    store = LabelStore(tmp_path)
    for _ in range(2):
        assert_same_labels(store.current("e1"), labels())
    assert verify_labels(tmp_path) == []
    store.add(labels("e2"))
    assert LabelStore(tmp_path).ids() == ["e1", "e2"]


def test_zeros_in_place_of_committed_lines_are_damage(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    store.add(labels())
    first = (tmp_path / "labels.jsonl").read_bytes()
    store.add(labels("e2"))
    size = (tmp_path / "labels.jsonl").stat().st_size
    (tmp_path / "labels.jsonl").write_bytes(first.rstrip(b"\n").ljust(size, b"\0"))
    assert len(verify_labels(tmp_path)) == 1
    with pytest.raises(StoreError, match="is damaged"):
        LabelStore(tmp_path).ids()


@pytest.mark.parametrize(
    "change", [{"episode_id": ["e1"]}, {"note": 5}, {"since_unix_ns": "x"}, {"opinions": [{}]}]
)
def test_queue_entry_with_other_types_still_waits(tmp_path: Path, change: dict[str, Any]) -> None:
    queue = LabelQueue(tmp_path)
    queue.put("e1", [Reason.UNCERTAIN])
    good = {"episode_id": "e1", "reasons": ["new"], "opinions": [], "note": "", "since_unix_ns": 5}
    (tmp_path / "e1.json").write_bytes(dump_json({**good, **change}))
    assert [(one.episode_id, one.note) for one in queue.waiting()] == [("e1", "the file of this entry is damaged")]


# ---- weights and checkpoints


def test_failed_pruning_does_not_fail_a_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskWeightStore(tmp_path, keep=1)
    store.publish({"actor": {"w": np.ones(2)}})
    monkeypatch.setattr(Path, "unlink", broken)
    assert store.publish({"actor": {"w": np.zeros(2)}}) == 2
    monkeypatch.undo()
    assert store.publish({"actor": {"w": np.ones(3)}}) == 3
    assert store.versions() == [3]


def test_failed_read_while_pruning_does_not_fail_a_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskWeightStore(tmp_path, keep=1)
    store.publish({"actor": {"w": np.ones(2)}})

    def unreadable(*arguments: object) -> Any:
        raise StoreError("cannot read pin.json: Input/output error")

    monkeypatch.setattr(store, "pinned", unreadable)
    assert store.publish({"actor": {"w": np.zeros(2)}}) == 2


def test_unreadable_folder_raises_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", broken)
    monkeypatch.setattr(os, "scandir", broken)
    for read in (DiskWeightStore(tmp_path).versions, EpisodeLog(tmp_path).ids):
        with pytest.raises(StoreError, match=r"cannot read .*Input/output error"):
            read()


def test_failed_search_for_old_checkpoints_does_not_fail_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, {"w": np.ones(2)}, facts={"n": 1})
    glob = Path.glob
    monkeypatch.setattr(
        Path, "glob", lambda path, pattern: broken() if pattern.startswith("state") else glob(path, pattern)
    )
    save_checkpoint(tmp_path, {"w": np.zeros(2)}, facts={"n": 2})
    assert load_checkpoint(tmp_path)[1] == {"n": 2}


def test_component_of_another_process_is_synced_before_its_manifest(tmp_path: Path, synced: list[str]) -> None:
    DiskWeightStore(tmp_path).publish({"actor": {"w": np.ones(2)}})
    synced.clear()
    DiskWeightStore(tmp_path).publish({"actor": {"w": np.ones(2)}})
    assert "components" in synced


def test_manifest_without_components_is_one_line(tmp_path: Path) -> None:
    store = DiskWeightStore(tmp_path)
    store.publish({"actor": {"w": np.ones(2)}})
    path = tmp_path / "v00000001.json"
    path.write_bytes(dump_json({"schema": 1, "version": "1\n2"}, indent=1))
    with pytest.raises(StoreError) as refused:
        store.hashes(1)
    assert "\n" not in str(refused.value)


def test_failed_checkpoint_raises_store_error_and_keeps_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path / "last", {"w": np.ones(2)}, facts={"n": 1})
    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(StoreError, match="cannot write checkpoint"):
        save_checkpoint(tmp_path / "last", {"w": np.zeros(2)}, facts={"n": 2})
    monkeypatch.undo()
    assert load_checkpoint(tmp_path / "last")[1] == {"n": 1}


def test_checkpoint_folder_is_durable(tmp_path: Path, synced: list[str]) -> None:
    save_checkpoint(tmp_path / "checkpoints" / "last", {"w": np.ones(2)}, facts={})
    assert {tmp_path.name, "checkpoints", "last"} <= set(synced)


# ---- replay


def open_replay(folder: Path) -> MappedReplay:
    return MappedReplay(MappedReplayConfig(capacity_rows=20), folder=folder, keys=("state",))


def test_next_call_finishes_a_publication_that_a_failed_write_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_replay(tmp_path)) as replay:
        episode = make_traceable_episode(1, 5)
        replay.add(episode, label(episode))
        monkeypatch.setattr(Ring, "_put", _put_fails_on_rewards(Ring._put))
        with pytest.raises(StoreError):
            replay.relabel(label(episode, reward=3.0))
        monkeypatch.undo()
        assert replay.ids() == ["e1"]
        out = {"reward": np.zeros(200, np.float32)}
        replay.sample(out, view=View(), rng=np.random.default_rng(0))
        assert set(out["reward"]) == {3.0, 4.0}
    with closing(open_replay(tmp_path)) as replay:
        assert replay.open() is None


def _put_fails_on_rewards(put: Callable[..., None]) -> Callable[..., None]:
    def fail(ring: Ring, *rest: Any) -> None:
        if "reward" in str(ring._path):
            raise StoreError("cannot write")
        put(ring, *rest)

    return fail


def test_short_write_of_added_ids_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, place: pwrite(fd, bytes(data)[:5], place))
    ids = AddedIds(tmp_path / "seen.bin")
    assert ids.add("e1") == 1
    again = AddedIds(tmp_path / "seen.bin")
    again.load(1)
    assert "e1" in again


def test_failed_close_releases_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = open_replay(tmp_path)
    episode = make_traceable_episode(1, 5)
    replay.add(episode, label(episode))
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoreError):
        replay.close()
    monkeypatch.undo()
    with closing(open_replay(tmp_path)) as other:
        assert other.ids() == ["e1"]


def test_reader_refuses_damaged_counters_without_allocating(tmp_path: Path) -> None:
    with closing(open_replay(tmp_path)) as replay:
        episode = make_traceable_episode(1, 5)
        replay.add(episode, label(episode))
        assert replay._files is not None
        replay._files.counters["head_span"] = 2**40
        with pytest.raises(StoreError, match="counters of the replay are damaged"):
            MappedReplayReader(tmp_path).size(View())
        replay._files.counters["head_span"] = 1


# ---- export and messages


def test_export_that_cannot_open_its_video_closes_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_video, "start_encoding", broken)
    with pytest.raises(StoreError, match="cannot write to"):
        export(MemoryLog([1]), tmp_path / "out", codec="h264")
    assert open_descriptors(tmp_path) == []
    monkeypatch.undo()
    assert export(MemoryLog([1]), tmp_path / "out", codec="h264").num_episodes == 1


@pytest.mark.parametrize("data", [b"\0\0\0\4nope", b"\0\0\0\2[]", b"\0\0\0\2\xff\xff"])
def test_message_that_is_not_an_object_closes_the_channel(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        with pytest.raises(ChannelClosed):
            Channel(theirs).receive()


def test_huge_length_of_an_array_message_allocates_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\0\0\0\2" + b"\x7f" + b"\xff" * 7 + b"{}")
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(ChannelClosed):
            ArrayChannel(theirs).receive()
