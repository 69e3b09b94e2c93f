"""Images of an episode as a Matroska video, through PyAV: lossless (FFV1) or smaller (H.264, AV1).

Frames are encoded and decoded one at a time. In FFV1 every frame is a key frame. This makes files 5 % larger; at 128 px
a frame takes less than 1 ms each way and is as small as PNG. In the other codecs every tenth frame is a key frame, so one
damaged byte costs a second of frames and not the rest of the episode. A truncated Matroska file can still be read; MP4
would need its index.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, cast

import av
import numpy as np
from av.container import InputContainer
from av.video.reformatter import Interpolation, VideoReformatter

from dovetail.core.types import Array

__all__ = [
    "MAX_PIXELS",
    "ColorConverter",
    "DistinctFrames",
    "Layout",
    "VideoSink",
    "decode",
    "encode",
    "frame_index",
    "is_image",
    "open_video",
    "start_encoding",
]

MAX_PIXELS = 4096 * 2304  # of a frame. A decoder keeps up to 17 frames in memory
_TASKS = Path("/proc/self/task")
# dtype and channels -> pixel format of the lossless codec, pixel format of the numpy array
_FORMATS = {
    ("uint8", 3): ("bgr0", "rgb24"),
    ("uint8", 1): ("gray", "gray"),
    ("uint16", 1): ("gray16le", "gray16le"),
}
_ENCODERS = {
    "ffv1": ("ffv1", {"level": "3", "slicecrc": "1"}),
    # no B-frames and no macroblock tree: x264 computes both from uninitialized memory, so equal frames would sometimes
    # give different bytes
    "h264": ("libx264", {"preset": "veryfast", "bf": "0", "x264-params": "mbtree=0"}),
    "av1": ("libsvtav1", {"preset": "8", "svtav1-params": "lp=1"}),
}
_LOSSLESS = "ffv1"
_MIN_SIDE_PX = 4  # the codec cannot split an image of one pixel width into slices
_GOP = {"ffv1": 1, "h264": 10, "av1": 10}  # frames from one key frame to the next
_INTERPOLATION = (
    Interpolation.AREA
    | Interpolation.FULL_CHR_H_INP
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
)
_RATE = 25  # 40 ms per frame: Matroska counts in whole milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Metadata that is needed to read a camera's file."""

    codec: str  # ffv1, h264 or av1
    shape: tuple[int, ...]  # [H, W, C]
    dtype: str

    @property
    def is_known(self) -> bool:
        return self.codec in _ENCODERS and (self.dtype, self.shape[2]) in _FORMATS

    @property
    def lossless(self) -> bool:
        return self.codec == _LOSSLESS

    @property
    def array_format(self) -> str:
        return _FORMATS[self.dtype, self.shape[2]][1]

    @property
    def file_format(self) -> str:
        return _FORMATS[self.dtype, self.shape[2]][0] if self.lossless else "yuv420p"


def is_image(column: Array) -> bool:
    """Whether a column [N, H, W, C] is stored as video frames. Other columns are stored as numbers."""
    if column.ndim != 4 or (column.dtype.name, column.shape[3]) not in _FORMATS:
        return False
    return bool(min(column.shape[1:3]) >= _MIN_SIDE_PX)


@dataclass(slots=True)
class DistinctFrames:
    """Yields each distinct frame of the rows once; afterwards `index` holds the frame index of each row.

    Cameras are slower than the control loop, so rows repeat frames. The index is stored: computing it from the position
    would pair states with stale images after a gap.
    """

    rows: Iterable[Array]
    index: list[int] = field(default_factory=list)

    def __iter__(self) -> Iterator[Array]:
        self.index.clear()
        previous: Array | None = None
        count = 0
        for row in self.rows:
            if previous is None or not np.array_equal(row, previous):
                yield row
                count += 1
            previous = row
            self.index.append(count - 1)


def encode(file: BinaryIO, frames: Iterable[Array], layout: Layout, *, crf: int = 0) -> list[int]:
    """Write frames as one video; returns the checksum of each input frame. The same frames give the same bytes."""
    options = _ENCODERS[layout.codec][1]
    sink = VideoSink(file)
    try:
        prints = list(
            _encoded(sink, frames, layout, {**options, **({} if layout.lossless else {"crf": str(crf)})})
        )
    except av.FFmpegError:
        if sink.error is None:
            raise
    if sink.error is not None:
        raise sink.error
    return prints


def _encoded(sink: VideoSink, frames: Iterable[Array], layout: Layout, options: dict[str, str]) -> Iterator[int]:
    """Write frames; yields the checksum of each."""
    with av.open(sink, "w", format="matroska", options={"fflags": "+bitexact"}) as container:
        stream = cast(
            av.VideoStream, container.add_stream(_ENCODERS[layout.codec][0], rate=_RATE, options=options)
        )
        stream.height, stream.width = _padded(layout)
        stream.pix_fmt = layout.file_format
        stream.codec_context.flags |= int(av.codec.context.Flags.bitexact)
        stream.codec_context.gop_size = _GOP[layout.codec]
        start_encoding(container)
        converter = ColorConverter(layout)
        for frame in frames:
            container.mux(stream.encode(converter.picture(frame)))
            yield zlib.crc32(np.ascontiguousarray(frame).data)
        container.mux(stream.encode(None))


class VideoSink:
    """A file for PyAV that keeps its first write error, because PyAV loses some on the way through C.

    The caller closes the file. PyAV closes a file that it opened itself late if the last write fails.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        return self._try(lambda: self._file.write(data))

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._try(lambda: self._file.seek(offset, whence))

    def tell(self) -> int:
        return self._try(self._file.tell)

    def _try(self, work: Callable[[], int]) -> int:
        try:
            return work()
        except OSError as error:
            self.error = self.error or OSError(error.errno, error.strerror)  # without the frames of a traceback
            raise


def decode(file: BinaryIO, *, num_frames: int) -> Iterator[av.VideoFrame]:
    """Yield the frames of a file (see `ColorConverter`). Raises ValueError if their number is not `num_frames`."""
    count = 0
    with open_video(file, "matroska") as container:
        stream = container.streams.video[0]
        for picture in container.decode(stream):
            if count < num_frames:
                yield picture
            count += 1
    if count != num_frames:
        raise ValueError(f"the file has {count} frames, expected {num_frames}")


def open_video(file: BinaryIO | str, form: Literal["matroska", "mov"]) -> InputContainer:
    """Open a video to decode its first video stream on one core.

    Only this format is accepted: others, such as playlists, make the library open other files and servers. Larger frames
    than MAX_PIXELS are refused before memory is allocated for them.
    """
    limits = {"max_pixels": str(MAX_PIXELS)}
    container: InputContainer = av.open(file, "r", format=form, options=limits)
    try:
        stream = container.streams.video[0]
        if stream.codec_context is None:  # happens if the codec's name is damaged, despite the type
            raise ValueError("the codec is unknown")
        stream.codec_context.options = limits
        stream.codec_context.thread_count = 1
        if stream.codec_context.width * stream.codec_context.height > MAX_PIXELS:
            raise ValueError(f"frames of {stream.codec_context.width}x{stream.codec_context.height} are too large")
    except (IndexError, ValueError) as error:
        container.close()
        raise ValueError(f"not a video that can be read: {error}") from error
    return container


def frame_index(picture: av.VideoFrame) -> int:
    """Return the index of a decoded frame, from its time stamp; -1 if it has none. Correct even if frames are missing."""
    return -1 if picture.pts is None or picture.time is None else round(picture.time * _RATE)


def _padded(layout: Layout) -> tuple[int, int]:
    """Height and width in the file. Chroma at half resolution needs even sizes."""
    height, width = layout.shape[:2]
    return (height, width) if layout.lossless else (height + height % 2, width + width % 2)


class ColorConverter:
    """Converts between numpy arrays and the color space of a codec.

    PyAV's own conversion sets itself up again for every frame (0.3 ms), uses all cores and interpolates coarsely. Accurate
    chroma interpolation takes little time and no bytes, gains 2 dB, and is bit-identical on every machine.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._reformatter = VideoReformatter()

    def picture(self, frame: Array) -> av.VideoFrame:
        """Convert a frame [H, W, C] for the codec; repeat its edge if the codec needs an even size."""
        height, width = _padded(self._layout)
        if frame.shape[:2] != (height, width):
            frame = np.pad(frame, ((0, height - frame.shape[0]), (0, width - frame.shape[1]), (0, 0)), mode="edge")
        flat = frame[..., 0] if frame.shape[2] == 1 else frame
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(flat), format=self._layout.array_format)
        return self._convert(picture, self._layout.file_format)

    def pixels(self, picture: av.VideoFrame) -> Array:
        """Convert a decoded frame to an array [H, W, C]."""
        height, width = self._layout.shape[:2]
        array: Array = self._convert(self._checked(picture), self._layout.array_format).to_ndarray()
        return np.ascontiguousarray(array[:height, :width]).reshape(self._layout.shape)

    def fingerprint(self, picture: av.VideoFrame) -> int:
        """Checksum of a decoded frame: of its pixels if lossless, otherwise of the codec's own output."""
        if self._layout.lossless:
            array = self.pixels(picture)
        else:
            array = self._checked(picture).to_ndarray(format=self._layout.file_format)
        return zlib.crc32(np.ascontiguousarray(array).data)

    def _checked(self, picture: av.VideoFrame) -> av.VideoFrame:
        height, width = _padded(self._layout)
        if (picture.height, picture.width) != (height, width):
            raise ValueError(f"a frame is {picture.width}x{picture.height}, expected {width}x{height}")
        return picture

    def _convert(self, picture: av.VideoFrame, pixel_format: str) -> av.VideoFrame:
        return self._reformatter.reformat(picture, format=pixel_format, interpolation=_INTERPOLATION, threads=1)


# ---- encoders next to a control loop


def start_encoding(container: av.container.OutputContainer) -> None:
    """Open the encoders of a configured container and write its header."""
    os.environ.setdefault("SVT_LOG", "1")  # errors only: the library writes directly to the terminal
    for stream in container.streams.video:
        stream.codec_context.thread_count = 1  # leaves the other cores to the control loop
    with _unchanged_priorities():
        container.start_encoding()


@contextlib.contextmanager
def _unchanged_priorities() -> Iterator[None]:
    """Restore the priorities of all threads afterwards.

    SVT-AV1 makes the thread that opens it, and its own threads, real-time if it may. They, and processes started later,
    would block the control loop.
    """
    if not _TASKS.is_dir():
        yield
        return
    before = _schedules()
    opener = before[threading.get_native_id()]
    try:
        yield
    finally:
        for tid, now in _schedules().items():
            if now != before.get(tid, opener):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(tid, *before.get(tid, opener))


def _schedules() -> dict[int, tuple[int, os.sched_param]]:
    """Return the scheduling policy of every thread of this process."""
    found = {}
    for tid in (int(entry.name) for entry in _TASKS.iterdir()):
        with contextlib.suppress(ProcessLookupError):
            found[tid] = (os.sched_getscheduler(tid), os.sched_getparam(tid))
    return found
