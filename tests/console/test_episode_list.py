"""The list of episodes reads the folder again only after a change."""

import os
import shutil
import time

import pytest

from dovetail.console.episode_labels import EpisodeLabels
from dovetail.console.episode_list import EpisodeList, EpisodeQuery
from dovetail.console.recorded_episodes import RecordedEpisodes
from dovetail.episodes.log import EpisodeLog


@pytest.fixture
def run(recorded, tmp_path):
    return recorded(tmp_path)


@pytest.fixture
def listings(monkeypatch):
    """One entry for each time that the folder is listed."""
    calls, ids = [], EpisodeLog.ids
    monkeypatch.setattr(EpisodeLog, "ids", lambda log: calls.append(1) or ids(log))
    return calls


def settle(run):
    """The last change was a while ago."""
    past_s = time.time() - 60
    os.utime(run / "episodes", (past_s, past_s))


def test_unchanged_folder_is_listed_once(run, listings):
    settle(run)
    found = EpisodeList(RecordedEpisodes(run), EpisodeLabels(run))
    pages = [found.page(EpisodeQuery(limit=3)) for _ in range(5)]
    assert len(listings) == 1 and all(page == pages[0] for page in pages) and pages[0]["total"] == 8


def test_changes_of_the_folder_are_seen(run, listings):
    settle(run)
    found = EpisodeList(RecordedEpisodes(run), EpisodeLabels(run))
    assert found.page(EpisodeQuery())["total"] == 8
    EpisodeLog(run / "episodes").remove("e03")
    assert found.page(EpisodeQuery())["total"] == 7
    settle(run)
    shutil.rmtree(run / "episodes" / "e04")  # by hand, so `.order` does not change
    assert found.page(EpisodeQuery())["total"] == 6


def test_listed_episodes_share_equal_robots(run):
    """Else a full garbage collection, during which STOP waits, takes more than a second with 100,000 episodes."""
    found = EpisodeList(RecordedEpisodes(run), EpisodeLabels(run))
    found.page(EpisodeQuery())
    infos = list(found._known.values())
    assert len(infos) == 8 and len({id(info.robot) for info in infos}) == 1
    assert infos == [EpisodeLog(run / "episodes").manifest(info.id) for info in infos]
