"""The order of commits after clock jumps and crashes."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Episode
from dovetail.episodes import _order
from dovetail.episodes.ids import new_episode_id
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.verify import repair, verify_log

Make = Callable[..., Episode]
IDS = ["20270101-x", "20250101-x", "20260101-x"]


@pytest.fixture
def log(tmp_path: Path, make_episode: Make) -> EpisodeLog:
    log = EpisodeLog(tmp_path)
    for name in IDS:
        log.commit(make_episode(id=name, num_steps=1))
    return log


def test_clock_jump_does_not_change_order(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    moments = [2_000_000_000, 1_000_000_000, 1_500_000_000, 1_500_000_000]
    ids = [new_episode_id(unix_ns=second * 10**9, robot="panda") for second in moments]
    for name in ids:
        log.commit(make_episode(id=name, num_steps=1))
    assert log.ids() == ids
    assert EpisodeLog(tmp_path).ids() == ids
    assert [log.manifest(name).number for name in ids] == [1, 2, 3, 4]


def test_committing_again_keeps_order(log: EpisodeLog, tmp_path: Path, make_episode: Make) -> None:
    before = (tmp_path / ".order").read_bytes()
    log.commit(make_episode(id=IDS[0], num_steps=1))
    assert log.ids() == IDS
    assert (tmp_path / ".order").read_bytes() == before


def test_kill_between_rename_and_order_line_is_recovered(
    log: EpisodeLog, tmp_path: Path, make_episode: Make
) -> None:
    lines = (tmp_path / ".order").read_bytes().splitlines(keepends=True)
    (tmp_path / ".order").write_bytes(lines[0])
    assert log.ids() == [IDS[0], *sorted(IDS[1:])]  # what has no line comes last, sorted
    log.commit(make_episode(id="00-new", num_steps=1))
    assert log.ids() == [*IDS, "00-new"]  # and gets the number that it was written with
    assert [finding.is_intact for finding in verify_log(tmp_path)] == [True] * 4


def test_failed_order_line_is_added_by_next_commit(
    log: EpisodeLog, tmp_path: Path, make_episode: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller sees an error and commits again; the episode is already stored."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_order, "append", full)
        with pytest.raises(StoreError, match="No space left"):
            log.commit(make_episode(id="00-new", num_steps=1))
    log.commit(make_episode(id="00-new", num_steps=1))
    assert log.ids() == [*IDS, "00-new"]
    assert [finding.is_intact for finding in verify_log(tmp_path)] == [True] * 4


@pytest.mark.parametrize("lost", range(1, 30, 4))
def test_incomplete_order_line_is_ignored(log: EpisodeLog, tmp_path: Path, make_episode: Make, lost: int) -> None:
    os.truncate(tmp_path / ".order", (tmp_path / ".order").stat().st_size - lost)
    assert log.ids() == IDS
    log.commit(make_episode(id="00-new", num_steps=1))
    assert log.ids() == [*IDS, "00-new"]
    assert (tmp_path / ".order").read_bytes().count(b"\n") == 4


def test_damaged_order_lines_are_ignored_and_rebuilt(log: EpisodeLog, tmp_path: Path) -> None:
    path = tmp_path / ".order"
    original = path.read_bytes()
    path.write_bytes(original.replace(b"+ 1 ", b"+ 9 "))
    assert log.ids() == [IDS[1], IDS[2], IDS[0]]
    (finding,) = [finding for finding in verify_log(tmp_path) if not finding.is_intact]
    assert finding.problem == "has damaged lines: 1; lacks 1 of 3 episodes"
    repair(tmp_path, finding)
    assert path.read_bytes() == original
    path.write_bytes(bytes(range(256)))
    assert sorted(log.ids()) == sorted(IDS)


def test_missing_folder_is_skipped(log: EpisodeLog, tmp_path: Path) -> None:
    (tmp_path / IDS[1]).rename(tmp_path.parent / "elsewhere")
    assert log.ids() == [IDS[0], IDS[2]]


def test_remove_deletes_episode(log: EpisodeLog, tmp_path: Path, make_episode: Make) -> None:
    log.remove(IDS[1])
    assert log.ids() == [IDS[0], IDS[2]]
    assert IDS[1] not in log
    assert list((tmp_path / ".tmp").iterdir()) == []
    with pytest.raises(StoreError, match="no episode"):
        log.load(IDS[1])
    for unknown in (IDS[1], "other"):
        with pytest.raises(UsageError, match=f"cannot remove episode {unknown}: it is not in"):
            log.remove(unknown)
    with pytest.raises(UsageError, match="not an episode id"):
        log.remove("../x")
    log.commit(make_episode(id=IDS[1], num_steps=2))  # another episode with the same id is allowed after removal
    assert log.ids() == [IDS[0], IDS[2], IDS[1]]
    assert len(log.load(IDS[1])) == 2


def test_damaged_episode_can_be_removed(log: EpisodeLog, tmp_path: Path) -> None:
    (tmp_path / IDS[0] / "manifest.json").write_bytes(b"")
    log.remove(IDS[0])
    assert log.ids() == IDS[1:]


def test_failed_remove_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot remove episode e1"):
        EpisodeLog(tmp_path / "nowhere").remove("e1")
    assert not (tmp_path / "nowhere").exists()


def test_kill_during_remove_is_recovered(log: EpisodeLog, tmp_path: Path, make_episode: Make) -> None:
    """The episode is removed once its line is written, even if a crash leaves its folder."""
    _order.append(tmp_path, _order.line(2, IDS[1], removed=True))
    assert log.ids() == [IDS[0], IDS[2]]
    assert [finding.is_intact for finding in verify_log(tmp_path)] == [True, True]
    log.commit(make_episode(id=IDS[1], num_steps=2))
    assert log.ids() == [IDS[0], IDS[2], IDS[1]]
    assert len(log.load(IDS[1])) == 2


def test_concurrent_writers_keep_one_order(tmp_path: Path, make_episode: Make) -> None:
    logs = [EpisodeLog(tmp_path), EpisodeLog(tmp_path)]
    ids = [f"e{9 - count}" for count in range(8)]
    for count, name in enumerate(ids):
        logs[count % 2].commit(make_episode(id=name, num_steps=1))
    assert logs[0].ids() == logs[1].ids() == ids


@pytest.mark.parametrize("damage", [b"\n" * 2_000_000, b"x" * 7_000_000 + b"\n", b"+ 1 a 00000000\n" * 50_000])
def test_many_damaged_lines_take_little_memory(log: EpisodeLog, tmp_path: Path, damage: bytes) -> None:
    with (tmp_path / ".order").open("ab") as file:
        file.write(damage)
        file.write(_order.line(9, "20280101-x"))
    del damage
    tracemalloc.start()
    try:
        order = _order.read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()
    assert order.damaged[0] == 4
    assert len(order.damaged) <= 100
    assert (order.newest, order.torn) == (9, False)
    assert log.ids() == IDS


def test_line_that_is_too_long_and_has_no_end_is_torn(log: EpisodeLog, tmp_path: Path) -> None:
    with (tmp_path / ".order").open("ab") as file:
        file.write(b"+ 7 " + b"x" * 2000)
    order = _order.read(tmp_path)
    assert order.torn
    assert not order.damaged
    assert sorted(order.numbers) == sorted(IDS)
