"""The episode log: one folder per episode, immutable once it is there.

    episodes/
      20260101T093000-123456789-panda-9f86d081c3a1/
        manifest.json       everything but the steps; a checksum of each file, and of itself
        steps.npz           one array per column, and the last observation (`last/<key>`)
        frames-<key>.mkv    one per camera: each distinct frame once, lossless; rows point in (`frame/<key>`)
      .tmp/                 what is being written; what a crash left is removed by the next writer

A folder appears by an atomic rename after everything in it was fsynced, so a reader never meets half an
episode.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import av
import numpy as np

from dovetail.core.disk import dump_json, fsync_folder, load_json, read_file, sha256, write_file, writer
from dovetail.core.errors import StoreError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, Outcome, Purpose
from dovetail.episodes import _frames
from dovetail.episodes._columns import Columns, pack, unpack
from dovetail.episodes.ids import check_episode_id

__all__ = ["EpisodeInfo", "EpisodeLog"]

SCHEMA = 1
_MANIFEST = "manifest.json"
_STEPS = "steps.npz"


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
    num_steps: int
    num_human_steps: int
    num_interventions: int
    policy_versions: tuple[int, ...]
    cameras: tuple[str, ...]
    num_bytes: int

    @property
    def duration_s(self) -> float:
        """Robot time: steps at the robot's control rate."""
        return self.num_steps / self.robot.control_hz


class EpisodeLog:
    """Write once, read many. Any number of readers; writers, in any process, take turns."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)

    def commit(self, episode: Episode) -> None:
        """Make an episode durable; once this returns, it survives anything that is killed.

        Doing it again is harmless. A different episode of the same id is refused, and so is the same one if
        what lies on disk has been damaged since: the sender must not think it safe.
        """
        target = self._folder / check_episode_id(episode.id)
        columns = Columns.of(episode)
        facts = _facts(episode)
        digest = columns.digest(facts)
        with writer(self._folder) as temporary:
            if target.exists():
                if self._manifest(episode.id)["content"] != digest:
                    raise StoreError(f"episode {episode.id} is already in {self._folder}, with other content")
                self.verify(episode.id)
            else:
                staged = temporary / episode.id
                staged.mkdir()
                _write(staged, {"schema": SCHEMA, "content": digest, **facts}, columns)
                os.rename(staged, target)
            fsync_folder(self._folder)  # a repeated commit too: the first may have died before it came here

    def ids(self) -> list[str]:
        """Ids of all committed episodes, sorted, so oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted(
            entry.name for entry in os.scandir(self._folder) if entry.is_dir() and not entry.name.startswith(".")
        )

    def __contains__(self, episode_id: str) -> bool:
        return (self._folder / check_episode_id(episode_id)).is_dir()

    def manifest(self, episode_id: str) -> EpisodeInfo:
        """The summary of an episode: one small file is read."""
        data = self._manifest(episode_id)
        return EpisodeInfo(
            **_head(data),
            num_steps=data["num_steps"],
            num_human_steps=data["num_human_steps"],
            num_interventions=data["num_interventions"],
            policy_versions=tuple(data["policy_versions"]),
            cameras=tuple(data["cameras"]),
            num_bytes=sum(file["num_bytes"] for file in data["files"].values()),
        )

    def load(self, episode_id: str, *, images: bool = True) -> Episode:
        """An episode as it was committed, its segments merged into one; every file read is verified first.

        Without `images` the camera columns are left out of the steps and the last observation, and their
        files are neither read nor verified.
        """
        manifest = self._manifest(episode_id)
        arrays = unpack(self._read(episode_id, _STEPS, manifest))
        last = {name.removeprefix("last/"): arrays.pop(name) for name in list(arrays) if name.startswith("last/")}
        rows = {
            name.removeprefix("frame/"): arrays.pop(name) for name in list(arrays) if name.startswith("frame/")
        }
        for key, camera in manifest["cameras"].items() if images else ():
            data = self._read(episode_id, camera["file"], manifest)
            frames = _decode(self._folder / episode_id / camera["file"], data, camera)
            index = rows[key]
            contiguous = len(frames) == len(index)  # every row has its own frame: a view will do
            arrays[f"observation/{key}"] = frames[:-1] if contiguous else frames[index[:-1]]
            last[key] = frames[index[-1]]
        columns = Columns(steps=arrays, last=last, last_time_ns=manifest["last_time_ns"])
        return Episode(**_head(manifest), segments=(columns.segment(episode_id),))

    def verify(self, episode_id: str) -> None:
        """Read every file of an episode; the first that is not as written is named by a StoreError."""
        manifest = self._manifest(episode_id)
        for name in manifest["files"]:
            self._read(episode_id, name, manifest)
        strangers = {path.name for path in (self._folder / episode_id).iterdir()} - {
            _MANIFEST,
            *manifest["files"],
        }
        if strangers:
            raise StoreError(f"{self._folder / episode_id / min(strangers)} is not part of the episode")

    def _manifest(self, episode_id: str) -> dict[str, Any]:
        folder = self._folder / check_episode_id(episode_id)
        if not folder.is_dir():
            raise StoreError(f"there is no episode {episode_id} in {self._folder}")
        data = load_json(read_file(folder / _MANIFEST), name=str(folder / _MANIFEST), indent=1)
        if data["schema"] != SCHEMA:
            raise StoreError(f"{folder / _MANIFEST} has schema {data['schema']}; this version reads {SCHEMA}")
        if data["id"] != episode_id:
            raise StoreError(f"{folder} holds episode {data['id']}: the folder was renamed")
        return data

    def _read(self, episode_id: str, name: str, manifest: Mapping[str, Any]) -> bytes:
        return read_file(self._folder / episode_id / name, checksum=manifest["files"][name]["sha256"])


def _write(folder: Path, manifest: dict[str, Any], columns: Columns) -> None:
    """Fill a folder nobody reads yet: frames, steps, and last the manifest with everybody's checksum."""
    contents: dict[str, bytes] = {}
    cameras: dict[str, Any] = {}
    rows: dict[str, Array] = {}
    for key in columns.last:
        frames = columns.with_last(key)
        if not _frames.is_image(frames):
            continue
        distinct, rows[f"frame/{key}"] = _frames.deduplicate(frames)
        name = f"frames-{quote(key, safe='')}.mkv"  # keys may hold slashes
        contents[name] = _encode(key, distinct)
        cameras[key] = {
            "file": name,
            "num_frames": len(distinct),
            "shape": list(distinct.shape[1:]),
            "dtype": distinct.dtype.name,
        }
    steps = {
        name: column for name, column in columns.steps.items() if name.removeprefix("observation/") not in cameras
    }
    last = {f"last/{key}": value for key, value in columns.last.items() if key not in cameras}
    contents[_STEPS] = pack({**steps, **last, **rows})
    for name, data in contents.items():
        write_file(folder / name, data)
    manifest = {
        **manifest,
        "last_time_ns": columns.last_time_ns,
        "cameras": cameras,
        "files": {name: {"sha256": sha256(data), "num_bytes": len(data)} for name, data in contents.items()},
    }
    write_file(folder / _MANIFEST, dump_json(manifest, indent=1))
    fsync_folder(folder)


def _encode(key: str, frames: Array) -> bytes:
    try:
        return _frames.encode(frames)
    except av.FFmpegError as error:
        raise StoreError(f"observation '{key}' {list(frames.shape[1:])} cannot be encoded: {error}") from error


def _decode(path: Path, data: bytes, camera: Mapping[str, Any]) -> Array:
    try:
        return _frames.decode(
            data, num_frames=camera["num_frames"], frame_shape=tuple(camera["shape"]), dtype=camera["dtype"]
        )
    except (av.FFmpegError, ValueError) as error:
        raise StoreError(f"{path} cannot be decoded: {error}") from error


def _facts(episode: Episode) -> dict[str, Any]:
    """What a manifest says of an episode, apart from how it is stored."""
    return {
        "id": episode.id,
        "task": episode.task,
        "prompt": episode.prompt,
        "robot": episode.robot.to_json(),
        "operator": episode.operator,
        "purpose": episode.purpose.value,
        "outcome": episode.outcome.value,
        "judgement": episode.judgement.value if episode.judgement else None,
        "seed": int(episode.seed),
        "config_hash": episode.config_hash,
        "started_unix_ns": int(episode.started_unix_ns),
        "num_steps": len(episode),
        "num_human_steps": episode.num_human_steps,
        "num_interventions": episode.num_interventions,
        "policy_versions": [int(version) for version in np.unique(episode.column("policy_version"))],
    }


def _head(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that an Episode and an EpisodeInfo share."""
    judgement = manifest["judgement"]
    plain = ("id", "task", "prompt", "operator", "seed", "config_hash", "started_unix_ns")
    return {
        **{name: manifest[name] for name in plain},
        "robot": RobotSpec.from_json(manifest["robot"]),
        "purpose": Purpose(manifest["purpose"]),
        "outcome": Outcome(manifest["outcome"]),
        "judgement": Outcome(judgement) if judgement else None,
    }
