"""The frames of recorded episodes as JPEG, encoded once and sent to the browser in blocks.

The log decodes a camera from its first frame on. A thread per camera decodes and encodes all frames in order; a request for
a block waits until the thread has reached it. So the first frames of an hour-long episode are available at once.
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

__all__ = ["BLOCK", "FrameCache", "to_jpeg", "to_uint8"]

BLOCK = 32  # frames in one answer

_LONGEST_PX = 512  # pages do not show larger images
_TIMEOUT_S = 30.0


def to_jpeg(frame: Array, *, longest_px: int = _LONGEST_PX, quality: int = 88) -> bytes:
    """An image for the browser, color, gray or depth, at most `longest_px` wide or high."""
    image = Image.fromarray(to_uint8(frame))
    image.thumbnail((longest_px, longest_px), Image.Resampling.BILINEAR)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, subsampling=0)  # small images are shown large: colors must not bleed
    return out.getvalue()


def to_uint8(frame: Array) -> Array:
    """uint8, [H, W, 3] or [H, W]; depth and other types are scaled from their minimum (dark) to their maximum."""
    if frame.dtype != np.uint8:
        near, far = float(frame.min()), float(frame.max())
        frame = ((frame - near) * (255.0 / max(far - near, 1e-9))).astype(np.uint8)
    return frame[..., 0] if frame.ndim == 3 and frame.shape[2] == 1 else frame


class FrameCache:
    """Keeps the most recently used cameras in unnamed temporary files, which vanish with the process."""

    def __init__(
        self, frames: Callable[[str, str], Iterator[Array]], *, budget_bytes: int = 1 << 30, num_threads: int = 8
    ) -> None:
        self._frames = frames
        self._budget = budget_bytes
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="frames")
        self._cameras: OrderedDict[tuple[str, str], _CameraFrames] = OrderedDict()
        self._lock = threading.Lock()

    def block(self, episode_id: str, camera: str, index: int) -> bytes:
        """Frames from `index * BLOCK` on: their number, the length of each (little-endian uint32), then the JPEGs.

        A length of 0 repeats the previous frame. A block after the last frame is empty.
        """
        frames = self._camera(episode_id, camera)
        try:
            return frames.block(index * BLOCK, BLOCK)
        except DovetailError:
            with self._lock:  # try again at the next request: the file may have been repaired
                if self._cameras.get((episode_id, camera)) is frames:
                    del self._cameras[episode_id, camera]
            raise

    def close(self) -> None:
        with self._lock:
            cameras, self._cameras = list(self._cameras.values()), OrderedDict()
        for frames in cameras:
            frames.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _camera(self, episode_id: str, camera: str) -> _CameraFrames:
        key = (episode_id, camera)
        with self._lock:
            frames = self._cameras.get(key)
            if frames is None:
                frames = self._cameras[key] = _CameraFrames()
                self._threads.submit(frames.fill, lambda: self._frames(episode_id, camera))
            self._cameras.move_to_end(key)
            while len(self._cameras) > 1 and sum(c.num_bytes for c in self._cameras.values()) > self._budget:
                self._cameras.popitem(last=False)[1].close()
            return frames


class _CameraFrames:
    """The frames of one camera in a file, still growing or complete."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`, or with the last reader
        self._spans: list[tuple[int, int]] = []  # offset and length of each frame; equal for repeated frames
        self._changed = threading.Condition()
        self._complete = self._closed = False
        self._error = ""
        self.num_bytes = 0

    def fill(self, open_frames: Callable[[], Iterator[Array]]) -> None:
        """Encode all frames. An error is raised in the calls that wait for them."""
        try:
            previous: Array | None = None
            for frame in open_frames():
                with self._changed:
                    if self._closed:
                        return
                    if frame is not previous:
                        data = to_jpeg(frame)
                        os.pwrite(self._file.fileno(), data, self.num_bytes)
                        self._spans.append((self.num_bytes, len(data)))
                        self.num_bytes += len(data)
                    else:
                        self._spans.append(self._spans[-1])
                    self._changed.notify_all()
                previous = frame
        except Exception as error:  # the border of a thread: `block` raises it
            self._error = str(error) or type(error).__name__
        finally:
            with self._changed:
                self._complete = True
                self._changed.notify_all()

    def block(self, first: int, count: int) -> bytes:
        with self._changed:
            self._changed.wait_for(
                lambda: self._complete or self._closed or len(self._spans) >= first + count, timeout=_TIMEOUT_S
            )
            if self._closed:
                raise StoreError("these frames were removed from the cache: reload the page")
            if len(self._spans) < first + count:
                if self._error:
                    raise StoreError(self._error)
                if not self._complete:
                    raise StoreError(f"the frames were not ready after {_TIMEOUT_S:.0f} s: reload the page")
            spans = self._spans[first : first + count]
            lengths, pieces = [], []
            for number, (offset, length) in enumerate(spans):
                repeated = number > 0 and spans[number - 1] == (offset, length)
                lengths.append(0 if repeated else length)
                if not repeated:
                    pieces.append(os.pread(self._file.fileno(), length, offset))
        return struct.pack(f"<{1 + len(lengths)}I", len(lengths), *lengths) + b"".join(pieces)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._file.close()
            self._changed.notify_all()
