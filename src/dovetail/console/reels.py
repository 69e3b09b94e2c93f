"""Frames for a browser: an episode's pictures as JPEG, made once and handed out by the block.

A log decodes a camera from its beginning on. So a reel runs through it once, in a thread of its own, and whoever asks
for a block waits until it has come that far: the first frames of an hour's episode are there at once.
"""

from __future__ import annotations

import io
import os
import struct
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from dovetail.core.errors import DovetailError, StoreError
from dovetail.core.types import Array

__all__ = ["BLOCK", "Reels", "as_bytes", "as_jpeg"]

BLOCK = 32  # frames in one answer

_LONGEST_PX = 512  # a page shows no more of it
_PATIENCE_S = 30.0


def as_jpeg(frame: Array, *, longest_px: int = _LONGEST_PX, quality: int = 88) -> bytes:
    """A picture as a browser shows it: colours, grey or depth, no larger than asked for."""
    picture = Image.fromarray(as_bytes(frame))
    picture.thumbnail((longest_px, longest_px), Image.Resampling.BILINEAR)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality, subsampling=0)  # small ones are shown large: colours must not bleed
    return out.getvalue()


def as_bytes(frame: Array) -> Array:
    """uint8, [H, W, 3] or [H, W]; what is finer, such as depth, from its nearest (dark) to its farthest."""
    if frame.dtype != np.uint8:
        near, far = float(frame.min()), float(frame.max())
        frame = ((frame - near) * (255.0 / max(far - near, 1e-9))).astype(np.uint8)
    return frame[..., 0] if frame.ndim == 3 and frame.shape[2] == 1 else frame


class Reels:
    """The reels asked for last, kept in nameless temporary files: whatever ends this process, they are gone."""

    def __init__(
        self, frames: Callable[[str, str], Iterator[Array]], *, budget_bytes: int = 1 << 30, num_threads: int = 8
    ) -> None:
        self._frames = frames
        self._budget = budget_bytes
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="reels")
        self._reels: OrderedDict[tuple[str, str], _Reel] = OrderedDict()
        self._lock = threading.Lock()

    def block(self, episode_id: str, camera: str, index: int) -> bytes:
        """Frames from `index * BLOCK` on: how many, the length of each, then each as JPEG; little-endian uint32.

        A length of 0 says: the same as the one before. A block behind the last frame is empty.
        """
        reel = self._reel(episode_id, camera)
        try:
            return reel.block(index * BLOCK, BLOCK)
        except DovetailError:
            with self._lock:  # whoever asks again may have more luck: it was repaired, say
                if self._reels.get((episode_id, camera)) is reel:
                    del self._reels[episode_id, camera]
            raise

    def close(self) -> None:
        with self._lock:
            reels, self._reels = list(self._reels.values()), OrderedDict()
        for reel in reels:
            reel.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _reel(self, episode_id: str, camera: str) -> _Reel:
        key = (episode_id, camera)
        with self._lock:
            reel = self._reels.get(key)
            if reel is None:
                reel = self._reels[key] = _Reel()
                self._threads.submit(reel.fill, lambda: self._frames(episode_id, camera))
            self._reels.move_to_end(key)
            while len(self._reels) > 1 and sum(r.num_bytes for r in self._reels.values()) > self._budget:
                self._reels.popitem(last=False)[1].close()
            return reel


class _Reel:
    """One camera's frames in a file, still growing or whole."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`, or with the last who reads from it
        self._places: list[
            tuple[int, int]
        ] = []  # offset and length of each frame; the same one for repeated frames
        self._changed = threading.Condition()
        self._over = self._closed = False
        self._error = ""
        self.num_bytes = 0

    def fill(self, open_frames: Callable[[], Iterator[Array]]) -> None:
        """Run through all frames. What goes wrong is told to those who wait for them."""
        try:
            before: Array | None = None
            for frame in open_frames():
                with self._changed:
                    if self._closed:
                        return
                    if frame is not before:
                        data = as_jpeg(frame)
                        os.pwrite(self._file.fileno(), data, self.num_bytes)
                        self._places.append((self.num_bytes, len(data)))
                        self.num_bytes += len(data)
                    else:
                        self._places.append(self._places[-1])
                    self._changed.notify_all()
                before = frame
        except Exception as error:  # the border of a thread: nobody else would hear of it
            self._error = str(error) or type(error).__name__
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def block(self, first: int, count: int) -> bytes:
        with self._changed:
            self._changed.wait_for(
                lambda: self._over or self._closed or len(self._places) >= first + count, timeout=_PATIENCE_S
            )
            if self._closed:
                raise StoreError("these frames were put away to make room: ask again")
            if len(self._places) < first + count:
                if self._error:
                    raise StoreError(self._error)
                if not self._over:
                    raise StoreError("these frames take too long to make: ask again")
            places = self._places[first : first + count]
            lengths, pieces = [], []
            for number, (offset, length) in enumerate(places):
                repeated = number > 0 and places[number - 1] == (offset, length)
                lengths.append(0 if repeated else length)
                if not repeated:
                    pieces.append(os.pread(self._file.fileno(), length, offset))
        return struct.pack(f"<{1 + len(lengths)}I", len(lengths), *lengths) + b"".join(pieces)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._file.close()
            self._changed.notify_all()
