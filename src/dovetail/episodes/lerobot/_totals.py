"""Totals of a dataset, and the small files that contain them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.disk import MAX_JSON_BYTES, parse_json, read_file
from dovetail.core.errors import StoreError
from dovetail.core.types import Array
from dovetail.episodes.lerobot import _meta, _tables
from dovetail.episodes.lerobot._commit import Staging
from dovetail.episodes.lerobot._layout import Layout
from dovetail.episodes.lerobot._meta import Meta
from dovetail.episodes.lerobot._stats import RunningStats, Stats, to_json

__all__ = ["FileSizes", "Totals", "frame_stats"]

_MAX_QUANTILE_ROWS = 200_000  # rows, evenly spaced, from which a dataset's quantiles are computed


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes:
    """Sizes from which new files are started."""

    data_mb: float = 100
    video_mb: float = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """State of a dataset, to which the next part of an export is added."""

    layout: Layout
    num_episodes: int = 0
    num_frames: int = 0
    num_files: int = 0  # of each kind
    tasks: tuple[str, ...] = ()
    ids: frozenset[str] = frozenset()
    data_files: tuple[Path, ...] = ()
    image_stats: Mapping[str, Mapping[str, Any]]  # by feature

    @staticmethod
    def of(meta: Meta, layout: Layout) -> Totals:
        if meta.info.get("chunks_size") != _meta.CHUNKS_SIZE:
            raise StoreError(f"{meta.root / _meta.INFO} was changed: chunks_size is no longer {_meta.CHUNKS_SIZE}")
        rows = meta.episodes()
        kinds = ["data", "meta/episodes", *(f"videos/{camera.feature}" for camera in layout.cameras)]
        numbers = [
            row[f"{kind}/chunk_index"] * _meta.CHUNKS_SIZE + row[f"{kind}/file_index"]
            for kind in kinds
            for row in rows
        ]
        tasks = meta.tasks()
        path = meta.root / _meta.STATS
        try:
            stats = parse_json(read_file(path, max_bytes=MAX_JSON_BYTES))
            image_stats = {camera.feature: stats[camera.feature] for camera in layout.cameras}
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
        return Totals(
            layout=layout,
            num_episodes=meta.num_episodes,
            num_frames=int(meta.info["total_frames"]),
            num_files=max(numbers, default=-1) + 1,
            tasks=tuple(tasks[index] for index in range(len(tasks))),
            ids=frozenset(row["dovetail/id"] for row in rows if row.get("dovetail/id")),
            data_files=tuple(dict.fromkeys(meta.data_file(row) for row in rows)),
            image_stats=image_stats,
        )

    def write(self, staging: Staging, sizes: FileSizes) -> None:
        """Stage the files that every part replaces."""
        features = self.layout.features()
        info = {
            "codebase_version": _meta.VERSION,
            "robot_type": self.layout.robot.embodiment,
            "total_episodes": self.num_episodes,
            "total_frames": self.num_frames,
            "total_tasks": len(self.tasks),
            "chunks_size": _meta.CHUNKS_SIZE,
            "data_files_size_in_mb": max(1, round(sizes.data_mb)),
            "video_files_size_in_mb": max(1, round(sizes.video_mb)),
            "fps": self.layout.fps,
            "splits": {"train": f"0:{self.num_episodes}"},
            "data_path": _meta.DATA,
            "video_path": _meta.VIDEO if self.layout.cameras else None,
            "features": features,
        }
        stats = to_json({**_dataset_stats(self.data_files, self.num_frames), **self.image_stats})
        ordered = {name: stats[name] for name in features}
        for name, body in (
            (_meta.INFO, info),
            (_meta.STATS, ordered),
            (_meta.LAYOUT, self.layout.to_json()),
        ):
            text = json.dumps(body, indent=4, ensure_ascii=False, allow_nan=False)
            staging.path(name).write_text(text, encoding="utf-8")
        _tables.write_table(staging.path(_meta.TASKS), _tables.tasks_table(self.tasks))


def _dataset_stats(data_files: Sequence[Path], num_frames: int) -> dict[str, Stats]:
    """Compute the statistics of every feature in the data files, one file at a time."""
    stride = max(1, -(-num_frames // _MAX_QUANTILE_ROWS))
    running: dict[str, RunningStats] = {}
    for path in data_files:
        table = _tables.read_table(path)
        for name in table.column_names:
            values = _tables.column(table, name)
            running.setdefault(name, RunningStats(stride=stride)).add(values.reshape(len(table), -1))
    return {name: stats.finish() for name, stats in running.items()}


def frame_stats(values: Array) -> Stats:
    """Compute the statistics of one feature in one episode, [T] or [T, D]."""
    stats = RunningStats()
    stats.add(np.asarray(values).reshape(len(values), -1))
    return stats.finish()
