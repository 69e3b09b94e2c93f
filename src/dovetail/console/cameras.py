"""Live images for browsers. Each is encoded once for all viewers, only while there are viewers, and never queued."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

from dovetail.console.frame_cache import to_jpeg
from dovetail.core.types import Array

__all__ = ["Cameras"]

FPS = 30.0  # at most; the robot gives one image per tick
_REST = 0.4  # of the time that the images took: on a busy machine, drive messages go first
_QUALITY = 82
_LONGEST_PX = 1280  # pages do not show larger images


class HasCameras(Protocol):
    """See `LiveRobot`."""

    def cameras(self) -> Sequence[str]: ...

    def frame(self, camera: str, newer_than: int) -> tuple[int, Array] | None: ...

    def close(self) -> None: ...


class Cameras:
    """`with cameras.watch(name): number, data = await cameras.newer(name, number)`.

    One thread takes and encodes all images, because rendering a simulation needs a GL context of one thread.
    """

    def __init__(self, robot: HasCameras) -> None:
        self._robot = robot
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cameras")
        self._newest: dict[str, tuple[int, bytes]] = {}
        self._num_viewers: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, camera: str) -> Iterator[None]:
        self._num_viewers[camera] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._num_viewers[camera] -= 1

    async def newer(self, camera: str, than: int) -> tuple[int, bytes]:
        """The newest image, as soon as its number is not `than`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._newest.get(camera, (than,))[0] != than)
            return self._newest[camera]

    async def names(self) -> list[str]:
        """Names of the cameras, read in the thread, because the run's config may have to be loaded."""
        return list(await asyncio.get_running_loop().run_in_executor(self._thread, self._robot.cameras))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._robot.close)
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while viewed := [camera for camera, number in self._num_viewers.items() if number > 0]:
            started_s = loop.time()
            for camera in viewed:
                last = self._newest.get(camera, (-1, b""))[0]
                try:
                    taken = await loop.run_in_executor(self._thread, self._encode, camera, last)
                except (
                    Exception
                ):  # the run has just ended, or this camera fails: try the others and the next image
                    continue
                if taken is not None:
                    async with self._changed:
                        self._newest[camera] = taken
                        self._changed.notify_all()
            spent_s = loop.time() - started_s
            await asyncio.sleep(max(1.0 / FPS - spent_s, _REST * spent_s))

    def _encode(self, camera: str, last: int) -> tuple[int, bytes] | None:
        found = self._robot.frame(camera, newer_than=last)
        return None if found is None else (found[0], to_jpeg(found[1], longest_px=_LONGEST_PX, quality=_QUALITY))
