"""Metadata of v2.1, where each episode has its own files, in the form of v3.0.

    meta/episodes.jsonl   {"episode_index": 0, "tasks": ["stack the cubes"], "length": 211}
    meta/tasks.jsonl      {"task_index": 0, "task": "stack the cubes"}
    data/chunk-000/episode_000000.parquet
    videos/chunk-000/observation.images.front/episode_000000.mp4

The statistics in `meta/episodes_stats.jsonl` are not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.core.disk import parse_json, read_file
from dovetail.core.errors import StoreError

__all__ = ["read_episodes", "read_tasks"]

_EPISODES, _TASKS = "meta/episodes.jsonl", "meta/tasks.jsonl"
_MAX_FILE_BYTES = 16 << 20
_MAX_LINES = 200_000
_MAX_LINE_BYTES = 1 << 20
_CHUNKS_SIZE = 1000  # episodes per folder, if info.json does not say it


def read_episodes(root: Path, info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows that the table of episodes has in v3.0. Every file begins with its episode."""
    chunks_size = info.get("chunks_size", _CHUNKS_SIZE)
    if type(chunks_size) is not int or not 0 < chunks_size <= _MAX_LINES:
        raise StoreError(f"{root / 'meta/info.json'}: chunks_size should be a number of episodes")
    videos = [name for name, feature in info["features"].items() if feature["dtype"] == "video"]
    places = [(f"videos/{name}/chunk_index", f"videos/{name}/file_index") for name in videos]
    begins = {f"videos/{name}/from_timestamp": 0.0 for name in videos}
    rows = []
    for line in _lines(root / _EPISODES):
        index, tasks = line.get("episode_index"), line.get("tasks")
        if type(index) is not int or index < 0:
            raise StoreError(f"{root / _EPISODES}: 'episode_index' should be an index")
        if tasks is not None and not (isinstance(tasks, list) and all(isinstance(task, str) for task in tasks)):
            raise StoreError(f"{root / _EPISODES}: 'tasks' of episode {index} should be a list of texts")
        row = {
            "episode_index": index,
            "tasks": tasks,
            "length": line.get("length"),
            "dataset_from_index": 0,
            **begins,
        }
        for chunk_name, file_name in (("data/chunk_index", "data/file_index"), *places):
            row[chunk_name], row[file_name] = index // chunks_size, index
        rows.append(row)
    return rows


def read_tasks(root: Path) -> dict[int, str]:
    tasks = {}
    for line in _lines(root / _TASKS):
        number, text = line.get("task_index"), line.get("task")
        if type(number) is not int or not isinstance(text, str):
            raise StoreError(f"{root / _TASKS}: a line should have a task_index and a task")
        tasks[number] = text
    return tasks


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """The objects of a JSON Lines file of any origin."""
    data = read_file(path, max_bytes=_MAX_FILE_BYTES)
    if (num_lines := data.count(b"\n")) > _MAX_LINES:  # before each becomes an object
        raise StoreError(f"{path} has {num_lines} lines, more than the {_MAX_LINES} that are allowed")
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        if len(line) > _MAX_LINE_BYTES:
            raise StoreError(
                f"{path}, line {number}: {len(line)} bytes are more than the {_MAX_LINE_BYTES} allowed"
            )
        try:
            found = parse_json(line)
        except ValueError as error:
            raise StoreError(f"{path}, line {number}: {' '.join(str(error).split())[:200]}") from error
        if not isinstance(found, dict):
            raise StoreError(f"{path}, line {number}: expected an object")
        yield found
