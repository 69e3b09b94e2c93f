"""Metadata of a dataset: paths, totals, features, tasks and episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.core.disk import MAX_JSON_BYTES, MissingError, check_folder, parse_json, read_file
from dovetail.core.errors import SpecMismatch, StoreError, UsageError, shown
from dovetail.core.types import Purpose
from dovetail.episodes.lerobot import _rows, _tables, _v21
from dovetail.episodes.lerobot._checks import MAX_EPISODES, check_info, check_row, fill
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

VERSION = "v3.0"  # of exports
_ONE_FILE_PER_EPISODE = "v2.1"
_CONVERTERS = {  # LeRobot 0.3 has these
    "v2.0": "lerobot.datasets.v21.convert_dataset_v20_to_v21",
    "v1.": "lerobot.datasets.v2.convert_dataset_v1_to_v2, then lerobot.datasets.v21.convert_dataset_v20_to_v21",
}
_MAX_ROWS_BYTES = 32 << 20  # as Python objects, rows take several times as much
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
            if root.is_dir():
                check_folder(root)
            info = parse_json(read_file(path, max_bytes=MAX_JSON_BYTES))
            version = str(info["codebase_version"])[:80]
        except MissingError as error:
            raise UsageError(f"{root} is not a LeRobot dataset: it has no {INFO}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
        if version not in (VERSION, _ONE_FILE_PER_EPISODE):
            scripts = [script for prefix, script in _CONVERTERS.items() if version.startswith(prefix)]
            todo = (
                f"Convert it with the script {scripts[0]} of LeRobot 0.3."
                if scripts
                else f"Convert it to {VERSION} with the LeRobot that wrote it, or update Dovetail."
            )
            raise UsageError(
                f"{root} is a LeRobot dataset of version {version}, but Dovetail reads {_ONE_FILE_PER_EPISODE} and "
                f"{VERSION}. {todo}"
            )
        required = ("fps", "features", "total_episodes", "total_frames", "data_path")
        missing = [name for name in required if name not in info]
        if missing:
            raise StoreError(f"{path} lacks: {', '.join(missing)}")
        check_info(info, name=str(path))
        return Meta(root=root, info=info)

    @property
    def has_file_per_episode(self) -> bool:
        """Whether it is of v2.1. Dovetail exports v3.0 only."""
        return bool(self.info["codebase_version"] == _ONE_FILE_PER_EPISODE)

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
        if self.has_file_per_episode or not path.exists():
            return None
        try:
            data = parse_json(read_file(path, max_bytes=MAX_JSON_BYTES))
            if data["schema"] != SCHEMA:
                raise UsageError(
                    f"{path} has schema {shown(data['schema'])}, but this version of Dovetail reads {SCHEMA}"
                )
            return Layout.from_json(data)
        except (AttributeError, ValueError, KeyError, TypeError, SpecMismatch) as error:
            raise StoreError(f"{path} cannot be read: {' '.join(str(error).split())[:300]}") from error

    def tasks(self) -> dict[int, str]:
        if self.has_file_per_episode:
            return _v21.read_tasks(self.root)
        return _tables.read_tasks(self.root / TASKS)

    def episodes(self, columns: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Return the rows of the episodes in order; by default all columns but the statistics."""
        rows = self._described() if self.has_file_per_episode else self._tabulated(columns)
        rows = sorted((row for row in rows if row["episode_index"] < self.num_episodes), key=_index)
        if [row["episode_index"] for row in rows] != [*range(min(self.num_episodes, len(rows) + 1))]:
            raise StoreError(
                f"{self.root / INFO} lists {self.num_episodes} episodes, but meta/episodes describes {len(rows)}"
            )
        return rows

    def _described(self) -> list[dict[str, Any]]:
        rows = _v21.read_episodes(self.root, self.info)
        for row in rows:
            check_row(row, name=str(self.root / "meta/episodes.jsonl"))
        return rows

    def _tabulated(self, columns: Iterable[str] | None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for path in sorted((self.root / "meta" / "episodes").glob("*/*.parquet")):
            table = _tables.read_table(path, columns or self._plain(path))
            if len(rows) + len(table) > MAX_EPISODES or table.nbytes > _MAX_ROWS_BYTES:
                raise StoreError(f"{path} describes too many episodes: {len(table)} rows, {table.nbytes} bytes")
            found = table.to_pylist()
            for row in found:
                check_row(row, name=str(path))
            rows += found
        return rows

    @staticmethod
    def _plain(path: Path) -> list[str]:
        names = _tables.read_schema(path).names
        return [name for name in names if not name.startswith("stats/")]

    def kept_files(self) -> list[Path]:
        if self.has_file_per_episode:
            return []
        return sorted((self.root / "dovetail" / "episodes").glob("*/*.parquet"))

    def purposes(self) -> set[Purpose]:
        """The purposes of the episodes that Dovetail exported."""
        texts = (
            text
            for path in self.kept_files()
            for text in _tables.read_table(path, ["episode"])["episode"].to_pylist()
        )
        return {_rows.parse_facts(text)[0]["purpose"] for text in texts}

    def own_tasks(self) -> set[str]:
        """The tasks of the episodes that Dovetail exported."""
        tasks = set()
        for path in self.kept_files():
            try:
                for row in _tables.read_table(path, ["episode_index", "episode"]).to_pylist():
                    if row["episode_index"] < self.num_episodes:
                        tasks.add(str(_rows.parse_facts(row["episode"])[0]["task"]))
            except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                raise StoreError(f"{path} is not valid: {reason}") from error
        return tasks

    def data_file(self, row: Mapping[str, Any]) -> Path:
        return self._inside(self.info["data_path"], **self._place(row["data/chunk_index"], row["data/file_index"]))

    def video_file(self, row: Mapping[str, Any], feature: str) -> Path:
        chunk, file = (row.get(f"videos/{feature}/{part}_index") for part in ("chunk", "file"))
        if chunk is None or file is None:
            raise StoreError(f"{self.root}: episode {row['episode_index']} has no video of {feature}")
        return self._inside(str(self.info.get("video_path")), video_key=feature, **self._place(chunk, file))

    def _place(self, chunk: int, file: int) -> dict[str, int]:
        """The fields of a path, by the names that its version has for them."""
        if self.has_file_per_episode:
            return {"episode_chunk": chunk, "episode_index": file}
        return {"chunk_index": chunk, "file_index": file}

    def _inside(self, pattern: str, **parts: Any) -> Path:
        """Refuse paths outside the dataset, which may come from an untrusted source."""
        path = self.root / fill(pattern, parts, name=str(self.root / INFO))
        if ".." in path.parts or not path.is_relative_to(self.root) or "\0" in str(path):
            raise StoreError(f"{self.root / INFO} refers to a file outside the dataset: {str(path)[:300]!r}")
        return path


def _index(row: Mapping[str, Any]) -> int:
    return int(row["episode_index"])
