"""A really full disk: a clear error, intact data, and normal operation after space is freed.

A tmpfs of 2 MB where one may be mounted; elsewhere a limit on the size of files, at which a write fails as well.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.errors import StoreError
from dovetail.core.types import Array, Episode, Outcome
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.episodes.verify import verify_log, verify_spool
from support.small_episodes import after, assert_same_episode, cut_short, make_episode, record

SIZE = 2 << 20


@dataclass(frozen=True, slots=True)
class Disk:
    folder: Path
    reason: str  # that the system gives
    full: Callable[[int], contextlib.AbstractContextManager[None]]  # leaves so many bytes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        yield Disk(folder, "(?i)file too large", _limited)
        return
    try:
        yield Disk(folder, "(?i)no space left", lambda room: _filled(folder, room))
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def _filled(folder: Path, room: int) -> Iterator[None]:
    """Something else takes the space, all but some pages of it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    with ballast.open("r+b") as file:
        file.truncate(max(0, ballast.stat().st_size - room))
    try:
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def _limited(room: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(room, 1), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def noise(num_frames: int, side: int) -> Array:
    """Nothing that a codec could make smaller."""
    return np.random.default_rng(0).integers(0, 256, (num_frames, side, side, 3), np.uint8)


def big(name: str) -> Episode:
    return make_episode(id=name, num_steps=10, pictures=noise(11, 64), cuts=(2, 4, 6, 8))


def check_one_line(error: pytest.ExceptionInfo[StoreError], folder: Path) -> None:
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("room", [0, 4096, 8192, 20_000, 40_000])
def test_commit_on_full_disk_leaves_log_unchanged(disk: Disk, room: int) -> None:
    folder = disk.folder / "episodes"
    log = EpisodeLog(folder)
    log.commit(make_episode(id="before"))
    with disk.full(room):
        with pytest.raises(StoreError, match=disk.reason) as error:
            log.commit(big("new"))
        check_one_line(error, folder)
        assert log.ids() == ["before"]
        assert list((folder / ".tmp").iterdir()) == []
        assert_same_episode(log.load("before"), make_episode(id="before"))
        assert [finding.is_intact for finding in verify_log(folder)] == [True]
    log.commit(big("new"))
    assert_same_episode(log.load("new"), big("new"))
    assert [finding.is_intact for finding in verify_log(folder)] == [True, True]


def test_commit_of_lossy_video_on_full_disk_leaves_log_unchanged(disk: Disk) -> None:
    log = EpisodeLog(disk.folder / "episodes")
    episode = make_episode(num_steps=10, pictures=noise(11, 130))  # over the size up to which images are exact
    with disk.full(8192):
        with pytest.raises(StoreError, match=disk.reason) as error:
            log.commit(episode)
        check_one_line(error, disk.folder / "episodes")
    log.commit(episode)
    assert log.manifest("e1").images["camera/wrist"].codec == "h264"


@pytest.mark.parametrize("room", [0, 4096, 12_000])
def test_failed_append_can_be_repeated(disk: Disk, room: int) -> None:
    folder = disk.folder / "spool"
    spool, episode = Spool(folder), big("e1")
    record(spool, episode, num_segments=1, end=False)
    size = (folder / "e1.journal").stat().st_size
    with disk.full(room):
        for _ in range(2):  # it may be tried as often as one likes
            with pytest.raises(StoreError, match=disk.reason) as error:
                spool.append(episode.segments[1], after=after(episode, 1))
            check_one_line(error, folder)
            assert (folder / "e1.journal").stat().st_size == size  # no half a record is left
    for index, segment in enumerate(episode.segments[1:], start=1):
        spool.append(segment, after=after(episode, index))
    spool.end(outcome=episode.outcome, judgement=None)
    loaded = spool.load("e1")
    assert loaded is not None
    assert_same_episode(loaded, episode)
    assert [finding.is_intact for finding in verify_spool(folder)] == [True]


def test_episode_is_aborted_if_disk_stays_full(disk: Disk) -> None:
    """The disk stays full: the durable part is loaded as aborted."""
    spool, episode = Spool(disk.folder / "spool"), big("e1")
    record(spool, episode, num_segments=2, end=False)
    with disk.full(0):
        with pytest.raises(StoreError, match=disk.reason):
            spool.append(episode.segments[2], after=after(episode, 2))
        spool.close()
    loaded = Spool(disk.folder / "spool").load("e1")
    assert loaded is not None
    assert_same_episode(loaded, cut_short(episode, 2))


def test_failed_begin_leaves_no_file(disk: Disk) -> None:
    folder = disk.folder / "spool"
    spool = Spool(folder)
    record(spool, make_episode(id="before"))
    with disk.full(0):
        with pytest.raises(StoreError, match=disk.reason) as error:
            spool.begin(make_episode().start)
        check_one_line(error, folder)
        assert [path.name for path in folder.iterdir()] == ["before.journal"]
    record(spool, make_episode())
    assert spool.pending() == ["before", "e1"]


def test_failed_end_can_be_repeated(tmp_path: Path) -> None:
    spool, episode = Spool(tmp_path), make_episode(cuts=(1,))
    record(spool, episode, end=False)
    with _limited((tmp_path / "e1.journal").stat().st_size + 30):  # the header fits, the rest does not
        with pytest.raises(StoreError, match=r"file too large. Earlier records are kept"):
            spool.end(outcome=Outcome.SUCCESS, judgement=None)
        assert spool.pending() == []
    spool.end(outcome=Outcome.SUCCESS, judgement=None)
    loaded = spool.load("e1")
    assert loaded is not None
    assert_same_episode(loaded, episode)
