"""Files of episodes for download: an mp4 or a LeRobot dataset. A page starts a job, polls it and fetches the file."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dovetail.console.frame_cache import to_uint8
from dovetail.console.recorded_episodes import RecordedEpisodes
from dovetail.core.errors import UsageError
from dovetail.core.types import Array
from dovetail.episodes.lerobot.export import export
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.video import write_video
from dovetail.labels.store import LabelStore

__all__ = ["DownloadJob", "Downloads"]

_MAX_JOBS = 8  # more would fill the disk of the robot's computer
_KEPT_S = 900.0

OnProgress = Callable[[int, int], None]  # (done, total)


class _CanceledError(Exception):
    """The page no longer needs the file."""


@dataclass(slots=True, kw_only=True)
class DownloadJob:
    """One file: not yet made, or ready."""

    path: Path
    name: str  # of the file in the browser
    started_s: float
    state: str = "waiting"  # then working; then done or failed
    done: int = 0
    total: int = 0
    error: str = ""
    canceled: bool = False

    def status(self) -> dict[str, Any]:
        num_bytes = self.path.stat().st_size if self.state == "done" else 0
        shown = {key: getattr(self, key) for key in ("state", "done", "total", "error", "name")}
        return {**shown, "num_bytes": num_bytes}


class Downloads:
    """Makes one file at a time, in a temporary folder that is deleted with the console. Old files are deleted first."""

    def __init__(self, episodes: RecordedEpisodes, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._episodes = episodes
        self._now_s = now_s
        self._folder: Path | None = None
        self._jobs: dict[str, DownloadJob] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="downloads")
        self._lock = threading.Lock()

    def start(self, kind: str, episode_ids: Sequence[str]) -> str:
        """`video` of one episode, or `lerobot` of several; returns the key of the job."""
        if kind == "video" and len(episode_ids) != 1:
            raise UsageError(f"a video shows one episode, not {len(episode_ids)}: select one")
        with self._lock:
            self._delete_old()
            self._folder = self._folder or Path(tempfile.mkdtemp(prefix="dovetail-downloads-"))
            key = secrets.token_hex(16)
            stem = episode_ids[0] if len(episode_ids) == 1 else f"{len(episode_ids)}-episodes"
            ending = "mp4" if kind == "video" else "lerobot.zip"
            path = self._folder / f"{key}.{ending}"
            job = self._jobs[key] = DownloadJob(path=path, name=f"{stem}.{ending}", started_s=self._now_s())
        self._worker.submit(self._make, job, kind, tuple(episode_ids))
        return key

    def get(self, key: str) -> DownloadJob | None:
        with self._lock:
            return self._jobs.get(key)

    def cancel(self, key: str) -> None:
        with self._lock:
            self._delete(key)

    def close(self) -> None:
        with self._lock:
            for key in list(self._jobs):
                self._delete(key)
        self._worker.shutdown(wait=True, cancel_futures=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _make(self, job: DownloadJob, kind: str, episode_ids: tuple[str, ...]) -> None:
        def on_progress(done: int, total: int) -> None:
            job.done, job.total = done, total
            if job.canceled:
                raise _CanceledError

        try:
            if job.canceled:
                return
            job.state = "working"
            if kind == "video":
                _write_video(self._episodes, episode_ids[0], job.path, on_progress)
            else:
                _write_lerobot(self._episodes.run, episode_ids, job.path, on_progress)
            on_progress(job.total, job.total)
            job.state = "done"
        except _CanceledError:
            job.path.unlink(missing_ok=True)
        except Exception as error:  # the border of a thread: the page shows it
            job.error = str(error) or type(error).__name__
            job.state = "failed"

    def _delete_old(self) -> None:
        oldest_first = sorted(self._jobs, key=lambda key: self._jobs[key].started_s)
        num_too_many = len(self._jobs) - _MAX_JOBS + 1
        for number, key in enumerate(oldest_first):
            if number < num_too_many or self._now_s() - self._jobs[key].started_s > _KEPT_S:
                self._delete(key)

    def _delete(self, key: str) -> None:
        job = self._jobs.pop(key, None)
        if job is not None:
            job.canceled = True
            job.path.unlink(missing_ok=True)


def _write_video(episodes: RecordedEpisodes, episode_id: str, target: Path, on_progress: OnProgress) -> None:
    """All cameras side by side."""
    cameras = episodes.cameras(episode_id)
    if not cameras:
        raise UsageError(f"episode {episode_id} has no images and no simulator trace to render them from")
    streams = [episodes.frames(episode_id, camera) for camera in cameras]
    total = min(cameras.values())

    def side_by_side() -> Iterator[Array]:
        for number, images in enumerate(zip(*streams, strict=False)):
            on_progress(number, total)
            height = max(image.shape[0] for image in images)
            yield np.hstack([_scaled(image, height) for image in images])

    write_video(target, side_by_side(), fps=episodes.summary(episode_id).robot.control_hz)


def _scaled(frame: Array, height: int) -> Array:
    image = Image.fromarray(to_uint8(frame)).convert("RGB")
    if image.height != height:
        image = image.resize((round(image.width * height / image.height), height), Image.Resampling.BICUBIC)
    return np.asarray(image)


def _write_lerobot(run: Path, episode_ids: Sequence[str], target: Path, on_progress: OnProgress) -> None:
    """A LeRobot dataset in a zip file."""
    total = len(episode_ids) + 1  # the last step packs them
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        dataset = Path(temporary) / "dataset"
        export(
            EpisodeLog(run / "episodes"),
            dataset,
            ids=episode_ids,
            labels=LabelStore(run / "labels").current,
            codec="h264",
            on_episode=lambda _, done, __: on_progress(done, total),
        )
        files = sorted(path for path in dataset.rglob("*") if path.is_file())
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:  # its files are compressed already
            for path in files:
                if not any(part.startswith(".") for part in path.relative_to(dataset).parts):
                    archive.write(path, Path(target.name).stem / path.relative_to(dataset))
                on_progress(len(episode_ids), total)
