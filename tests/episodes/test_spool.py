"""The spool: recording, truncation at any byte, transfer to the log, and deletion."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.contracts import Recorder
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Episode, Outcome
from dovetail.episodes import _journal
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from support.small_episodes import after, assert_same_episode, cut_short, make_episode, record

Make = Callable[..., Episode]


def hand_over(spool: Spool, log: EpisodeLog) -> list[str]:
    done = []
    for episode_id in spool.pending():
        episode = spool.load(episode_id)
        if episode is not None:
            log.commit(episode)
            done.append(episode_id)
        spool.acknowledge(episode_id)
    return done


def borders(path: Path) -> list[int]:
    with path.open("rb") as file:
        return [found.end for found in _journal.read(file)]


def test_round_trip(tmp_path: Path) -> None:
    episode = make_episode(num_steps=6, cuts=(2, 3), judgement=Outcome.FAILURE, reset_s=1.5, has_success=False)
    episode = dataclasses.replace(episode, deterministic=True)
    spool = Spool(tmp_path / "some" / "spool")
    recorder: Recorder = spool
    record(recorder, episode)
    assert Spool(tmp_path / "some" / "spool").pending() == ["e1"]
    loaded = spool.load("e1")
    assert loaded is not None
    assert_same_episode(loaded, episode)
    assert [len(segment) for segment in loaded.segments] == [2, 1, 3]
    assert [segment.final for segment in loaded.segments] == [False, False, True]


def test_spooled_episode_commits_like_original(tmp_path: Path) -> None:
    """Committing the spooled episode again after a crash must be harmless."""
    episode = make_episode(num_steps=6, cuts=(2, 3))
    spool, log = Spool(tmp_path / "spool"), EpisodeLog(tmp_path / "episodes")
    record(spool, episode)
    log.commit(episode)
    assert hand_over(spool, log) == ["e1"]
    assert_same_episode(log.load("e1"), episode)
    assert spool.pending() == []
    assert list((tmp_path / "spool").iterdir()) == []


def test_running_episode_cannot_be_loaded(tmp_path: Path) -> None:
    ours, theirs = Spool(tmp_path), Spool(tmp_path)
    record(ours, make_episode(cuts=(2,)), end=False)
    for spool in (ours, theirs):
        assert spool.pending() == []
        with pytest.raises(StoreError, match=r"e1 in .* is still being recorded"):
            spool.load("e1")
        with pytest.raises(UsageError, match=r"e1 in .* is still being recorded"):
            spool.acknowledge("e1")
    ours.end(outcome=Outcome.SUCCESS, judgement=None)
    assert theirs.pending() == ["e1"]


def test_two_robots_share_a_folder(tmp_path: Path) -> None:
    first, second = Spool(tmp_path), Spool(tmp_path)
    record(first, make_episode(id="a", cuts=(2,)), num_segments=1, end=False)
    record(second, make_episode(id="b"))
    first.append(make_episode(id="a", cuts=(2,)).segments[1], after=make_episode(id="a").last_observation)
    assert second.pending() == ["b"]
    first.end(outcome=Outcome.SUCCESS, judgement=None)
    assert second.pending() == ["a", "b"]
    loaded = second.load("a")
    assert loaded is not None
    assert_same_episode(loaded, make_episode(id="a"))


def test_same_id_cannot_begin_twice(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    record(spool, make_episode())
    before = (tmp_path / "e1.journal").read_bytes()
    with pytest.raises(UsageError, match=r"e1 is already in"):
        spool.begin(make_episode(seed=1).start)
    assert (tmp_path / "e1.journal").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["e1.journal"]


def test_acknowledge_twice_is_harmless(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    record(spool, make_episode())
    spool.acknowledge("e1")
    spool.acknowledge("e1")
    assert spool.load("e1") is None
    assert Spool(tmp_path / "nowhere").pending() == []
    Spool(tmp_path / "nowhere").acknowledge("e1")
    assert not (tmp_path / "nowhere").exists()


def test_closed_without_end_is_aborted(tmp_path: Path) -> None:
    """After a failure the actor begins the next episode; the steps of the last one are kept."""
    spool = Spool(tmp_path)
    episode = make_episode(id="a", num_steps=6, cuts=(2, 3))
    record(spool, episode, num_segments=2, end=False)
    record(spool, make_episode(id="b"))
    assert spool.pending() == ["a", "b"]
    loaded = spool.load("a")
    assert loaded is not None
    assert_same_episode(loaded, cut_short(episode, 2))


def test_episode_without_steps_loads_as_none(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.begin(make_episode().start)
    spool.close()
    assert spool.pending() == ["e1"]
    assert spool.load("e1") is None
    assert hand_over(spool, EpisodeLog(tmp_path / "log")) == []
    assert spool.pending() == []


def test_pending_order_is_independent_of_clock(tmp_path: Path) -> None:
    """The clock was set back between them, and the second was recorded by another process."""
    record(Spool(tmp_path), make_episode(id="20270101"))
    later = Spool(tmp_path)
    record(later, make_episode(id="20260101"))
    record(later, make_episode(id="20250101"))
    assert Spool(tmp_path).pending() == ["20270101", "20260101", "20250101"]


def test_wrong_calls_raise_usage_error(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    episode = make_episode(num_steps=6, cuts=(2,))
    first, second = episode.segments
    with pytest.raises(UsageError, match=r"Call begin\(\) first"):
        spool.append(first, after=after(episode, 0))
    with pytest.raises(UsageError, match=r"Call begin\(\) first"):
        spool.end(outcome=Outcome.SUCCESS, judgement=None)
    spool.begin(episode.start)
    with pytest.raises(UsageError, match="step 2 is not the next"):
        spool.append(second, after=after(episode, 1))
    with pytest.raises(UsageError, match="cannot append to other"):
        spool.append(dataclasses.replace(first, episode_id="other"), after=after(episode, 0))
    spool.append(first, after=after(episode, 0))
    odd = dataclasses.replace(second, columns={**second.columns, "extra/new": np.zeros(4)})
    with pytest.raises(
        StoreError, match="columns changed since the first segment: extra/new"
    ):  # or the log would refuse it
        spool.append(odd, after=after(episode, 1))
    with pytest.raises(UsageError, match="not an episode id"):
        spool.begin(dataclasses.replace(episode.start, id="../x"))
    spool.append(second, after=after(episode, 1))
    spool.end(outcome=episode.outcome, judgement=None)
    loaded = spool.load("e1")
    assert loaded is not None
    assert_same_episode(loaded, episode)


def test_cut_at_every_byte(tmp_path: Path) -> None:
    """Exactly the complete records before the cut are loaded."""
    episode = make_episode(num_steps=3, cuts=(1, 2))
    spool = Spool(tmp_path)
    record(spool, episode)
    path = tmp_path / "e1.journal"
    data, ends = path.read_bytes(), borders(path)
    assert ends[-1] == len(data)
    assert len(ends) == 5  # start, three segments, end
    expected = [None, *(cut_short(episode, count) for count in (1, 2, 3)), episode]
    edges = {end + place for end in ends for place in (-1, 0, 1, 23, 24)}
    for cut in range(len(data) - 1, -1, -1):
        os.truncate(path, cut)
        num_whole = sum(end <= cut for end in ends)
        assert borders(path) == ends[:num_whole]
        if cut not in edges and cut % 101:
            continue
        if num_whole == 0:
            with pytest.raises(StoreError, match=r"first record of .*e1\.journal is damaged"):
                spool.load("e1")
            continue
        loaded, wanted = spool.load("e1"), expected[num_whole - 1]
        assert (loaded is None) == (wanted is None)
        if loaded is not None and wanted is not None:
            assert_same_episode(loaded, wanted)


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_flipped_bit_loses_its_record_and_later_ones(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    episode = make_episode(num_steps=3, cuts=(1, 2))
    spool = Spool(folder)
    record(spool, episode)
    path = folder / "e1.journal"
    ends = borders(path)
    data = bytearray(path.read_bytes())
    place %= len(data)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    num_whole = sum(end <= place for end in ends)
    if num_whole == 0:
        with pytest.raises(StoreError, match=r"the first record of .* is damaged"):
            spool.load("e1")
    elif num_whole == 1:
        assert spool.load("e1") is None
    else:
        loaded = spool.load("e1")
        assert loaded is not None
        assert_same_episode(loaded, cut_short(episode, num_whole - 1))


def test_leftover_new_journals_are_removed_unless_locked(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    record(spool, make_episode(id="a"), end=False)
    os.link(tmp_path / "a.journal", tmp_path / ".living.new")
    (tmp_path / ".dead.new").write_bytes(b"half")
    record(Spool(tmp_path), make_episode(id="b"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".living.new", "a.journal", "b.journal"]


def test_journal_removed_during_open_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, swept = os.link, []

    def sweep_first(source: Path, target: Path) -> None:
        if not swept:
            swept.append(source)
            os.unlink(source)
        link(source, target)

    monkeypatch.setattr(os, "link", sweep_first)
    record(Spool(tmp_path), make_episode())
    assert swept
    assert Spool(tmp_path).pending() == ["e1"]


def test_holds_steps_ignores_empty_episodes(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    assert not spool.holds_steps
    record(spool, make_episode(), num_segments=0, end=False)
    assert not spool.holds_steps
    record(spool, make_episode(id="e2"), num_segments=1, end=False)
    assert spool.holds_steps  # and it is being recorded still
    spool.close()
    spool.set_aside("e2")
    assert spool.holds_steps
