"""The recorded episodes of a run and their images."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.core.types import Array, Episode
from dovetail.episodes._order import file_state
from dovetail.episodes.log import EpisodeInfo, EpisodeLog

if TYPE_CHECKING:
    from dovetail.reports.rendering import RunRenderer

__all__ = ["RecordedEpisodes"]

_RENDERED_CAMERA = "front"
_RENDERED_PX = 320
_MTIME_RESOLUTION_NS = 1_000_000_000


class RecordedEpisodes:
    """May be called from several threads; a recorded episode never changes.

    Without recorded images, frames are rendered from the simulator's trace, in one thread, which owns the GL context.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self._log = EpisodeLog(run / "episodes")
        self._renderer: RunRenderer | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rendering")
        self._has_trace: dict[str, bool] = {}
        self._listed: tuple[object, list[str]] | None = None  # state of the folder, and its episodes

    def ids(self) -> list[str]:
        """Ids by commit. The list is kept until the folder changes, because listing 100,000 folders takes a second."""
        state, listed = self._folder_state(), self._listed
        if listed is None or state is None or listed[0] != state:
            listed = self._listed = (state, self._log.ids())
        return listed[1]

    def _folder_state(self) -> object:
        """A value that changes with the episodes. None after a recent change: the next may get the same time stamp."""
        folder = self.run / "episodes"
        try:
            changed_ns = folder.stat().st_mtime_ns
        except OSError:
            return None
        is_settled = time.time_ns() - changed_ns > _MTIME_RESOLUTION_NS
        return (changed_ns, file_state(folder)) if is_settled else None

    def has(self, episode_id: str) -> bool:
        return episode_id in self._log

    def summary(self, episode_id: str) -> EpisodeInfo:
        return self._log.manifest(episode_id)

    def steps(self, episode_id: str) -> Episode:
        """Everything except the images."""
        return self._log.load(episode_id, images=False)

    def cameras(self, episode_id: str) -> Mapping[str, int]:
        """The number of frames of each camera: one per step and, if recorded, one of the last observation."""
        info = self._log.manifest(episode_id)
        if info.cameras:
            return dict.fromkeys(info.cameras, info.num_steps + 1)
        return {_RENDERED_CAMERA: info.num_steps} if self._can_render(episode_id) else {}

    def frames(self, episode_id: str, camera: str) -> Iterator[Array]:
        if camera in self._log.manifest(episode_id).cameras:
            return self._log.frames(episode_id, camera)
        return self._in_thread(lambda: self._render(episode_id))

    def last_frame(self, episode_id: str, camera: str) -> Array:
        info = self._log.manifest(episode_id)
        if camera in info.cameras:
            frames = self._log.frames(episode_id, camera)
        else:
            frames = self._in_thread(lambda: self._render(episode_id, every=max(1, info.num_steps)))
        (last,) = collections.deque(frames, maxlen=1)
        return last

    def close(self) -> None:
        if self._renderer is not None:
            self._thread.submit(self._renderer.close)
        self._thread.shutdown(wait=True)

    def _can_render(self, episode_id: str) -> bool:
        if episode_id not in self._has_trace:
            columns = self.steps(episode_id).segments[0].columns
            self._has_trace[episode_id] = any(name.startswith("extra/sim_") for name in columns)
        return self._has_trace[episode_id]

    def _render(self, episode_id: str, *, every: int = 1) -> Iterator[Array]:
        """Called in the rendering thread."""
        if self._renderer is None:
            # imported here: they load the simulator, which most pages do not need
            from dovetail.reports.rendering import RunRenderer
            from dovetail.runs.folder import RunFolder

            size = (_RENDERED_PX, _RENDERED_PX)
            self._renderer = RunRenderer(RunFolder.open(self.run), camera=_RENDERED_CAMERA, size=size)
        return self._renderer.frames(episode_id, every=every)

    def _in_thread(self, open_frames: Callable[[], Iterator[Array]]) -> Iterator[Array]:
        frames = self._thread.submit(open_frames).result()
        while (frame := self._thread.submit(next, frames, None).result()) is not None:
            yield frame
