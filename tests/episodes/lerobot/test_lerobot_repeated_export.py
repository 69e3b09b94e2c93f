"""Repeated exports add only new episodes; a kill at any time leaves a valid dataset."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dovetail.core.errors import SpecMismatch, StoreError, UsageError
from dovetail.core.specs import ArraySpec
from dovetail.episodes.lerobot import FileSizes, _commit, export, open_dataset
from support import TESTS
from support.lerobot_episodes import ROBOT, MemoryLog, StreamingLog

CHILD = """
import sys
sys.path.insert(0, sys.argv[2])
from support.lerobot_episodes import StreamingLog
from dovetail.episodes.lerobot import FileSizes, export
print("ready", flush=True)
export(StreamingLog(range(int(sys.argv[3]))), sys.argv[1], sizes=FileSizes(data_mb=0.02))
"""


def snapshot(root: Path) -> dict[str, tuple[str, int]]:
    """Content and time of every file."""
    return {
        str(path.relative_to(root)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def whole(root: Path, log: MemoryLog) -> None:
    """Every episode once, in place, and every table agreeing with the others."""
    info = json.loads((root / "meta/info.json").read_bytes())
    episodes = list(open_dataset(root).episodes())
    assert [episode.id for episode in episodes] == log.ids()[: len(episodes)]
    assert info["total_episodes"] == len(episodes)
    for episode in episodes:
        before = log.episode(episode.id)
        assert episode.column("executed").tobytes() == before.column("executed").tobytes()
        error = episode.column("observation/wrist").astype(int) - before.column("observation/wrist")
        assert np.abs(error).mean() < 4
    frames = [i for p in sorted(root.glob("data/*/*.parquet")) for i in pq.read_table(p)["index"].to_pylist()]
    assert frames[: info["total_frames"]] == list(range(info["total_frames"]))
    stats = json.loads((root / "meta/stats.json").read_bytes())
    assert stats["index"]["count"][0] >= info["total_frames"]


def test_second_export_adds_new_episodes_only(tmp_path: Path) -> None:
    root = tmp_path / "out"
    log = StreamingLog(range(6))
    export(log, root, ids=log.ids()[:2])
    for count in (4, 6):
        before = snapshot(root)
        report = export(log, root, ids=log.ids()[:count])
        after = snapshot(root)
        assert report.exported == tuple(log.ids()[count - 2 : count])
        for name, was in before.items():
            replaced = name in ("meta/info.json", "meta/stats.json", "meta/tasks.parquet", "dovetail/dataset.json")
            assert replaced or after[name] == was, f"{name} was touched"
        whole(root, log)
    assert len(list(root.glob("data/*/*.parquet"))) == 3


def test_export_without_new_episodes_changes_no_file(tmp_path: Path) -> None:
    log = StreamingLog(range(2))
    export(log, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    report = export(log, tmp_path / "out")
    assert (report.exported, report.already_there) == ((), tuple(log.ids()))
    assert snapshot(tmp_path / "out") == before


class _KilledError(BaseException):
    pass


@pytest.mark.extended
def test_kill_before_each_move_leaves_valid_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill at each step of a commit the dataset is readable, and the next export continues."""
    log = StreamingLog(range(4))
    move, done = os.replace, False
    for survive in range(100):
        root = tmp_path / str(survive)
        export(log, root, ids=log.ids()[:2])
        moves = iter(range(100))

        def dying(source: Any, target: Any, moves: Any = moves, survive: int = survive) -> None:
            if next(moves) == survive:
                raise _KilledError
            move(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(_commit.os, "replace", dying)
            patch.setattr(_commit.Staging, "close", lambda _: None)  # a killed process tidies nothing up
            try:
                export(log, root)
                done = True
            except _KilledError:
                pass
        assert len(open_dataset(root)) == (4 if done else 2)
        whole(root, log)
        report = export(log, root)
        assert report.exported == (), "what had been decided was finished, not made again"
        assert len(open_dataset(root)) == 4
        whole(root, log)
        assert not (root / _commit.SCRATCH).exists()
        if done:
            break
    assert survive == 9, "every file that was moved"


def kill_an_export(root: Path, log: MemoryLog, *, after_s: float) -> None:
    """After kill -9 the dataset must be valid."""
    command = [sys.executable, "-c", CHILD, str(root), str(TESTS), str(len(log.ids()))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the export died by itself"
        time.sleep(after_s)
        process.kill()
    if (root / "meta/info.json").exists():
        whole(root, log)


def finish(root: Path, log: MemoryLog) -> None:
    before = snapshot(root) if root.exists() else {}
    export(log, root)
    whole(root, log)
    assert len(open_dataset(root)) == len(log.ids())
    assert not list(root.glob(".*"))
    kept = [name for name in before if name.startswith(("data/", "videos/"))]
    assert all(snapshot(root)[name] == before[name] for name in kept)


@pytest.mark.extended
def test_kill_at_random_times_leaves_valid_dataset(tmp_path: Path) -> None:
    log = StreamingLog(range(12))
    dice = random.Random()
    for _ in range(6):
        kill_an_export(tmp_path / "out", log, after_s=dice.uniform(0.0, 0.5))
    finish(tmp_path / "out", log)


@pytest.mark.slow
def test_hundred_kills_leave_valid_dataset(tmp_path: Path) -> None:
    log = StreamingLog(range(40))
    dice = random.Random()
    for number in range(100):
        root = tmp_path / str(number // 10)  # ten kills in a row of one export
        kill_an_export(root, log, after_s=dice.uniform(0.0, 0.4))
        if number % 10 == 9:
            finish(root, log)


def test_full_disk_leaves_dataset_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "out"
    log = StreamingLog(range(2))
    export(log, root, ids=log.ids()[:1])
    before = snapshot(root)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(_commit, "_fsync", full)
        with pytest.raises(StoreError, match=r"cannot write to .*: No space left on device"):
            export(log, root)
    assert snapshot(root) == before
    export(log, root)
    whole(root, log)


def test_damaged_episode_stops_export_without_trace(tmp_path: Path) -> None:
    class Damaged(StreamingLog):
        def frames(self, episode_id: str, camera: str) -> Any:
            frames = super().frames(episode_id, camera)
            return list(frames)[:-1] if camera == "wrist" else frames

    with pytest.raises(StoreError, match="has 6 frames of 'wrist', expected 7"):
        export(Damaged([0]), tmp_path / "out")
    assert not (tmp_path / "out").exists()

    class Odd(StreamingLog):
        def load(self, episode_id: str, *, images: bool = True) -> Any:
            episode = super().load(episode_id, images=images)
            del episode.segments[0].columns["observation/gripper"]
            return episode

    with pytest.raises(StoreError, match=r"observation 'gripper' is missing, but its spec says float32\[1\]"):
        export(Odd([0]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_concurrent_export_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "out"
    export(StreamingLog([0]), root)
    descriptor = os.open(root, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another export is writing to"):
        export(StreamingLog([0, 1]), root)
    os.close(descriptor)
    assert len(export(StreamingLog([0, 1]), root).exported) == 1


def test_unsuitable_folders_are_refused(tmp_path: Path) -> None:
    log = StreamingLog([0])
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.tex").write_text("")
    with pytest.raises(
        UsageError, match=r"not a LeRobot dataset \(it contains thesis\.tex\)\. Choose an empty folder"
    ):
        export(log, strange)
    with pytest.raises(UsageError, match="is a file"):
        export(log, strange / "thesis.tex")
    root = tmp_path / "out"
    export(log, root)
    before = snapshot(root)
    wider = replace(ROBOT, action=ArraySpec(shape=(3,)))
    with pytest.raises(
        SpecMismatch, match=r"action: stored data of robot 'panda-1' has float32\[2\], but .* float32\[3\]"
    ):
        export(StreamingLog([1], robot=wider), root)
    with pytest.raises(SpecMismatch, match="recorded at 20 Hz, but the dataset is of robot 'panda-1' at 10 Hz"):
        export(StreamingLog([1], robot=replace(ROBOT, control_hz=20.0)), root)
    with pytest.raises(UsageError, match=r"has codec av1, not h264\. Use codec av1"):
        export(log, root, codec="h264")
    with pytest.raises(UsageError, match=r"there is no codec 'vp9'\. Choose one of av1, h264"):
        export(log, tmp_path / "other", codec="vp9")
    with pytest.raises(UsageError, match="has fps 10, not 5"):
        export(log, root, fps=5)
    assert snapshot(root) == before
    (root / "dovetail/dataset.json").unlink()
    with pytest.raises(UsageError, match="a dataset that Dovetail did not export"):
        export(log, root)
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps({**info, "codebase_version": "v2.1"}))
    with pytest.raises(UsageError, match=r"of v2\.1, but Dovetail exports v3\.0\. Choose another folder"):
        export(log, root)


@pytest.mark.parametrize("state", [["\0"], [["joint_pos"]], ["camera2"]])
def test_layout_that_names_unknown_observations_is_refused(tmp_path: Path, state: object) -> None:
    export(StreamingLog([1]), root := tmp_path / "data")
    file = root / "dovetail/dataset.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": state}))
    with pytest.raises(StoreError, match=r"dataset\.json cannot be read"):
        open_dataset(root)


def test_different_robots_are_refused_before_writing(tmp_path: Path) -> None:
    class Two(StreamingLog):
        def episode(self, episode_id: str) -> Any:
            episode = super().episode(episode_id)
            other = replace(ROBOT, action_kind="joint_target")
            return replace(episode, robot=other) if episode_id == self.ids()[1] else episode

    with pytest.raises(SpecMismatch, match=r"cannot share a dataset: .* ee_delta actions, but .* joint_target"):
        export(Two([0, 1]), tmp_path / "out", sizes=FileSizes())
    assert not (tmp_path / "out").exists()
