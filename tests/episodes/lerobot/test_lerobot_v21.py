"""Import of v2.1 datasets: the same episodes as from v3.0, through the same checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Outcome, Purpose, Source
from dovetail.episodes.lerobot import export, open_dataset
from dovetail.episodes.lerobot._checks import check_values
from dovetail.episodes.log import EpisodeLog
from support.lerobot_episodes import MemoryLog, psnr_db
from support.lerobot_v21 import LENGTHS, SIZE, TOP, write_v21

EPISODES = "meta/episodes.jsonl"


def test_episodes_of_two_folders_are_imported_as_demonstrations(tmp_path: Path) -> None:
    truth = write_v21(tmp_path / "old")
    dataset = open_dataset(tmp_path / "old")
    assert not dataset.is_ours and len(dataset) == len(LENGTHS)
    first = 0
    for index, episode in enumerate(dataset.episodes()):
        part = slice(first, first + len(episode))
        assert len(episode) == LENGTHS[index]
        assert episode.prompt == ("stack", "sort", "stack")[index]
        assert (episode.purpose, episode.operator, episode.outcome) == (Purpose.DEMO, "lerobot", Outcome.SUCCESS)
        assert episode.robot.action == ArraySpec(shape=(2,), names=("x", "y"))
        assert episode.robot.observation["top"].shape == SIZE
        np.testing.assert_array_equal(episode.column("observation/state"), truth["state"][part])
        np.testing.assert_array_equal(episode.column("executed"), truth["action"][part])
        assert psnr_db(episode.column("observation/top"), truth["top"][part]) > 30
        assert set(episode.column("source")) == {Source.HUMAN}
        np.testing.assert_array_equal(episode.column("time_ns"), np.arange(len(episode)) * 100_000_000)
        check_values(episode, dataset.labels(index), name=f"episode {index}")
        first += len(episode)


def test_imported_episodes_are_stored_once_and_sorted(tmp_path: Path) -> None:
    write_v21(tmp_path / "old")
    log = EpisodeLog(tmp_path / "log")
    for _ in range(2):
        for episode in open_dataset(tmp_path / "old", task="stacking").episodes():
            log.commit(episode)
    assert len(log.ids()) == len(LENGTHS)
    assert [len(log.load(id)) for id in log.ids()] == list(LENGTHS)


def test_prompt_comes_from_the_tasks_if_the_episode_names_none(tmp_path: Path) -> None:
    root = tmp_path / "old"
    write_v21(root)
    _edit(root, EPISODES, lambda line: {key: value for key, value in line.items() if key != "tasks"})
    assert [episode.prompt for episode in open_dataset(root).episodes()] == ["stack", "sort", "stack"]


def test_statistics_are_not_needed_and_episodes_may_be_in_any_order(tmp_path: Path) -> None:
    root = tmp_path / "old"
    write_v21(root)
    (root / "meta/episodes_stats.jsonl").unlink()
    lines = (root / EPISODES).read_text().splitlines()
    (root / EPISODES).write_text("\n\n".join(reversed(lines)) + "\n")
    assert [len(episode) for episode in open_dataset(root).episodes()] == list(LENGTHS)


def test_nothing_is_exported_into_a_v21_dataset(tmp_path: Path) -> None:
    write_v21(tmp_path / "old")
    with pytest.raises(UsageError, match=r"a LeRobot dataset of v2\.1, but Dovetail exports v3\.0"):
        export(MemoryLog([0]), tmp_path / "old")


def test_files_of_dovetail_in_a_v21_dataset_are_ignored(tmp_path: Path) -> None:
    """Dovetail never wrote v2.1: such files cannot be its own, and they could claim labels."""
    root = tmp_path / "old"
    write_v21(root)
    export(MemoryLog([0]), tmp_path / "new")
    (tmp_path / "new/dovetail").rename(root / "dovetail")
    dataset = open_dataset(root)
    assert not dataset.is_ours and dataset.labels(0) is None
    assert dataset.episode(0).operator == "lerobot"


def test_rows_of_another_episode_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "old"
    write_v21(root)
    one, two = (root / f"data/chunk-000/episode_00000{number}.parquet" for number in (0, 1))
    pq.write_table(pq.read_table(two), one)
    with pytest.raises(StoreError, match="does not contain episode 0"):
        open_dataset(root).episode(0)


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        (EPISODES, lambda line: {**line, "episode_index": -1}, "'episode_index' should be an index"),
        (EPISODES, lambda line: {**line, "episode_index": True}, "'episode_index' should be an index"),
        (EPISODES, lambda line: {**line, "length": "4"}, "'length' should be an index"),
        (EPISODES, lambda line: {**line, "length": 2**50}, "'length' should be an index"),
        (EPISODES, lambda line: {**line, "tasks": "stack"}, "should be a list of texts"),
        (EPISODES, lambda line: {**line, "episode_index": 0}, "lists 3 episodes"),
        (EPISODES, lambda line: [line], "line 1: expected an object"),
        ("meta/tasks.jsonl", lambda line: {"task_index": "0", "task": 1}, "a task_index and a task"),
    ],
)
def test_wrong_metadata_is_refused_in_one_line(
    tmp_path: Path, file: str, change: Callable[[dict[str, object]], object], problem: str
) -> None:
    root = tmp_path / "old"
    write_v21(root)
    _edit(root, file, change)
    with pytest.raises(StoreError, match=problem) as caught:
        open_dataset(root)
    assert "\n" not in str(caught.value)


def test_size_of_the_metadata_is_limited(tmp_path: Path) -> None:
    root = tmp_path / "old"
    write_v21(root)
    for text, problem in (
        ("{}\n" * 300_000, "300000 lines, more than"),
        ('{"x": "' + "y" * (2 << 20) + '"}\n', "bytes are more than"),
        ("\n" * (17 << 20), "more than the 16777216 that are allowed"),
        ("[" * 100_000, "nested too deeply"),
    ):
        (root / EPISODES).write_text(text)
        with pytest.raises(StoreError, match=problem):
            open_dataset(root)


@pytest.mark.parametrize(
    "path",
    [
        "../{episode_chunk:03d}/{episode_index:06d}.parquet",
        "/etc/{episode_index}",
        "data/{episode_chunk.__class__}",
        "data/{episode_index:0999999d}",
        "data/{chunk_index:03d}/{file_index}.parquet",
    ],
)
def test_paths_outside_and_formats_are_refused(tmp_path: Path, path: str) -> None:
    root = tmp_path / "old"
    write_v21(root)
    info = json.loads((root / "meta/info.json").read_text())
    for name in ("data_path", "video_path"):
        (root / "meta/info.json").write_text(json.dumps({**info, name: path}))
        with pytest.raises(StoreError, match=r"outside the dataset|unknown field|plain fields only"):
            open_dataset(root).episode(0)


def test_missing_video_is_named(tmp_path: Path) -> None:
    root = tmp_path / "old"
    write_v21(root)
    (root / f"videos/chunk-000/{TOP}/episode_000001.mp4").unlink()
    dataset = open_dataset(root)
    dataset.episode(0)
    with pytest.raises(StoreError, match=r"episode_000001\.mp4 is missing"):
        dataset.episode(1)


def _edit(root: Path, file: str, change: Callable[[dict[str, object]], object]) -> None:
    lines = [json.loads(line) for line in (root / file).read_text().splitlines()]
    (root / file).write_text("".join(json.dumps(change(line)) + "\n" for line in lines))
