"""The episode log: one immutable folder per episode.

    episodes/
      20260101T093000-123456789-panda-9f86d081c3a1/
        manifest.json       everything but the steps, with checksums of each file and of itself
        steps.parquet       one row per step; its schema contains a copy of the manifest
        last.parquet        one row: the last observation
        frames-<key>.mkv    one per camera: each distinct frame once; column `frame/<key>` refers to it
      .order                one line per commit, because clocks may jump (see `_order`)
      .tmp/                 files being written; the next writer removes what a crash has left

A folder appears by an atomic rename after all its files were fsynced, so readers never see half an episode. Then its
line is added to `.order`. If a crash prevents that, the episode is listed last and the next writer adds the line.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np

from dovetail.core.disk import check_file, fsync_folder, open_file, read_file, writer
from dovetail.core.errors import StoreError, UsageError, did_you_mean
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, Observation, Outcome, PromptChange, Purpose, Segment
from dovetail.episodes import _order
from dovetail.episodes._columns import FRAME, OBSERVATION, Columns
from dovetail.episodes._frames import ColorConverter, decode
from dovetail.episodes._image_memory import allocate_images
from dovetail.episodes._image_stream import ImageStream
from dovetail.episodes._manifest import (
    LAST,
    MANIFEST,
    SCHEMA,
    STEPS,
    content,
    episode_facts,
    episode_fields,
    expected_columns,
    layout_of,
    prompt_changes,
    read_manifest,
)
from dovetail.episodes._tables import from_parquet
from dovetail.episodes._write import write_episode
from dovetail.episodes.ids import check_episode_id
from dovetail.episodes.images import CameraInfo, ImageCodec

__all__ = ["EpisodeInfo", "EpisodeLog"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeInfo:
    """Summary of an episode from its manifest."""

    id: str
    task: str
    prompt: str
    robot: RobotSpec
    operator: str
    purpose: Purpose
    outcome: Outcome
    judgement: Outcome | None
    seed: int
    config_hash: str
    started_unix_ns: int
    boot_id: str
    number: int  # of the commit in this log
    num_steps: int
    num_human_steps: int
    num_interventions: int
    policy_versions: tuple[int, ...]
    cameras: tuple[str, ...]
    images: Mapping[str, CameraInfo]  # by camera
    num_bytes: int
    reset_s: float | None = None  # time of the reset before the first step, by the robot's clock; None: unknown
    has_success: bool = True  # False: the task does not detect success
    prompt_changes: tuple[PromptChange, ...] = ()  # `prompt` is that of the first step
    deterministic: bool | None = None  # without exploration noise; None: unknown

    @property
    def success(self) -> bool | None:
        return self.outcome.success(has_success=self.has_success)

    @property
    def duration_s(self) -> float:
        """Robot time: number of steps divided by the control rate."""
        return self.num_steps / self.robot.control_hz


class EpisodeLog:
    """Log of episodes with any number of readers. Writers in several processes wait for each other."""

    def __init__(self, folder: Path | str, *, images: ImageCodec | None = None) -> None:
        self._folder = Path(folder)
        self._images = images or ImageCodec()
        self._known_state: tuple[object, int] | None = (
            None  # state of `.order` after our last commit, newest number
        )

    def commit(self, episode: Episode, *, streams: Mapping[str, ImageStream] | None = None) -> None:
        """Store an episode durably. `streams` are the images of cameras that its segments lack.

        Committing the same episode again is harmless. A different episode with the same id is refused. So is the same
        episode if the stored one was damaged, so that the sender keeps its copy.
        """
        target = self._folder / check_episode_id(episode.id)
        columns = Columns.of(episode, streams)
        facts = episode_facts(episode, columns)
        digest = content(facts)
        with writer(self._folder) as temporary:
            newest = self._newest(temporary)
            if target.is_symlink():  # it is no episode, and would be in the way forever
                target.unlink()
            if target.exists():
                if self._manifest(episode.id)["content"] != digest:
                    raise StoreError(f"episode {episode.id} is already in {self._folder} with different content")
                self.verify(episode.id)
                fsync_folder(self._folder)  # a crash may have prevented it in the first commit
                return
            staged = temporary / episode.id
            staged.mkdir()
            # no part of the content: the time of a reset is measured, and other versions do not store these facts
            description = {"schema": SCHEMA, "content": digest, "number": newest + 1, **facts}
            description |= {"reset_s": episode.reset_s, "has_success": episode.has_success}
            write_episode(staged, description, columns, codec=self._images)
            os.rename(staged, target)
            fsync_folder(self._folder)
            _order.append(self._folder, _order.line(newest + 1, episode.id))
            self._known_state = (_order.file_state(self._folder), newest + 1)

    def remove(self, episode_id: str) -> None:
        """Remove an episode permanently. It is removed once `.order` says so; after a crash the next writer deletes it.

        Of a link, which is no episode, only the link is removed.
        """
        linked = (self._folder / check_episode_id(episode_id)).is_symlink()
        if episode_id not in self and not linked:
            raise UsageError(f"cannot remove episode {episode_id}: it is not in {self._folder}")
        with writer(self._folder) as temporary:
            self._finish_interrupted(temporary)
            if linked:
                (self._folder / episode_id).unlink()
            number = _order.read(self._folder).numbers.get(episode_id, 0)
            _order.append(self._folder, _order.line(number, episode_id, removed=True))
            self._finish_interrupted(temporary)

    def ids(self) -> list[str]:
        """Return the ids of all episodes in the order of their commits."""
        return _order.read(self._folder).sort(_order.list_episodes(self._folder))

    def __contains__(self, episode_id: str) -> bool:
        return _is_folder(self._folder / check_episode_id(episode_id))

    def manifest(self, episode_id: str) -> EpisodeInfo:
        """Return the summary of an episode. Reads one small file."""
        data = self._manifest(episode_id)
        files, cameras = data["files"], data["cameras"]
        return EpisodeInfo(
            **episode_fields(data),
            number=data["number"],
            num_steps=data["num_steps"],
            num_human_steps=data["num_human_steps"],
            num_interventions=data["num_interventions"],
            policy_versions=tuple(data["policy_versions"]),
            cameras=tuple(cameras),
            images={key: _camera_info(camera, files) for key, camera in cameras.items()},
            num_bytes=sum(file["num_bytes"] for file in files.values()),
            prompt_changes=prompt_changes(data),
        )

    def load(self, episode_id: str, *, images: bool = True) -> Episode:
        """Load an episode with its segments merged into one. Every file is verified before it is used.

        With `images=False` the steps and the last observation lack the cameras, whose files are not read.
        """
        manifest = self._manifest(episode_id)
        steps, last = (self._table(episode_id, name, manifest) for name in (STEPS, LAST))
        values = {
            name.removeprefix(OBSERVATION): column[0]
            for name, column in last.items()
            if name.startswith(OBSERVATION)
        }
        for key in manifest["cameras"]:
            rows = [*steps.pop(FRAME + key), *last[FRAME + key]]
            if images:
                pictures = self._load_pictures(episode_id, key, manifest, rows)
                steps[OBSERVATION + key], values[key] = pictures[:-1], pictures[-1]
        segment = Segment(
            episode_id=episode_id,
            first=0,
            final=True,
            columns=steps,
            last_observation=Observation(time_ns=manifest["last_time_ns"], values=values),
            prompt_changes=prompt_changes(manifest),
        )
        return Episode(**episode_fields(manifest), segments=(segment,))

    def frames(self, episode_id: str, camera: str) -> Iterator[Array]:
        """Yield the T + 1 images [H, W, C] of a camera, including that of the last observation. They are read-only.

        The file is verified first and then decoded frame by frame.
        """
        manifest, rows = self._rows_of(episode_id, camera)
        return self._pictures(episode_id, camera, manifest, rows)

    def images(self, episode_id: str, camera: str) -> Array:
        """The T + 1 images of a camera in one array, [T + 1, H, W, C]."""
        manifest, rows = self._rows_of(episode_id, camera)
        return self._load_pictures(episode_id, camera, manifest, rows)

    def _rows_of(self, episode_id: str, camera: str) -> tuple[dict[str, Any], list[int]]:
        """The manifest, and the index of the frame that each row shows."""
        manifest = self._manifest(episode_id)
        if camera not in manifest["cameras"]:
            raise UsageError(
                f"episode {episode_id} has no images of camera '{camera}'."
                + did_you_mean(camera, manifest["cameras"])
            )
        index = FRAME + camera
        tables = (self._table(episode_id, name, manifest, only=[index]) for name in (STEPS, LAST))
        return manifest, [row for table in tables for row in table[index].tolist()]

    def verify(self, episode_id: str) -> None:
        """Read every file of an episode. Raises StoreError for the first damaged or unexpected one."""
        manifest = self._manifest(episode_id)
        folder = self._folder / episode_id
        with self._with_repair_hint(episode_id):
            for name, file in manifest["files"].items():
                check_file(folder / name, checksum=file["sha256"])
            unexpected = {path.name for path in folder.iterdir()} - {MANIFEST, *manifest["files"]}
            if unexpected:
                raise StoreError(f"{folder / min(unexpected)} is not part of the episode")

    def _newest(self, temporary: Path) -> int:
        """Return the newest commit's number. Reads `.order` only if another writer has changed it."""
        known_state, self._known_state = self._known_state, None  # until this commit succeeds
        if known_state is not None and known_state[0] == _order.file_state(self._folder):
            return known_state[1]
        return self._finish_interrupted(temporary)

    def _finish_interrupted(self, temporary: Path) -> int:
        """Finish commits and removals that a crash has interrupted; returns the newest commit's number."""
        order = _order.read(self._folder)
        lines: list[bytes] = []
        for episode_id in _order.list_episodes(self._folder):
            if episode_id in order.removed:
                os.rename(self._folder / episode_id, temporary / f".{episode_id}")  # emptied at the end
                fsync_folder(self._folder)
            elif episode_id not in order.numbers:
                with contextlib.suppress(StoreError):  # `verify` reports episodes with damaged manifests
                    number = int(read_manifest(self._folder / episode_id)["number"])
                    lines.append(_order.line(number, episode_id))
                    order.newest = max(order.newest, number)
        if lines:
            _order.append(self._folder, *lines)
        return order.newest

    def _manifest(self, episode_id: str) -> dict[str, Any]:
        folder = self._folder / check_episode_id(episode_id)
        if not _is_folder(folder):
            raise StoreError(f"there is no episode {episode_id} in {self._folder}")
        with self._with_repair_hint(episode_id):
            return read_manifest(folder)

    def _read(self, episode_id: str, name: str, manifest: Mapping[str, Any]) -> bytes:
        with self._with_repair_hint(episode_id):
            return read_file(self._folder / episode_id / name, checksum=manifest["files"][name]["sha256"])

    def _table(
        self, episode_id: str, name: str, manifest: Mapping[str, Any], *, only: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Read a table, and check that it has the columns and rows that the manifest describes."""
        num_rows = manifest["num_steps"] if name == STEPS else 1
        expected = expected_columns(name, manifest) if only is None else only
        with self._with_repair_hint(episode_id):
            try:
                found = from_parquet(self._read(episode_id, name, manifest), only=only)
            except ValueError as error:
                raise StoreError(f"{self._folder / episode_id / name} cannot be read: {error}") from error
            wrong = [column for column in expected if column not in found or len(found[column]) != num_rows]
            if wrong or (only is None and len(expected) != len(found)):
                what = f"column '{wrong[0][:80]}'" if wrong else "a column too many"
                raise StoreError(f"{self._folder / episode_id / name} does not fit its manifest: {what}")
        return found

    @contextlib.contextmanager
    def _with_repair_hint(self, episode_id: str) -> Iterator[None]:
        """Add to errors about a damaged episode what the user can do."""
        try:
            yield
        except StoreError as error:
            run = self._folder.parent
            what = str(error).rstrip(".")
            raise StoreError(
                f"{what}. Run `dovetail episodes verify {run}` to see what can be recovered, or remove the episode with "
                f"`dovetail episodes rm {run} {episode_id}`."
            ) from error

    def _load_pictures(self, episode_id: str, key: str, manifest: Mapping[str, Any], rows: list[int]) -> Array:
        """The images of all rows, [N, H, W, C]."""
        decoded, camera = self._pictures(episode_id, key, manifest, rows), manifest["cameras"][key]
        path = self._folder / episode_id / camera["file"]
        with self._with_repair_hint(episode_id):
            loaded = allocate_images(
                len(rows), camera["shape"], camera["dtype"], num_stored_bytes=path.stat().st_size, name=str(path)
            )
        for row, picture in enumerate(decoded):
            loaded[row] = picture
        return loaded

    def _pictures(
        self, episode_id: str, key: str, manifest: Mapping[str, Any], rows: list[int]
    ) -> Iterator[Array]:
        """Verify a camera's file, then decode it row by row."""
        camera = manifest["cameras"][key]
        path = self._folder / episode_id / camera["file"]
        with self._with_repair_hint(episode_id):
            check_file(path, checksum=manifest["files"][camera["file"]]["sha256"])
        return _expand(path, camera, rows)


def _is_folder(path: Path) -> bool:
    """Whether it is an episode's folder, and not a link to one elsewhere."""
    return path.is_dir() and not path.is_symlink()


def _expand(path: Path, camera: Mapping[str, Any], rows: list[int]) -> Iterator[Array]:
    """Yield the frame of each row. The frame indices of the rows never decrease."""
    converter, num_frames = ColorConverter(layout_of(camera)), camera["num_frames"]
    try:
        with open_file(path) as file:
            row = 0
            for count, picture in enumerate(decode(file, num_frames=num_frames)):
                frame = converter.pixels(picture)
                frame.flags.writeable = False  # several rows may share it
                while row < len(rows) and rows[row] == count:
                    yield frame
                    row += 1
            if row != len(rows):
                raise ValueError(f"row {row} refers to frame {rows[row]}, but there are {num_frames} frames")
    except (av.FFmpegError, ValueError) as error:
        raise StoreError(f"{path} cannot be decoded: {error}") from error


def _camera_info(camera: Mapping[str, Any], files: Mapping[str, Any]) -> CameraInfo:
    shape = tuple(camera["shape"])
    return CameraInfo(
        codec=camera["codec"],
        num_frames=camera["num_frames"],
        shape=shape,
        dtype=camera["dtype"],
        num_bytes=files[camera["file"]]["num_bytes"],
        raw_bytes=camera["num_frames"] * int(np.prod(shape)) * np.dtype(camera["dtype"]).itemsize,
        psnr_db=camera["psnr_db"],
    )
