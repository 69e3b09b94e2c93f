"""A run's recorded episodes, its label store and its queue, as the console's pages want them."""

from __future__ import annotations

import collections
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dovetail.console.episode_handles import Marked, Said, Waits
from dovetail.console.reels import as_bytes
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Episode, Labels, Outcome
from dovetail.episodes.lerobot.export import export
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.episodes.video import write_video
from dovetail.labels.human import HUMAN, Mark, human_labels
from dovetail.labels.queue import LabelQueue, Waiting
from dovetail.labels.store import LabelStore

if TYPE_CHECKING:
    from dovetail.reports.film import Filmer

__all__ = ["RunDesk", "RunDownloads", "RunEpisodes"]

_FILMED = "front"
_FILM_PX = 320
_SETTLED_NS = 1_000_000_000
_JUDGEMENTS = {"success": Outcome.SUCCESS, "failure": Outcome.FAILURE, "discard": Outcome.ABORTED}

Heard = Callable[[int, int], None]


class RunEpisodes:
    """Pictures that were recorded; where none were, the simulator's trace is filmed, in one thread: GL wants that."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._log = EpisodeLog(run / "episodes")
        self._filmer: Filmer | None = None
        self._studio = ThreadPoolExecutor(1, thread_name_prefix="film")
        self._traced: dict[str, bool] = {}

    def ids(self) -> list[str]:
        return self._log.ids()

    def has(self, episode_id: str) -> bool:
        return episode_id in self._log

    def summary(self, episode_id: str) -> EpisodeInfo:
        return self._log.manifest(episode_id)

    def steps(self, episode_id: str) -> Episode:
        return self._log.load(episode_id, images=False)

    def cameras(self, episode_id: str) -> Mapping[str, int]:
        info = self._log.manifest(episode_id)
        if info.cameras:
            return dict.fromkeys(info.cameras, info.num_steps + 1)
        return {_FILMED: info.num_steps} if self._has_trace(episode_id) else {}

    def frames(self, episode_id: str, camera: str) -> Iterator[Array]:
        if camera in self._log.manifest(episode_id).cameras:
            return self._log.frames(episode_id, camera)
        return self._in_studio(lambda: self._film(episode_id))

    def last_frame(self, episode_id: str, camera: str) -> Array:
        info = self._log.manifest(episode_id)
        if camera in info.cameras:
            frames = self._log.frames(episode_id, camera)
        else:
            frames = self._in_studio(lambda: self._film(episode_id, every=max(1, info.num_steps)))
        (last,) = collections.deque(frames, maxlen=1)
        return last

    def close(self) -> None:
        if self._filmer is not None:
            self._studio.submit(self._filmer.close)
        self._studio.shutdown(wait=True)

    def _has_trace(self, episode_id: str) -> bool:
        if episode_id not in self._traced:
            columns = self.steps(episode_id).segments[0].columns
            self._traced[episode_id] = any(name.startswith("extra/sim_") for name in columns)
        return self._traced[episode_id]

    def _film(self, episode_id: str, *, every: int = 1) -> Iterator[Array]:
        """In the studio's thread; what films is made when first needed."""
        if self._filmer is None:
            from dovetail.reports.film import (
                Filmer,
            )  # with the config of a run comes much else: not before it is needed
            from dovetail.runs.folder import RunFolder

            self._filmer = Filmer(RunFolder.open(self._run), camera=_FILMED, size=(_FILM_PX, _FILM_PX))
        return self._filmer.frames(episode_id, every=every)

    def _in_studio(self, open_frames: Callable[[], Iterator[Array]]) -> Iterator[Array]:
        frames = self._studio.submit(open_frames).result()
        while (frame := self._studio.submit(next, frames, None).result()) is not None:
            yield frame


class RunDesk:
    """The label store reads on as it is asked, so it is asked by one thread at a time."""

    def __init__(self, run: Path) -> None:
        self._log = EpisodeLog(run / "episodes")
        self._store = LabelStore(run / "labels")
        self._queue = LabelQueue(run / "labels" / "queue")
        self._waited: dict[str, Waiting] = {}  # what left the queue by a person's word
        self._lock = threading.Lock()
        self._folder = run / "labels" / "queue"
        self._known: tuple[int, list[Waits]] = (-1, [])  # the queue, and its folder's time when it was read

    def waiting(self) -> Sequence[Waits]:
        """Read again only if something has come or gone: many pages ask every few seconds."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed_ns != self._known[0]:
            waiting = self._read_queue()
            settled = (
                time.time_ns() - changed_ns > _SETTLED_NS
            )  # two changes within a tick of the disk's clock look like one
            self._known = (changed_ns if settled else -1, waiting)
        return self._known[1]

    def _read_queue(self) -> list[Waits]:
        return [
            Waits(
                episode_id=item.episode_id,
                reasons=tuple(reason.value for reason in item.reasons),
                detail=_detail(item),
                since_unix_ns=item.since_unix_ns,
            )
            for item in self._queue.waiting()
            if item.episode_id in self._log  # it may have been removed meanwhile
        ]

    def said(self, episode_id: str) -> Sequence[Said]:
        with self._lock:
            records, current = self._store.history(episode_id), self._store.current(episode_id)
        told: list[Said] = []
        for record in reversed(records):
            counts = current is not None and not record.retracted and _same(record.labels, current)
            counts = counts and not any(one.counts for one in told)
            told.append(
                Said(
                    labels=record.labels,
                    unix_ns=record.added_unix_ns,
                    counts=counts,
                    retracted=record.retracted,
                )
            )
        return told[::-1]

    def current(self, episode_id: str) -> Labels | None:
        with self._lock:
            return self._store.current(episode_id)

    def say(self, episode_id: str, verdict: str, marks: Sequence[Marked], *, by: str) -> None:
        info = self._log.manifest(episode_id)
        labels = human_labels(
            episode_id,
            num_steps=info.num_steps,
            outcome=info.outcome,
            judgement=_JUDGEMENTS[verdict],
            by=by,
            marks=[Mark(first=mark.first, last=mark.last, reward=mark.reward) for mark in marks],
        )
        with self._lock:
            self._store.add(labels)
            waited = self._queue.get(episode_id)
            if waited is not None:
                self._waited[episode_id] = waited
                self._queue.done(episode_id)

    def unsay(self, episode_id: str, *, by: str) -> bool:
        with self._lock:
            words = [
                record.labels
                for record in self._store.history(episode_id)
                if not record.retracted and (record.labels.labeler, record.labels.version) == (HUMAN, by)
            ]
            waited = self._waited.pop(episode_id, None)
            if waited is not None:  # first: whatever happens between the two, a person is asked
                self._queue.put(episode_id, waited.reasons, opinions=waited.opinions, note=waited.note)
            return bool(words) and self._store.retract(words[-1])


class RunDownloads:
    """Files of episodes, made beside where they shall lie."""

    def __init__(self, run: Path, episodes: RunEpisodes) -> None:
        self._run = run
        self._episodes = episodes

    def video(self, episode_id: str, target: Path, heard: Heard) -> None:
        info = self._episodes.summary(episode_id)
        cameras = self._episodes.cameras(episode_id)
        if not cameras:
            raise UsageError(f"episode {episode_id} has no pictures, and no simulator's trace to film")
        every = [self._episodes.frames(episode_id, camera) for camera in cameras]
        total = min(cameras.values())

        def side_by_side() -> Iterator[Array]:
            for number, pictures in enumerate(zip(*every, strict=False)):
                heard(number, total)
                yield _beside(pictures)

        write_video(target, side_by_side(), fps=info.robot.control_hz)

    def lerobot(self, episode_ids: Sequence[str], target: Path, heard: Heard) -> None:
        total = len(episode_ids) + 1  # and the packing
        labels = LabelStore(self._run / "labels")
        with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
            dataset = Path(temporary) / "dataset"
            export(
                EpisodeLog(self._run / "episodes"),
                dataset,
                ids=episode_ids,
                labels=labels.current,
                codec="h264",
                on_episode=lambda _, done, __: heard(done, total),
            )
            files = sorted(path for path in dataset.rglob("*") if path.is_file())
            with zipfile.ZipFile(
                target, "w", zipfile.ZIP_STORED
            ) as archive:  # videos and parquet are small already
                for path in files:
                    if not any(part.startswith(".") for part in path.relative_to(dataset).parts):
                        archive.write(path, Path(target.name).stem / path.relative_to(dataset))
                    heard(len(episode_ids), total)


def _detail(item: Waiting) -> str:
    """Who said what, and what else was noted."""
    heard = [
        f"{one.labeler}: {'success' if one.success else 'failure'} {one.confidence:.0%}" for one in item.opinions
    ]
    return "; ".join([*heard, *([item.note] if item.note else [])])


def _same(a: Labels, b: Labels) -> bool:
    return (
        (a.labeler, a.version, a.priority, a.success, a.discard)
        == (b.labeler, b.version, b.priority, b.success, b.discard)
        and a.rewards.tobytes() == b.rewards.tobytes()
    )  # fmt: skip


def _beside(pictures: Sequence[Array]) -> Array:
    """In one row, all as high as the highest; depth and grey as grey."""
    height = max(picture.shape[0] for picture in pictures)
    return np.hstack([_scaled(picture, height) for picture in pictures])


def _scaled(picture: Array, height: int) -> Array:
    image = Image.fromarray(as_bytes(picture)).convert("RGB")
    if image.height != height:
        image = image.resize((round(image.width * height / image.height), height), Image.Resampling.BICUBIC)
    return np.asarray(image)
