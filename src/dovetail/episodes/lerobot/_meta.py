"""Metadata of a dataset: paths, totals, features, tasks and episodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.core.errors import StoreError, UsageError
from dovetail.episodes.lerobot import _tables
from dovetail.episodes.lerobot._layout import SCHEMA, Layout

__all__ = [
    "CHUNKS_SIZE",
    "DATA",
    "EPISODES",
    "INFO",
    "KEPT",
    "LAYOUT",
    "STATS",
    "TASKS",
    "VERSION",
    "VIDEO",
    "Meta",
]

VERSION = "v3.0"
CHUNKS_SIZE = 1000  # files per folder
INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
LAYOUT = "dovetail/dataset.json"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
KEPT = "dovetail/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """info.json, and the dataset's other small files on demand.

    Rows beyond the totals are ignored: they are from an export that was killed before it had committed.
    """

    root: Path
    info: Mapping[str, Any]

    @staticmethod
    def read(root: Path) -> Meta:
        path = root / INFO
        try:
            info = json.loads(path.read_bytes())
            version = str(info["codebase_version"])
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(f"{root} is not a LeRobot dataset: it has no {INFO}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
        if version != VERSION:
            older = version.startswith(("v1", "v2"))
            todo = (
                "Convert it with LeRobot's script lerobot.datasets.v30.convert_dataset_v21_to_v30."
                if older
                else "This version of Dovetail cannot read it."
            )
            raise UsageError(f"{root} is a LeRobot dataset of version {version}, not {VERSION}. {todo}")
        required = ("fps", "features", "total_episodes", "total_frames", "data_path")
        missing = [name for name in required if name not in info]
        if missing:
            raise StoreError(f"{path} lacks: {', '.join(missing)}")
        return Meta(root=root, info=info)

    @property
    def features(self) -> Mapping[str, Mapping[str, Any]]:
        features: Mapping[str, Mapping[str, Any]] = self.info["features"]
        return features

    @property
    def num_episodes(self) -> int:
        return int(self.info["total_episodes"])

    def layout(self) -> Layout | None:
        """Return the layout if Dovetail exported the dataset, otherwise None."""
        path = self.root / LAYOUT
        if not path.exists():
            return None
        try:
            data = json.loads(path.read_bytes())
            if data["schema"] != SCHEMA:
                raise UsageError(
                    f"{path} has schema {data['schema']}, but this version of Dovetail reads {SCHEMA}"
                )
            return Layout.from_json(data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error

    def tasks(self) -> dict[int, str]:
        return _tables.read_tasks(self.root / TASKS)

    def episodes(self, columns: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Return the rows of the episodes in order; by default all columns but the statistics."""
        rows: list[dict[str, Any]] = []
        for path in sorted((self.root / "meta" / "episodes").glob("*/*.parquet")):
            rows += _tables.read_table(path, columns or self._plain(path)).to_pylist()
        rows = sorted((row for row in rows if row["episode_index"] < self.num_episodes), key=_index)
        if [row["episode_index"] for row in rows] != list(range(self.num_episodes)):
            raise StoreError(
                f"{self.root / INFO} lists {self.num_episodes} episodes, but meta/episodes describes {len(rows)}"
            )
        return rows

    @staticmethod
    def _plain(path: Path) -> list[str]:
        names = _tables.read_schema(path).names
        return [name for name in names if not name.startswith("stats/")]

    def kept_files(self) -> list[Path]:
        return sorted((self.root / "dovetail" / "episodes").glob("*/*.parquet"))

    def data_file(self, row: Mapping[str, Any]) -> Path:
        return self._inside(
            self.info["data_path"], chunk_index=row["data/chunk_index"], file_index=row["data/file_index"]
        )

    def video_file(self, row: Mapping[str, Any], feature: str) -> Path:
        chunk, file = (row.get(f"videos/{feature}/{part}_index") for part in ("chunk", "file"))
        if chunk is None or file is None:
            raise StoreError(f"{self.root}: episode {row['episode_index']} has no video of {feature}")
        return self._inside(self.info["video_path"], video_key=feature, chunk_index=chunk, file_index=file)

    def _inside(self, pattern: str, **parts: Any) -> Path:
        """Refuse paths outside the dataset, which may come from an untrusted source."""
        path = self.root / pattern.format(**parts)
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise StoreError(f"{self.root / INFO} refers to a file outside the dataset: {path}")
        return path


def _index(row: Mapping[str, Any]) -> int:
    return int(row["episode_index"])
