"""Files that take a while to make: begun, asked about, fetched, and gone."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.console.episode_handles import Downloads
from dovetail.core.errors import UsageError

__all__ = ["Job", "Jobs"]

_MAX_JOBS = 8  # kept at once; the disk of a robot's machine is not for archives
_KEPT_S = 900.0


class _GivenUpError(Exception):
    """Nobody waits for it any more."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One file in the making."""

    path: Path
    name: str  # what the browser calls it
    begun_s: float
    state: str = "waiting"  # then working; then done or failed
    done: int = 0
    total: int = 0
    error: str = ""
    given_up: bool = False

    def told(self) -> dict[str, Any]:
        size = self.path.stat().st_size if self.state == "done" else 0
        told = {key: getattr(self, key) for key in ("state", "done", "total", "error", "name")}
        return {**told, "num_bytes": size}


class Jobs:
    """One at a time, in a temporary folder that goes with the console; old ones make room for new ones."""

    def __init__(self, downloads: Downloads, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._downloads = downloads
        self._now_s = now_s
        self._folder: Path | None = None
        self._jobs: dict[str, Job] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="downloads")
        self._lock = threading.Lock()

    def begin(self, kind: str, episode_ids: Sequence[str]) -> str:
        """`video` of one, or `lerobot` of some; returns a name to ask by."""
        if kind == "video" and len(episode_ids) != 1:
            raise UsageError("a video is of one episode")
        with self._lock:
            self._make_room()
            self._folder = self._folder or Path(tempfile.mkdtemp(prefix="dovetail-downloads-"))
            key = secrets.token_hex(16)
            what = episode_ids[0] if len(episode_ids) == 1 else f"{len(episode_ids)}-episodes"
            ending = "mp4" if kind == "video" else "lerobot.zip"
            place = self._folder / f"{key}.{ending}"
            job = self._jobs[key] = Job(path=place, name=f"{what}.{ending}", begun_s=self._now_s())
        self._worker.submit(self._make, job, kind, tuple(episode_ids))
        return key

    def get(self, key: str) -> Job | None:
        with self._lock:
            return self._jobs.get(key)

    def drop(self, key: str) -> None:
        """Nobody wants it any more."""
        with self._lock:
            self._forget(key)

    def close(self) -> None:
        with self._lock:
            for key in list(self._jobs):
                self._forget(key)
        self._worker.shutdown(wait=True, cancel_futures=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _make(self, job: Job, kind: str, episode_ids: tuple[str, ...]) -> None:
        def heard(done: int, total: int) -> None:
            job.done, job.total = done, total
            if job.given_up:
                raise _GivenUpError

        try:
            if job.given_up:
                return
            job.state = "working"
            if kind == "video":
                self._downloads.video(episode_ids[0], job.path, heard)
            else:
                self._downloads.lerobot(episode_ids, job.path, heard)
            heard(job.total, job.total)
            job.state = "done"
        except _GivenUpError:
            job.path.unlink(missing_ok=True)
        except Exception as error:  # the border of a thread: whoever asks is told
            job.error = str(error) or type(error).__name__
            job.state = "failed"

    def _make_room(self) -> None:
        oldest_first = sorted(self._jobs, key=lambda key: self._jobs[key].begun_s)
        too_many = len(self._jobs) - _MAX_JOBS + 1
        for number, key in enumerate(oldest_first):
            if number < too_many or self._now_s() - self._jobs[key].begun_s > _KEPT_S:
                self._forget(key)

    def _forget(self, key: str) -> None:
        job = self._jobs.pop(key, None)
        if job is not None:
            job.given_up = True
            job.path.unlink(missing_ok=True)
