"""Pictures for browsers: each is encoded once, for however many look on, only while somebody does, and never queued."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from dovetail.console.handles import Robot
from dovetail.console.reels import as_jpeg

__all__ = ["Cameras"]

FPS = 20.0
_QUALITY = 82
_LONGEST_PX = 1280  # a page shows no more of it


class Cameras:
    """`with cameras.watch(name): number, data = await cameras.newer(name, number)`.

    One thread takes and encodes: a camera that films a simulation holds a GL context, which is that thread's.
    """

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cameras")
        self._newest: dict[str, tuple[int, bytes]] = {}
        self._watched: Counter[str] = Counter()
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, camera: str) -> Iterator[None]:
        self._watched[camera] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._take())
        try:
            yield
        finally:
            self._watched[camera] -= 1

    async def newer(self, camera: str, than: int) -> tuple[int, bytes]:
        """The newest picture, once it is another one than number `than`."""
        async with self._news:
            await self._news.wait_for(lambda: self._newest.get(camera, (than,))[0] != than)
            return self._newest[camera]

    async def names(self) -> list[str]:
        """In that thread too: to know them, a run's config may have to be read."""
        return list(await asyncio.get_running_loop().run_in_executor(self._thread, self._robot.cameras))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._robot.close)
        self._thread.shutdown()

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        while watched := [camera for camera, number in self._watched.items() if number > 0]:
            due_s = loop.time() + 1.0 / FPS
            for camera in watched:
                last = self._newest.get(camera, (-1, b""))[0]
                try:
                    taken = await loop.run_in_executor(self._thread, self._one, camera, last)
                except Exception:  # the run has just ended, or cannot be filmed: others can, and the next one may
                    continue
                if taken is not None:
                    async with self._news:
                        self._newest[camera] = taken
                        self._news.notify_all()
            await asyncio.sleep(max(0.0, due_s - loop.time()))

    def _one(self, camera: str, last: int) -> tuple[int, bytes] | None:
        found = self._robot.frame(camera, newer_than=last)
        return None if found is None else (found[0], as_jpeg(found[1], longest_px=_LONGEST_PX, quality=_QUALITY))
