"""Which episode a word stands for, and what deleting one takes along."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.core.types import Outcome
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.runs.folder import RunFolder
from support.command_line import Cli
from support.made_runs import made_episode, made_run

IDS = (
    "20260301T093000-123456789-panda-9f86d081c3a1",
    "20260301T093010-223456789-panda-1b2c3d4e5f60",
    "20260302T093020-323456789-panda-712345678901",
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    return made_run(Path("runs/made"), *map(made_episode, IDS))


def test_numbers_are_numbers_and_never_parts_of_ids(cli: Cli, run: RunFolder) -> None:
    """Ids are full of digits, and numbers shift: a second `rm RUN 2` must not delete whatever has a 2 in it."""
    assert cli("episodes", "rm", "made", "3", "2", "--yes").code == 0
    again = cli("episodes", "rm", "made", "2", "--yes")
    assert again.code == 2
    assert "there is no episode 2 in runs/made: they are numbered 1 to 1" in again.line
    assert EpisodeLog(run.episodes).ids() == [IDS[0]]
    assert cli("episodes", "show", "made", "²").code == 2


@pytest.mark.parametrize(
    ("text", "found"),
    [("20260302", IDS[2]), ("20260301T093010", IDS[1]), ("9f86d081c3a1", IDS[0]), ("712345678901", IDS[2])],
)
def test_starts_and_random_parts_of_ids(cli: Cli, run: RunFolder, text: str, found: str) -> None:
    shown = cli("episodes", "show", "made", text)
    assert shown.code == 0, shown.err
    assert found in shown.out


@pytest.mark.parametrize("text", ["20260301", "1b2", "panda"])
def test_words_that_stand_for_none_or_many(cli: Cli, run: RunFolder, text: str) -> None:
    assert cli("episodes", "rm", "made", text, "--yes").code == 2
    assert len(EpisodeLog(run.episodes).ids()) == 3


def test_what_is_deleted_does_not_come_back_from_the_spool(cli: Cli, run: RunFolder) -> None:
    """A crash between the log and the spool leaves it in both."""
    episode = made_episode(IDS[0])
    spool = Spool(run.spool)
    spool.begin(episode.start)
    spool.append(episode.segments[0], after=episode.last_observation)
    spool.end(outcome=Outcome.SUCCESS, judgement=None)
    assert cli("episodes", "rm", "made", IDS[0], "--yes").code == 0
    assert spool.pending() == []


def test_readings_that_are_no_numbers_are_shown_all_the_same(cli: Cli, run: RunFolder) -> None:
    """They make an episode aborted, which is one that people want to look at."""
    episode = made_episode("20260303T000000-000000000-panda-aaaaaaaaaaaa", outcome=Outcome.ABORTED)
    columns = dict(episode.segments[0].columns)
    columns["extra/force"] = np.array([np.nan, 1.0, np.inf, 2.0, 3.0, -np.inf])
    columns["extra/nothing"] = np.full(6, np.nan)
    columns["extra/empty"] = np.zeros((6, 0), np.float32)
    object.__setattr__(episode.segments[0], "columns", columns)
    EpisodeLog(run.episodes).commit(episode)
    shown = cli("episodes", "show", "made", "last")
    assert shown.code == 0, shown.err
    assert "none finite" in shown.out
    assert "empty" in shown.out
