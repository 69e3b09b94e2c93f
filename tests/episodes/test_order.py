"""The order of commits: whatever clocks say, and whatever a crash leaves of it."""

from __future__ import annotations

import os
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


def test_a_clock_that_jumps_changes_no_order(tmp_path: Path, make_episode: Make) -> None:
    log = EpisodeLog(tmp_path)
    moments = [2_000_000_000, 1_000_000_000, 1_500_000_000, 1_500_000_000]
    ids = [new_episode_id(unix_ns=second * 10**9, robot="panda") for second in moments]
    for name in ids:
        log.commit(make_episode(id=name, num_steps=1))
    assert log.ids() == ids
    assert EpisodeLog(tmp_path).ids() == ids
    assert [log.manifest(name).number for name in ids] == [1, 2, 3, 4]


def test_committing_again_moves_nothing(log: EpisodeLog, tmp_path: Path, make_episode: Make) -> None:
    before = (tmp_path / ".order").read_bytes()
    log.commit(make_episode(id=IDS[0], num_steps=1))
    assert log.ids() == IDS
    assert (tmp_path / ".order").read_bytes() == before


def test_killed_between_the_rename_and_the_line(log: EpisodeLog, tmp_path: Path, make_episode: Make) -> None:
    lines = (tmp_path / ".order").read_bytes().splitlines(keepends=True)
    (tmp_path / ".order").write_bytes(lines[0])
    assert log.ids() == [IDS[0], *sorted(IDS[1:])]  # what has no line comes last, sorted
    log.commit(make_episode(id="00-new", num_steps=1))
    assert log.ids() == [*IDS, "00-new"]  # and gets the number that it was written with
    assert [finding.whole for finding in verify_log(tmp_path)] == [True] * 4


def test_no_room_for_the_line(
    log: EpisodeLog, tmp_path: Path, make_episode: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is description that it failed tries again, and finds that it is there."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_order, "append", full)
        with pytest.raises(StoreError, match="No space left"):
            log.commit(make_episode(id="00-new", num_steps=1))
    log.commit(make_episode(id="00-new", num_steps=1))
    assert log.ids() == [*IDS, "00-new"]
    assert [finding.whole for finding in verify_log(tmp_path)] == [True] * 4


@pytest.mark.parametrize("lost", range(1, 30, 4))
def test_a_torn_line_is_no_line(log: EpisodeLog, tmp_path: Path, make_episode: Make, lost: int) -> None:
    os.truncate(tmp_path / ".order", (tmp_path / ".order").stat().st_size - lost)
    assert log.ids() == IDS
    log.commit(make_episode(id="00-new", num_steps=1))
    assert log.ids() == [*IDS, "00-new"]
    assert (tmp_path / ".order").read_bytes().count(b"\n") == 4


def test_damaged_lines_are_ignored_and_made_again(log: EpisodeLog, tmp_path: Path) -> None:
    path = tmp_path / ".order"
    original = path.read_bytes()
    path.write_bytes(original.replace(b"+ 1 ", b"+ 9 "))
    assert log.ids() == [IDS[1], IDS[2], IDS[0]]
    (finding,) = [finding for finding in verify_log(tmp_path) if not finding.whole]
    assert finding.problem == "has damaged lines: 1; lacks 1 of 3 episodes"
    repair(tmp_path, finding)
    assert path.read_bytes() == original
    path.write_bytes(bytes(range(256)))
    assert sorted(log.ids()) == sorted(IDS)


def test_a_folder_that_is_gone_is_skipped(log: EpisodeLog, tmp_path: Path) -> None:
    (tmp_path / IDS[1]).rename(tmp_path.parent / "elsewhere")
    assert log.ids() == [IDS[0], IDS[2]]


def test_remove(log: EpisodeLog, tmp_path: Path, make_episode: Make) -> None:
    log.remove(IDS[1])
    assert log.ids() == [IDS[0], IDS[2]]
    assert IDS[1] not in log
    assert list((tmp_path / ".tmp").iterdir()) == []
    with pytest.raises(StoreError, match="no episode"):
        log.load(IDS[1])
    for unknown in (IDS[1], "other"):
        with pytest.raises(UsageError, match=f"there is no episode {unknown} in .* to remove"):
            log.remove(unknown)
    with pytest.raises(UsageError, match="not an episode id"):
        log.remove("../x")
    log.commit(make_episode(id=IDS[1], num_steps=2))  # another one of that id: nobody remembers the first
    assert log.ids() == [IDS[0], IDS[2], IDS[1]]
    assert len(log.load(IDS[1])) == 2


def test_a_damaged_episode_can_be_removed(log: EpisodeLog, tmp_path: Path) -> None:
    (tmp_path / IDS[0] / "manifest.json").write_bytes(b"")
    log.remove(IDS[0])
    assert log.ids() == IDS[1:]


def test_removing_in_vain_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no episode e1"):
        EpisodeLog(tmp_path / "nowhere").remove("e1")
    assert not (tmp_path / "nowhere").exists()


def test_killed_while_removing(log: EpisodeLog, tmp_path: Path, make_episode: Make) -> None:
    """Its line decides: after it the episode is gone, whatever a crash has left of its folder."""
    _order.append(tmp_path, _order.line(2, IDS[1], removed=True))
    assert log.ids() == [IDS[0], IDS[2]]
    assert [finding.whole for finding in verify_log(tmp_path)] == [True, True]
    log.commit(make_episode(id=IDS[1], num_steps=2))
    assert log.ids() == [IDS[0], IDS[2], IDS[1]]
    assert len(log.load(IDS[1])) == 2


def test_many_writers_take_turns(tmp_path: Path, make_episode: Make) -> None:
    logs = [EpisodeLog(tmp_path), EpisodeLog(tmp_path)]
    ids = [f"e{9 - count}" for count in range(8)]
    for count, name in enumerate(ids):
        logs[count % 2].commit(make_episode(id=name, num_steps=1))
    assert logs[0].ids() == logs[1].ids() == ids
