"""Which episodes a filter means."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli._episode_filter import Filter, Selection, parse_filter, parse_moment
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
    selection = Selection(EpisodeLog(folder.episodes), LabelStore(folder.labels), parse_filter(**words))
    return [found.info.id for found in selection]


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
        ({"labeler": "outcome"}, ["e1"]),  # what it said of e2 does not count
        ({"since": "2026-03-02"}, ["e2", "e3"]),
        ({"until": "2026-03-02"}, ["e1", "e2"]),  # that day is still in
        ({"until": "2026-03-02T12:00"}, ["e1"]),
        ({"since": "2026-03-02T12:00", "until": "2026-03-02T12:01"}, ["e2"]),
        ({"limit": 2}, ["e2", "e3"]),
        ({"limit": 1, "source": "human"}, ["e3"]),
        ({"limit": 9}, ["e1", "e2", "e3"]),
        ({"purpose": "online", "label": "none"}, ["e3"]),
    ],
)
def test_what_is_chosen(folder: RunFolder, words: dict[str, Any], expected: list[str]) -> None:
    assert chosen(folder, **words) == expected
    assert parse_filter(**words).is_empty == (not words)


def test_numbers_are_places_in_the_log(folder: RunFolder) -> None:
    selection = Selection(EpisodeLog(folder.episodes), LabelStore(folder.labels), parse_filter(limit=2))
    assert [found.number for found in selection] == [2, 3]


def test_matching_looks_at_an_episode_and_its_label_alone(folder: RunFolder) -> None:
    info: EpisodeInfo = EpisodeLog(folder.episodes).manifest("e2")
    said: Labels | None = LabelStore(folder.labels).current("e2")
    assert Filter().matches(info, None)
    assert Filter(labeler="anna").matches(info, said)
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
def test_moments(text: str, ends: bool, moment: datetime) -> None:
    assert parse_moment(text, ends=ends, now=NOON.astimezone()) == moment.astimezone()


def test_a_moment_may_name_its_zone() -> None:
    assert parse_moment("2026-01-31T09:30+00:00").timestamp() == 1769851800


@pytest.mark.parametrize("text", ["yesterday", "", "2026-13-01", "5y", "-3d", "99999999999w", "h"])
def test_what_is_no_date(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no date: write 2026-01-31, 2026-01-31T09:30, or how long ago"):
        parse_moment(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"outcome": "sucess"}, "no outcome 'sucess'. Did you mean 'success'?"),
        ({"purpose": "onlin"}, "Did you mean 'online'?"),
        ({"source": "robot"}, "no source 'robot'. Valid: human, policy."),
        ({"label": "maybe"}, "no label 'maybe'. Valid: failure, none, success."),
    ],
)
def test_wrong_words(words: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_filter(**words)
    assert said in str(error.value)


def test_damage_hides_nothing_else(folder: RunFolder, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", *(made_episode(f"e{number}", images=False) for number in range(3)))
    label(run, "e2")
    (run.episodes / "e1" / "manifest.json").write_text("{}")
    (run.labels / "labels.jsonl").write_bytes(b"rubbish\n" + (run.labels / "labels.jsonl").read_bytes())
    selection = Selection(EpisodeLog(run.episodes), LabelStore(run.labels), parse_filter())
    assert [(found.info.id, found.label) for found in selection] == [("e0", None), ("e2", None)]
    first, second = selection.problems
    assert "labels.jsonl line 1 is damaged" in first
    assert "e1/manifest.json is damaged" in second
    with pytest.raises(StoreError, match="labels"):  # but nobody is told that there are no labels
        chosen(run, label="none")
