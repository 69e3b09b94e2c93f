"""Episodes of a run: filters, positions, arrays, images and labels."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.api.episodes import Episodes, Filter, parse_filter, parse_time
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Labels, Outcome, Purpose
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.labels.store import LabelStore
from dovetail.runs.folder import RunFolder
from support.made_runs import label, made_episode, made_run

NOON = datetime(2026, 3, 1, 12, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = made_run(
        tmp_path_factory.mktemp("filter") / "run",
        made_episode("e1", images=False, purpose=Purpose.DEMO, human=(0, 1, 2, 3, 4, 5)),
        made_episode("e2", images=False, outcome=Outcome.TIMEOUT, started=NOON + timedelta(days=1)),
        made_episode("e3", images=False, human=(2,), task="push_cube", started=NOON + timedelta(days=2)),
    )
    label(run, "e1")
    label(run, "e2", success=False)
    label(run, "e2", success=True, labeler="anna", priority=5)
    return run


def chosen(folder: RunFolder, **words: Any) -> list[str]:
    return [episode.id for episode in Episodes(folder.path).filter(**words)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, ["e1", "e2", "e3"]),
        ({"task": "push_cube"}, ["e3"]),
        ({"robot": "panda"}, ["e1", "e2", "e3"]),
        ({"robot": "x5"}, []),
        ({"purpose": "online"}, ["e2", "e3"]),
        ({"outcome": "timeout"}, ["e2"]),
        ({"source": "human"}, ["e1", "e3"]),
        ({"source": "policy"}, ["e2"]),
        ({"label": "success"}, ["e1", "e2"]),
        ({"label": "failure"}, []),
        ({"label": "none"}, ["e3"]),
        ({"labeler": "anna"}, ["e2"]),
        ({"labeler": "outcome"}, ["e1"]),  # its label of e2 is not current
        ({"since": "2026-03-02"}, ["e2", "e3"]),
        ({"until": "2026-03-02"}, ["e1", "e2"]),  # that day is included
        ({"until": "2026-03-02T12:00"}, ["e1"]),
        ({"since": "2026-03-02T12:00", "until": "2026-03-02T12:01"}, ["e2"]),
        ({"limit": 2}, ["e2", "e3"]),
        ({"limit": 1, "source": "human"}, ["e3"]),
        ({"limit": 9}, ["e1", "e2", "e3"]),
        ({"purpose": "online", "label": "none"}, ["e3"]),
    ],
)
def test_filter(folder: RunFolder, words: dict[str, Any], expected: list[str]) -> None:
    assert chosen(folder, **words) == expected
    assert parse_filter(**words).is_empty == (not words)


def test_a_number_is_the_position_in_the_log(folder: RunFolder) -> None:
    assert [episode.number for episode in Episodes(folder.path).filter(limit=2)] == [2, 3]


def test_filters_add_up(folder: RunFolder) -> None:
    online = Episodes(folder.path).filter(purpose="online")
    assert (len(online), len(online.filter(source="human")), online[-1].id) == (2, 1, "e3")


def test_episodes_by_position_number_and_name(folder: RunFolder) -> None:
    episodes = Episodes(folder.path)
    assert [episodes[key].id for key in (0, -1, "first", "last", "2", "e3")] == [
        "e1",
        "e3",
        "e1",
        "e3",
        "e2",
        "e3",
    ]
    with pytest.raises(IndexError):
        episodes[3]


def test_arrays_images_and_labels(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", made_episode("e1"))
    label(run, "e1", success=False)
    label(run, "e1", labeler="anna", priority=5)
    episode = Episodes(run.path)[0]
    arrays = episode.arrays()
    np.testing.assert_array_equal(arrays["executed"][:, 0], np.arange(6))
    assert arrays["observation/state"].shape == (6, 3) and "observation/front" not in arrays
    images = episode.images("front")
    assert images.shape == (6, 12, 16, 3) and images.dtype == np.uint8
    assert episode.label is not None and episode.label.labeler == "anna"
    assert [record.labels.labeler for record in episode.label_history()] == ["outcome", "anna"]


def test_a_filter_matches_an_episode_and_its_label(folder: RunFolder) -> None:
    info: EpisodeInfo = EpisodeLog(folder.episodes).manifest("e2")
    current: Labels | None = LabelStore(folder.labels).current("e2")
    assert Filter().matches(info, None)
    assert Filter(labeler="anna").matches(info, current)
    assert not Filter(labeler="anna").matches(info, None)


@pytest.mark.parametrize(
    ("text", "ends", "moment"),
    [
        ("2026-01-31", False, datetime(2026, 1, 31)),
        ("2026-01-31", True, datetime(2026, 2, 1)),
        ("2026-01-31T09:30", True, datetime(2026, 1, 31, 9, 30)),
        ("2026-01-31 09:30:15", False, datetime(2026, 1, 31, 9, 30, 15)),
        ("90min", False, NOON - timedelta(minutes=90)),
        ("30m", False, NOON - timedelta(minutes=30)),
        ("2h", True, NOON - timedelta(hours=2)),
        ("1.5d", False, NOON - timedelta(hours=36)),
        ("1w", False, NOON - timedelta(days=7)),
    ],
)
def test_parse_time(text: str, ends: bool, moment: datetime) -> None:
    assert parse_time(text, ends=ends, now=NOON.astimezone()) == moment.astimezone()


def test_a_time_may_have_a_zone() -> None:
    assert parse_time("2026-01-31T09:30+00:00").timestamp() == 1769851800


@pytest.mark.parametrize("text", ["yesterday", "", "2026-13-01", "5y", "-3d", "99999999999w", "h"])
def test_an_invalid_date_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a date: write 2026-01-31, 2026-01-31T09:30, or how long ago"):
        parse_time(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"outcome": "sucess"}, "no outcome 'sucess'. Did you mean 'success'?"),
        ({"purpose": "onlin"}, "Did you mean 'online'?"),
        ({"source": "robot"}, "no source 'robot'. Valid: human, policy."),
        ({"label": "maybe"}, "no label 'maybe'. Valid: failure, none, success."),
    ],
)
def test_an_invalid_choice_is_refused(words: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_filter(**words)
    assert message in str(error.value)


def test_damaged_episodes_and_labels_are_noted(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", *(made_episode(f"e{number}", images=False) for number in range(3)))
    label(run, "e2")
    (run.episodes / "e1" / "manifest.json").write_text("{}")
    (run.labels / "labels.jsonl").write_bytes(b"rubbish\n" + (run.labels / "labels.jsonl").read_bytes())
    episodes = Episodes(run.path)
    assert [(episode.id, episode.label) for episode in episodes] == [("e0", None), ("e2", None)]
    first, second = episodes.problems
    assert "labels.jsonl line 1 is damaged" in first
    assert "e1/manifest.json is damaged" in second
    with pytest.raises(StoreError, match="labels"):  # a filter by label needs them
        chosen(run, label="none")
