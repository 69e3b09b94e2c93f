"""Images of an episode, each distinct frame once and without loss: FFV1 in Matroska, through PyAV.

FFV1 codes every frame by itself and carries a checksum per slice; at 128 px it costs about 1 ms a frame each
way and is as small as PNG.
"""

from __future__ import annotations

import io

import av
import numpy as np

from dovetail.core.types import Array

__all__ = ["decode", "deduplicate", "encode", "is_image"]

# dtype and channels -> how the codec holds it, and how numpy hands it over
_FORMATS = {
    ("uint8", 3): ("bgr0", "rgb24"),
    ("uint8", 1): ("gray", "gray"),
    ("uint16", 1): ("gray16le", "gray16le"),
}

_SMALLEST_SIDE = 4  # the codec cannot cut slices from a picture one pixel wide


def is_image(column: Array) -> bool:
    """Whether a column [N, H, W, C] is kept as frames; anything else, slivers included, is kept as numbers."""
    if column.ndim != 4 or (column.dtype.name, column.shape[3]) not in _FORMATS:
        return False
    return bool(min(column.shape[1:3]) >= _SMALLEST_SIDE)


def deduplicate(frames: Array) -> tuple[Array, Array]:
    """Distinct frames in order, and for each row the index of its frame.

    A camera is slower than the control tick, so rows repeat frames. The index is explicit: guessing it from
    the position is how an earlier system paired states with stale images after every gap.
    """
    fresh = np.ones(len(frames), bool)
    for row in range(1, len(frames)):
        fresh[row] = not np.array_equal(frames[row], frames[row - 1])
    return (frames if fresh.all() else frames[fresh]), np.cumsum(fresh) - 1


def encode(frames: Array) -> bytes:
    """Frames [N, H, W, C] as the bytes of one file; the same frames always give the same bytes."""
    stored, given = _FORMATS[frames.dtype.name, frames.shape[3]]
    file = io.BytesIO()
    with av.open(file, "w", format="matroska", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("ffv1", rate=30, options={"level": "3", "slicecrc": "1"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = stored
        stream.codec_context.thread_count = 1  # the other cores belong to the control loop
        stream.codec_context.flags |= int(av.codec.context.Flags.bitexact)
        for frame in frames:
            pixels = frame[..., 0] if frame.shape[2] == 1 else frame
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format=given)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return file.getvalue()


def decode(data: bytes, *, num_frames: int, frame_shape: tuple[int, ...], dtype: str) -> Array:
    """The frames of `encode`, [N, H, W, C]."""
    _, given = _FORMATS[dtype, frame_shape[2]]
    frames = np.empty((num_frames, *frame_shape), dtype)
    count = 0
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for picture in container.decode(stream):
            if count < num_frames:
                frames[count] = picture.to_ndarray(format=given).reshape(frame_shape)
            count += 1
    if count != num_frames:
        raise ValueError(f"{count} frames where {num_frames} were written")
    return frames
