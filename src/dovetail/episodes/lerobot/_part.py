"""One part of an export: a data file, a video per camera and a file of episodes, committed together."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.core.errors import StoreError
from dovetail.core.types import Array, Episode, Labels
from dovetail.episodes.lerobot import _meta, _rows, _tables
from dovetail.episodes.lerobot._commit import Staging
from dovetail.episodes.lerobot._depth import depth_file, write_depth
from dovetail.episodes.lerobot._layout import Camera
from dovetail.episodes.lerobot._stats import ImageStats, Stats, merge_image_stats
from dovetail.episodes.lerobot._totals import FileSizes, Totals, frame_stats
from dovetail.episodes.lerobot._video import VideoWriter, as_rgb

__all__ = ["Part", "Pictures"]

# LeRobot compares times in float32 with a tolerance of 0.1 ms. After 1024 s into a file it may refuse existing frames.
_MAX_FILE_S = 1000.0
_MEGABYTE = 1024 * 1024
_BUFFER_BYTES = 1 << 16  # Parquet is written in pieces of a few bytes


class Pictures(Protocol):
    """Frames of one episode by camera: one per step, and that of the last observation."""

    def of(self, camera: str) -> Iterator[Array]: ...


class Part:
    """Collects episodes one at a time; `commit` adds all of them to the dataset, or none."""

    def __init__(self, staging: Staging, totals: Totals, sizes: FileSizes) -> None:
        self._staging, self._before, self._sizes = staging, totals, sizes
        self._layout = layout = totals.layout
        self._features = layout.features()
        self._schema = _tables.data_schema(self._features)
        self._tasks = list(totals.tasks)
        self._num_frames = totals.num_frames
        self._rows: list[dict[str, Any]] = []
        self._kept: list[dict[str, Any]] = []
        self._image_stats: dict[str, list[Mapping[str, Any]]] = {
            camera.feature: [totals.image_stats[camera.feature]] if totals.image_stats else []
            for camera in layout.cameras
        }
        self._chunk, self._file = divmod(totals.num_files, _meta.CHUNKS_SIZE)
        self._data_file = staging.path(self._name(_meta.DATA))
        self._sink = pa.BufferedOutputStream(pa.OSFile(str(self._data_file), "wb"), _BUFFER_BYTES)
        self._data = pq.ParquetWriter(self._sink, self._schema)
        self._videos: dict[Camera, VideoWriter] = {}
        try:
            for camera in layout.cameras:
                path = staging.path(self._name(_meta.VIDEO, video_key=camera.feature))
                self._videos[camera] = VideoWriter(path, size=camera.padded, fps=layout.fps, codec=layout.codec)
        except BaseException:
            self.close()
            raise
        self._largest = [0] * (1 + len(self._videos))  # most bytes that an episode has added to each file
        self._longest = 0

    def _name(self, pattern: str, video_key: str = "") -> str:
        return pattern.format(chunk_index=self._chunk, file_index=self._file, video_key=video_key)

    def add(self, episode: Episode, pictures: Pictures, labels: Labels | None) -> None:
        num_steps = len(episode)
        before = self._num_bytes()
        columns = self._columns(episode, labels)
        self._data.write_table(_tables.data_table(self._schema, columns))
        stats = {name: frame_stats(columns[name].astype(self._dtype(name))) for name in self._schema.names}
        row: dict[str, Any] = {
            "episode_index": self._before.num_episodes + len(self._rows),
            "tasks": list(dict.fromkeys(_tasks(episode))),
            "length": num_steps,
            "dataset_from_index": self._num_frames,
            "dataset_to_index": self._num_frames + num_steps,
            "dovetail/id": episode.id,
        }
        for kind in ("data", "meta/episodes", *(f"videos/{camera.feature}" for camera in self._videos)):
            row |= {f"{kind}/chunk_index": self._chunk, f"{kind}/file_index": self._file}
        for camera, video in self._videos.items():
            first = video.num_frames
            row[f"videos/{camera.feature}/from_timestamp"] = first / self._layout.fps
            row[f"videos/{camera.feature}/to_timestamp"] = (first + num_steps) / self._layout.fps
            stats[camera.feature] = self._encode(episode, camera, video, pictures)
            self._image_stats[camera.feature].append(stats[camera.feature])
        self._kept.append(
            {
                "episode_index": row["episode_index"],
                "id": episode.id,
                "episode": _rows.episode_facts(episode),
                "robot": json.dumps(episode.robot.to_json()),
                "labels": _rows.labels_facts(labels),
                "arrays": _tables.pack(
                    {
                        **_rows.kept_arrays(episode, self._layout),
                        **self._write_depths(episode, row["episode_index"], pictures),
                    }
                ),
            }
        )
        self._rows.append({**row, **_tables.stats_row(stats)})
        self._num_frames += num_steps
        added = (after - size for size, after in zip(before, self._num_bytes(), strict=True))
        self._largest = [max(pair) for pair in zip(self._largest, added, strict=True)]
        self._longest = max(self._longest, num_steps + 1)

    def _columns(self, episode: Episode, labels: Labels | None) -> dict[str, Array]:
        steps = np.arange(len(episode))
        task_index = np.zeros_like(steps)
        for first, task in zip(
            (0, *(change.step for change in episode.prompt_changes)), _tasks(episode), strict=True
        ):
            if task not in self._tasks:
                self._tasks.append(task)
            task_index[first:] = self._tasks.index(task)
        return {
            **_rows.features_of(episode, self._layout, labels),
            "episode_index": np.full_like(steps, self._before.num_episodes + len(self._rows)),
            "index": self._num_frames + steps,
            "task_index": task_index,
        }

    def _dtype(self, feature: str) -> str:
        return str(self._features[feature]["dtype"])

    def _encode(self, episode: Episode, camera: Camera, video: VideoWriter, pictures: Pictures) -> Stats:
        """Encode all frames of one camera. LeRobot does not read the last observation's frame, which comes last."""
        num_steps, count = len(episode), 0
        stats = ImageStats(num_steps)
        for frame in pictures.of(camera.key):
            if frame.shape != camera.shape or frame.dtype != np.uint8:
                raise StoreError(
                    f"episode {episode.id}: a frame of '{camera.key}' is {frame.dtype}{list(frame.shape)}, "
                    f"but its spec says uint8{list(camera.shape)}"
                )
            rgb = as_rgb(frame, camera.padded)
            video.add(rgb)
            if count < num_steps:
                stats.add(rgb)
            count += 1
        if count != num_steps + 1:
            raise StoreError(
                f"episode {episode.id} has {count} frames of '{camera.key}', expected {num_steps + 1}"
            )
        return stats.finish()

    def _write_depths(self, episode: Episode, index: int, pictures: Pictures) -> dict[str, Array]:
        """Write the depth images of an episode; return the frame of each row."""
        found: dict[str, Array] = {}
        for key, name in self._layout.depth_names.items():
            spec = self._layout.robot.observation[key]
            numbers = write_depth(self._staging.path(depth_file(name, index)), pictures.of(key), spec)
            if len(numbers) != len(episode) + 1:
                raise StoreError(
                    f"episode {episode.id} has {len(numbers)} frames of '{key}', expected {len(episode) + 1}"
                )
            found[f"depth/{name}"] = numbers
        return found

    def _num_bytes(self) -> list[int]:
        return [self._sink.tell(), *(video.num_bytes for video in self._videos.values())]

    @property
    def is_full(self) -> bool:
        """Whether another episode as large as the largest so far might not fit."""
        data, *videos = (sum(pair) / _MEGABYTE for pair in zip(self._num_bytes(), self._largest, strict=True))
        num_frames = max((video.num_frames + self._longest for video in self._videos.values()), default=0)
        return (
            data > self._sizes.data_mb
            or max(videos, default=0) > self._sizes.video_mb
            or num_frames / self._layout.fps > _MAX_FILE_S
        )

    def close(self) -> None:
        """Close all files, also after an error. Uncommitted ones are deleted with the staging folder."""
        with contextlib.ExitStack() as stack:
            for video in self._videos.values():
                stack.callback(video.close)
            stack.callback(self._sink.close)
            stack.callback(self._close_data)

    def _close_data(self) -> None:
        try:
            self._data.close()
        finally:
            self._data.is_open = False  # else its destructor tries again

    def commit(self) -> Totals:
        self.close()
        schema = _tables.episodes_schema(self._features)
        for pattern, rows, columns in (
            (_meta.EPISODES, self._rows, schema),
            (_meta.KEPT, self._kept, _tables.KEPT),
        ):
            _tables.write_table(self._staging.path(self._name(pattern)), pa.Table.from_pylist(rows, columns))
        before = self._before
        totals = replace(
            before,
            num_episodes=before.num_episodes + len(self._rows),
            num_frames=self._num_frames,
            num_files=before.num_files + 1,
            tasks=tuple(self._tasks),
            ids=before.ids | {row["dovetail/id"] for row in self._rows},
            data_files=(*before.data_files, self._data_file),
            image_stats={feature: merge_image_stats(parts) for feature, parts in self._image_stats.items()},
        )
        totals.write(self._staging, self._sizes)
        self._staging.commit()
        return replace(totals, data_files=(*before.data_files, self._staging.folder / self._name(_meta.DATA)))


def _tasks(episode: Episode) -> list[str]:
    """The prompt at the start and after each change of it."""
    return [prompt or episode.task for prompt in (episode.prompt, *(c.prompt for c in episode.prompt_changes))]
