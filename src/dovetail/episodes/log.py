"""The episode log: one folder per episode, immutable once it is there.

    episodes/
      20260101T093000-123456789-panda-9f86d081c3a1/
        manifest.json       everything but the steps; a checksum of each file, and of itself
        steps.parquet       one row a step; in its schema all that the manifest says, should that be damaged
        last.parquet        one row: the last observation
        frames-<key>.mkv    one per camera: each distinct frame once; rows point in (`frame/<key>`)
      .order                one line per commit, so that a jumping clock changes no order (see `_order`)
      .tmp/                 what is being written; what a crash left is removed by the next writer

A folder appears by an atomic rename after everything in it was fsynced, so a reader never meets half an episode.
Its line in `.order` follows. An episode that a crash has left without one is listed last, and gets its line from the
next writer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np

from dovetail.core.disk import check_file, fsync_folder, read_file, writer
from dovetail.core.errors import StoreError, UsageError, did_you_mean
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, Observation, Outcome, Purpose, Segment
from dovetail.episodes import _order
from dovetail.episodes._columns import FRAME, OBSERVATION, Columns
from dovetail.episodes._frames import Colours, decode
from dovetail.episodes._manifest import (
    LAST,
    MANIFEST,
    SCHEMA,
    STEPS,
    content,
    facts_of,
    head,
    layout_of,
    read_manifest,
)
from dovetail.episodes._tables import from_parquet
from dovetail.episodes._write import write_episode
from dovetail.episodes.ids import check_episode_id
from dovetail.episodes.images import CameraInfo, ImageCodec

__all__ = ["EpisodeInfo", "EpisodeLog"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeInfo:
    """What a list of episodes shows: the manifest, without reading a step."""

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
    number: int  # which commit of this log it was
    num_steps: int
    num_human_steps: int
    num_interventions: int
    policy_versions: tuple[int, ...]
    cameras: tuple[str, ...]
    images: Mapping[str, CameraInfo]  # by camera
    num_bytes: int

    @property
    def duration_s(self) -> float:
        """Robot time: steps at the robot's control rate."""
        return self.num_steps / self.robot.control_hz


class EpisodeLog:
    """Write once, read many. Any number of readers; writers, in any process, take turns."""

    def __init__(self, folder: Path | str, *, images: ImageCodec | None = None) -> None:
        self._folder = Path(folder)
        self._images = images or ImageCodec()
        self._settled: tuple[object, int] | None = None  # `.order` as this writer left it, and its newest number

    def commit(self, episode: Episode) -> None:
        """Make an episode durable; once this returns, it survives anything that is killed.

        Doing it again is harmless, also where images lose something. A different episode of the same id is refused,
        and so is the same one if what lies on disk has been damaged since: the sender must not think it safe.
        """
        target = self._folder / check_episode_id(episode.id)
        columns = Columns.of(episode)
        facts = facts_of(episode, columns)
        digest = content(facts)
        with writer(self._folder) as temporary:
            newest = self._newest(temporary)
            if target.exists():
                if self._manifest(episode.id)["content"] != digest:
                    raise StoreError(f"episode {episode.id} is already in {self._folder}, with other content")
                self.verify(episode.id)
                fsync_folder(self._folder)  # the first commit may have died before it came here
                return
            staged = temporary / episode.id
            staged.mkdir()
            told = {"schema": SCHEMA, "content": digest, "number": newest + 1, **facts}
            write_episode(staged, told, columns, codec=self._images)
            os.rename(staged, target)
            fsync_folder(self._folder)
            _order.append(self._folder, _order.line(newest + 1, episode.id))
            self._settled = (_order.mark(self._folder), newest + 1)

    def remove(self, episode_id: str) -> None:
        """Take an episode out for good. It is gone once its line says so; a crash after that is made good later."""
        if not (self._folder / check_episode_id(episode_id)).is_dir():
            raise UsageError(f"there is no episode {episode_id} in {self._folder} to remove")
        with writer(self._folder) as temporary:
            self._settle(temporary)
            number = _order.read(self._folder).numbers.get(episode_id, 0)
            _order.append(self._folder, _order.line(number, episode_id, removed=True))
            self._settle(temporary)

    def ids(self) -> list[str]:
        """Ids of all committed episodes, in the order of their commits."""
        return _order.read(self._folder).sort(_order.listed(self._folder))

    def __contains__(self, episode_id: str) -> bool:
        return (self._folder / check_episode_id(episode_id)).is_dir()

    def manifest(self, episode_id: str) -> EpisodeInfo:
        """The summary of an episode: one small file is read."""
        data = self._manifest(episode_id)
        files, cameras = data["files"], data["cameras"]
        return EpisodeInfo(
            **head(data),
            number=data["number"],
            num_steps=data["num_steps"],
            num_human_steps=data["num_human_steps"],
            num_interventions=data["num_interventions"],
            policy_versions=tuple(data["policy_versions"]),
            cameras=tuple(cameras),
            images={key: _camera_info(camera, files) for key, camera in cameras.items()},
            num_bytes=sum(file["num_bytes"] for file in files.values()),
        )

    def load(self, episode_id: str, *, images: bool = True) -> Episode:
        """An episode as it was committed, its segments merged into one; every file read is verified first.

        Without `images` the camera columns are left out of the steps and the last observation, and their
        files are neither read nor verified.
        """
        manifest = self._manifest(episode_id)
        steps, last = (from_parquet(self._read(episode_id, name, manifest)) for name in (STEPS, LAST))
        values = {
            name.removeprefix(OBSERVATION): column[0]
            for name, column in last.items()
            if name.startswith(OBSERVATION)
        }
        for key in manifest["cameras"]:
            rows = [*steps.pop(FRAME + key), *last[FRAME + key]]
            if images:
                camera = manifest["cameras"][key]
                pictures = np.empty((len(rows), *camera["shape"]), camera["dtype"])
                for row, picture in enumerate(self._pictures(episode_id, key, manifest, rows)):
                    pictures[row] = picture
                steps[OBSERVATION + key], values[key] = pictures[:-1], pictures[-1]
        segment = Segment(
            episode_id=episode_id,
            first=0,
            final=True,
            columns=steps,
            last_observation=Observation(time_ns=manifest["last_time_ns"], values=values),
        )
        return Episode(**head(manifest), segments=(segment,))

    def frames(self, episode_id: str, camera: str) -> Iterator[Array]:
        """What a camera saw, row by row, the last observation's image included: T + 1 of [H, W, C], read-only.

        One at a time: neither the file nor the frames are ever held as a whole. It is verified before the first.
        """
        manifest = self._manifest(episode_id)
        if camera not in manifest["cameras"]:
            raise UsageError(
                f"episode {episode_id} has no images of camera '{camera}'."
                + did_you_mean(camera, manifest["cameras"])
            )
        index = FRAME + camera
        tables = (self._read(episode_id, name, manifest) for name in (STEPS, LAST))
        rows = [row for table in tables for row in from_parquet(table, only=[index])[index].tolist()]
        return self._pictures(episode_id, camera, manifest, rows)

    def verify(self, episode_id: str) -> None:
        """Read every file of an episode; the first that is not as written is named by a StoreError."""
        manifest = self._manifest(episode_id)
        folder = self._folder / episode_id
        with self._saying_what_to_do(episode_id):
            for name, file in manifest["files"].items():
                check_file(folder / name, checksum=file["sha256"])
            strangers = {path.name for path in folder.iterdir()} - {MANIFEST, *manifest["files"]}
            if strangers:
                raise StoreError(f"{folder / min(strangers)} is not part of the episode")

    def _newest(self, temporary: Path) -> int:
        """The newest commit's number. Only if somebody else has written since is there anything to look through."""
        settled, self._settled = self._settled, None  # until this commit is through
        if settled is not None and settled[0] == _order.mark(self._folder):
            return settled[1]
        return self._settle(temporary)

    def _settle(self, temporary: Path) -> int:
        """Finish what a crash has left undone in `.order` and beside it; returns the newest commit's number."""
        order = _order.read(self._folder)
        lines: list[bytes] = []
        for episode_id in _order.listed(self._folder):
            if episode_id in order.removed:
                os.rename(self._folder / episode_id, temporary / f".{episode_id}")  # emptied at the end
                fsync_folder(self._folder)
            elif episode_id not in order.numbers:
                with contextlib.suppress(StoreError):  # what has no number to read is for `verify` to tell
                    number = int(read_manifest(self._folder / episode_id)["number"])
                    lines.append(_order.line(number, episode_id))
                    order.newest = max(order.newest, number)
        if lines:
            _order.append(self._folder, *lines)
        return order.newest

    def _manifest(self, episode_id: str) -> dict[str, Any]:
        folder = self._folder / check_episode_id(episode_id)
        if not folder.is_dir():
            raise StoreError(f"there is no episode {episode_id} in {self._folder}")
        with self._saying_what_to_do(episode_id):
            return read_manifest(folder)

    def _read(self, episode_id: str, name: str, manifest: Mapping[str, Any]) -> bytes:
        with self._saying_what_to_do(episode_id):
            return read_file(self._folder / episode_id / name, checksum=manifest["files"][name]["sha256"])

    @contextlib.contextmanager
    def _saying_what_to_do(self, episode_id: str) -> Iterator[None]:
        """Whoever meets a damaged episode, by whatever command, is told the two ways on."""
        try:
            yield
        except StoreError as error:
            run = self._folder.parent
            raise StoreError(
                f"{error}: see what is left of it with `dovetail episodes verify {run}`, or give it up with "
                f"`dovetail episodes rm {run} {episode_id}`"
            ) from error

    def _pictures(
        self, episode_id: str, key: str, manifest: Mapping[str, Any], rows: list[int]
    ) -> Iterator[Array]:
        """Verify a camera's file, then decode it as its rows are asked for."""
        camera = manifest["cameras"][key]
        path = self._folder / episode_id / camera["file"]
        with self._saying_what_to_do(episode_id):
            check_file(path, checksum=manifest["files"][camera["file"]]["sha256"])
        return _expand(path, camera, rows)


def _expand(path: Path, camera: Mapping[str, Any], rows: list[int]) -> Iterator[Array]:
    """A picture per row from each distinct frame, in order: the index of rows never goes back."""
    colours, num_frames = Colours(layout_of(camera)), camera["num_frames"]
    try:
        with path.open("rb") as file:
            row = 0
            for count, picture in enumerate(decode(file, num_frames=num_frames)):
                frame = colours.pixels(picture)
                frame.flags.writeable = False  # several rows may be given the same one
                while row < len(rows) and rows[row] == count:
                    yield frame
                    row += 1
            if row != len(rows):
                raise ValueError(f"row {row} points at frame {rows[row]} of {num_frames}")
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
