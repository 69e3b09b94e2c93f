"""Images of an episode as video in Matroska, through PyAV: exact (FFV1), or smaller (H.264, AV1).

Frames stream in and out one at a time. In FFV1 every frame stands by itself, which makes files 5 % larger than it
need be; at 128 px it costs less than 1 ms a frame each way and is as small as PNG. Of the others every tenth frame
does, so that one damaged byte costs a second of pictures and not the rest of the episode. Matroska, unlike MP4,
has no index without which a truncated file would be lost whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter

from dovetail.core.types import Array
from dovetail.episodes._encoder import start_encoding

__all__ = ["Colours", "Distinct", "Layout", "decode", "encode", "frame_index", "is_image"]

# dtype and channels -> how the lossless codec holds it, and how numpy hands it over
_FORMATS = {
    ("uint8", 3): ("bgr0", "rgb24"),
    ("uint8", 1): ("gray", "gray"),
    ("uint16", 1): ("gray16le", "gray16le"),
}
_ENCODERS = {
    "ffv1": ("ffv1", {"level": "3", "slicecrc": "1"}),
    # no B-frames and no macroblock tree: x264 plans both from memory that it has not set, so that equal frames give
    # other bytes now and then
    "h264": ("libx264", {"preset": "veryfast", "bf": "0", "x264-params": "mbtree=0"}),
    "av1": ("libsvtav1", {"preset": "8", "svtav1-params": "lp=1"}),
}
_LOSSLESS = "ffv1"
_SMALLEST_SIDE = 4  # the codec cannot cut slices from a picture one pixel wide
_GOP = {"ffv1": 1, "h264": 10, "av1": 10}  # frames from one that stands by itself to the next
_CAREFUL = (
    Interpolation.AREA
    | Interpolation.FULL_CHR_H_INP
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
)
_RATE = 25  # 40 ms a frame: whole milliseconds, which is how Matroska counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All that is needed to read a camera's file, beside the file."""

    codec: str  # ffv1, h264 or av1
    shape: tuple[int, ...]  # [H, W, C]
    dtype: str

    @property
    def lossless(self) -> bool:
        return self.codec == _LOSSLESS

    @property
    def given(self) -> str:
        return _FORMATS[self.dtype, self.shape[2]][1]

    @property
    def stored(self) -> str:
        return _FORMATS[self.dtype, self.shape[2]][0] if self.lossless else "yuv420p"


def is_image(column: Array) -> bool:
    """Whether a column [N, H, W, C] is kept as frames; anything else, slivers included, is kept as numbers."""
    if column.ndim != 4 or (column.dtype.name, column.shape[3]) not in _FORMATS:
        return False
    return bool(min(column.shape[1:3]) >= _SMALLEST_SIDE)


@dataclass(slots=True)
class Distinct:
    """Rows in, each distinct frame out once; `index` then says for each row which frame is its own.

    A camera is slower than the control tick, so rows repeat frames. The index is explicit: guessing it from
    the position is how an earlier system paired states with stale images after every gap.
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
    """Write frames as one video; returns each one's fingerprint as it was given.

    The same frames always give the same bytes.
    """
    options = _ENCODERS[layout.codec][1]
    sink = _Sink(file)
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


def _encoded(sink: _Sink, frames: Iterable[Array], layout: Layout, options: dict[str, str]) -> Iterator[int]:
    """Write frames; yields each one's fingerprint when it is on its way."""
    with av.open(sink, "w", format="matroska", options={"fflags": "+bitexact"}) as container:
        stream = cast(
            av.VideoStream, container.add_stream(_ENCODERS[layout.codec][0], rate=_RATE, options=options)
        )
        stream.height, stream.width = _padded(layout)
        stream.pix_fmt = layout.stored
        stream.codec_context.flags |= int(av.codec.context.Flags.bitexact)
        stream.codec_context.gop_size = _GOP[layout.codec]
        start_encoding(container)
        colours = Colours(layout)
        for frame in frames:
            container.mux(stream.encode(colours.picture(frame)))
            yield zlib.crc32(np.ascontiguousarray(frame).data)
        container.mux(stream.encode(None))


class _Sink:
    """A file that remembers why it could not be written: PyAV loses the reason on its way through C."""

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
            self.error = error
            raise


def decode(file: BinaryIO, *, num_frames: int) -> Iterator[av.VideoFrame]:
    """The pictures in a file one by one (see `Colours`); ValueError if there are more or less."""
    count = 0
    with av.open(file, "r") as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for picture in container.decode(stream):
            if count < num_frames:
                yield picture
            count += 1
    if count != num_frames:
        raise ValueError(f"{count} frames where {num_frames} were written")


def frame_index(picture: av.VideoFrame) -> int:
    """Which frame a picture is by its time, which holds also where others are missing; -1 if it does not say."""
    return -1 if picture.pts is None or picture.time is None else round(picture.time * _RATE)


def _padded(layout: Layout) -> tuple[int, int]:
    """Height and width in the file: chroma at half resolution wants even ones."""
    height, width = layout.shape[:2]
    return (height, width) if layout.lossless else (height + height % 2, width + width % 2)


class Colours:
    """Between numpy and the colours of a codec, for one film after the other.

    PyAV would prepare a conversion anew for every frame (0.3 ms), on all cores, and in a hurry. Chroma that is
    averaged and rounded with care costs a little time and no bytes, and is worth 2 dB; and it is the same to the bit
    on every machine.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._reformatter = VideoReformatter()

    def picture(self, frame: Array) -> av.VideoFrame:
        """A frame [H, W, C] as the codec takes it, its edge repeated where that wants more."""
        height, width = _padded(self._layout)
        if frame.shape[:2] != (height, width):
            frame = np.pad(frame, ((0, height - frame.shape[0]), (0, width - frame.shape[1]), (0, 0)), mode="edge")
        flat = frame[..., 0] if frame.shape[2] == 1 else frame
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(flat), format=self._layout.given)
        return self._convert(picture, self._layout.stored)

    def pixels(self, picture: av.VideoFrame) -> Array:
        """A decoded picture as it was seen, [H, W, C]."""
        height, width = self._layout.shape[:2]
        array: Array = self._convert(self._checked(picture), self._layout.given).to_ndarray()
        return np.ascontiguousarray(array[:height, :width]).reshape(self._layout.shape)

    def fingerprint(self, picture: av.VideoFrame) -> int:
        """Tells a good frame from a damaged one; of what the codec itself gives, if that is not what was seen."""
        lossless = self._layout.lossless
        array = self.pixels(picture) if lossless else self._checked(picture).to_ndarray(format=self._layout.stored)
        return zlib.crc32(np.ascontiguousarray(array).data)

    def _checked(self, picture: av.VideoFrame) -> av.VideoFrame:
        height, width = _padded(self._layout)
        if (picture.height, picture.width) != (height, width):
            raise ValueError(f"a picture of {picture.width}x{picture.height} where {width}x{height} were written")
        return picture

    def _convert(self, picture: av.VideoFrame, pixel_format: str) -> av.VideoFrame:
        return self._reformatter.reformat(picture, format=pixel_format, interpolation=_CAREFUL, threads=1)
