"""Naming episodes, and deleting copies in the spool."""

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


def test_a_number_is_never_a_part_of_an_id(cli: Cli, run: RunFolder) -> None:
    """Ids contain digits, and numbers shift: a second `rm RUN 2` must not delete an id with a 2 in it."""
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
def test_episodes_by_start_or_random_part_of_the_id(cli: Cli, run: RunFolder, text: str, found: str) -> None:
    shown = cli("episodes", "show", "made", text)
    assert shown.code == 0, shown.err
    assert found in shown.out


@pytest.mark.parametrize("text", ["20260301", "1b2", "panda"])
def test_ambiguous_names_are_refused(cli: Cli, run: RunFolder, text: str) -> None:
    assert cli("episodes", "rm", "made", text, "--yes").code == 2
    assert len(EpisodeLog(run.episodes).ids()) == 3


def test_deleted_episode_does_not_come_back_from_the_spool(cli: Cli, run: RunFolder) -> None:
    """After a crash, an episode may be in both the log and the spool."""
    episode = made_episode(IDS[0])
    spool = Spool(run.spool)
    spool.begin(episode.start)
    spool.append(episode.segments[0], after=episode.last_observation)
    spool.end(outcome=Outcome.SUCCESS, judgement=None)
    assert cli("episodes", "rm", "made", IDS[0], "--yes").code == 0
    assert spool.pending() == []


def test_show_an_episode_with_nan(cli: Cli, run: RunFolder) -> None:
    """NaN aborts an episode; users want to inspect such episodes."""
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
