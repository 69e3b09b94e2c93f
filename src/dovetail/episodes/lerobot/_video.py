"""Videos of a dataset. One file contains consecutive episodes of one camera."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np

from dovetail.core.disk import open_file
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Array
from dovetail.episodes._frames import VideoSink, open_video, start_encoding

__all__ = ["CODECS", "VideoWriter", "as_rgb", "read_frames"]

# Every second frame is a key frame, because training decodes single frames. SVT's presets from 10 on are faster but show
# artifacts (8 dB less on single frames of a smooth image).
CODECS = {
    "av1": ("libsvtav1", {"g": "2", "crf": "30", "preset": "8", "svtav1-params": "lp=1"}),
    "h264": ("libx264", {"g": "2", "crf": "20", "preset": "veryfast", "bf": "0"}),
}


class VideoWriter:
    """Writes an MP4 file at exactly `fps`. LeRobot finds frame n at time n / fps."""

    def __init__(self, path: Path, *, size: tuple[int, int], fps: int, codec: str) -> None:
        name, options = _encoder(codec)
        self._path = path
        with contextlib.ExitStack() as opened:
            self._sink = VideoSink(opened.enter_context(path.open("wb")))
            self._container = opened.enter_context(av.open(self._sink, "w", format="mp4"))
            self._stream = cast(
                "av.VideoStream", self._container.add_stream(name, rate=fps, options=dict(options))
            )
            self._stream.height, self._stream.width = size
            self._stream.pix_fmt = "yuv420p"
            start_encoding(self._container)
            self._opened = opened.pop_all()
        self._tick = Fraction(1, fps)
        self._open = True
        self.num_frames = 0
        self.num_bytes = 0  # written so far, without what the encoder still buffers

    def add(self, frame: Array) -> None:
        """Append a frame, uint8 [H, W, 3]."""
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        picture.pts, picture.time_base = self.num_frames, self._tick
        self._mux(picture)
        self.num_frames += 1

    def close(self) -> None:
        """Finish the video. The file is closed afterwards, also if the last writes fail."""
        if not self._open:
            return
        self._open = False
        with self._opened:
            if self.num_frames:
                self._mux(None)
        if self._sink.error is not None:
            raise self._sink.error

    def _mux(self, picture: av.VideoFrame | None) -> None:
        try:
            packets = self._stream.encode(picture)
            self.num_bytes += sum(packet.size for packet in packets)  # before muxing, which empties them
            self._container.mux(packets)
        except av.FFmpegError as error:
            if self._sink.error is not None:
                raise self._sink.error from error
            size = f"{self._stream.width}x{self._stream.height}"
            raise StoreError(
                f"cannot encode frame {self.num_frames} ({size}) into {self._path}: {error}"
            ) from error


def _encoder(codec: str) -> tuple[str, dict[str, str]]:
    if codec not in CODECS:
        raise UsageError(f"there is no codec '{codec}'. Choose one of {', '.join(CODECS)}.")
    return CODECS[codec]


def as_rgb(frame: Array, size: tuple[int, int]) -> Array:
    """Convert an image uint8 [H, W, 1 or 3] to three channels and repeat its edges up to `size`."""
    height, width = frame.shape[:2]
    rgb = frame if frame.shape[2] == 3 else np.repeat(frame, 3, axis=2)
    if (height, width) == size:
        return rgb
    return np.pad(rgb, ((0, size[0] - height), (0, size[1] - width), (0, 0)), mode="edge")


def read_frames(path: Path, times_s: Array, *, fps: float) -> Iterator[Array]:
    """Yield the frames, uint8 [H, W, 3], nearest to the increasing times, each within half a frame."""
    reach_s = 0.5 / fps
    try:
        with open_file(path) as file, open_video(file, "mov") as container:
            stream = container.streams.video[0]
            assert stream.time_base is not None, "an mp4 has a time base"
            container.seek(max(0, int((times_s[0] - reach_s) / stream.time_base)), stream=stream)
            wanted = 0
            for picture in container.decode(stream):
                if picture.time is None or picture.time < times_s[wanted] - reach_s:
                    continue
                if picture.time > times_s[wanted] + reach_s:
                    break
                pixels = picture.to_ndarray(format="rgb24")
                while wanted < len(times_s) and abs(picture.time - times_s[wanted]) <= reach_s:
                    yield pixels
                    wanted += 1
                if wanted == len(times_s):
                    return
    except (av.FFmpegError, OSError, ValueError, OverflowError) as error:
        raise StoreError(f"{path} cannot be decoded: {error}") from error
    raise StoreError(f"{path} has no frame at {times_s[wanted]:.4f} s, but the dataset refers to it")
