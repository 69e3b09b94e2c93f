"""Depth images of an exported episode, lossless, in `dovetail/depth/`. LeRobot has no format for them and ignores these.

dovetail/depth/front_depth/chunk-000/episode_000000.mkv    each distinct frame once (FFV1, 16 bits)
arrays of dovetail/episodes: depth/front_depth             the frame of each step and of the last observation, int32 [T + 1]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import av
import numpy as np

from dovetail.core.disk import open_file
from dovetail.core.errors import StoreError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array
from dovetail.episodes._frames import ColorConverter, DistinctFrames, Layout, decode, encode
from dovetail.episodes._image_memory import allocate_images

__all__ = ["FOLDER", "depth_file", "read_depth", "stream_depth", "write_depth"]

FOLDER = "dovetail/depth"
_EPISODES_PER_FOLDER = 1000


def depth_file(name: str, episode_index: int) -> str:
    chunk = episode_index // _EPISODES_PER_FOLDER
    return f"{FOLDER}/{name}/chunk-{chunk:03d}/episode_{episode_index:06d}.mkv"


def write_depth(path: Path, frames: Iterable[Array], spec: ArraySpec) -> Array:
    """Write all frames of an episode; return the number of each row's frame."""
    distinct = DistinctFrames(_checked(frames, spec))
    with path.open("wb") as file:
        encode(file, distinct, _layout(spec))
    return np.array(distinct.index, np.int32)


def stream_depth(path: Path, index: Array | None, spec: ArraySpec, *, num_rows: int) -> Iterator[Array]:
    """Yield the frames [H, W, 1] of all rows. Raises StoreError if the file, of any origin, does not have them."""
    if index is None or index.shape != (num_rows,) or index.dtype != np.int32 or not _is_valid(index):
        raise StoreError(f"{path}: the numbers of its frames are missing or not valid")
    converter, num_frames = ColorConverter(_layout(spec)), int(index[-1]) + 1
    try:
        with open_file(path) as file:
            for number, picture in enumerate(decode(file, num_frames=num_frames)):
                frame = converter.pixels(picture)
                for _ in range(int((index == number).sum())):
                    yield frame
    except (av.FFmpegError, OSError, ValueError, OverflowError) as error:
        raise StoreError(f"{path} cannot be decoded: {' '.join(str(error).split())[:200]}") from error


def read_depth(path: Path, index: Array | None, spec: ArraySpec, *, num_rows: int) -> Array:
    """The frames [num_rows, H, W, 1]."""
    rows = stream_depth(path, index, spec, num_rows=num_rows)
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
    frames = allocate_images(num_rows, spec.shape, spec.dtype, num_stored_bytes=size, name=str(path))
    for number, frame in enumerate(rows):
        frames[number] = frame
    return frames


def _checked(frames: Iterable[Array], spec: ArraySpec) -> Iterator[Array]:
    for frame in frames:
        if frame.shape != spec.shape or frame.dtype != spec.dtype:
            raise StoreError(
                f"a depth image is {frame.dtype}{list(frame.shape)}, but its spec says {spec.describe()}"
            )
        yield frame


def _layout(spec: ArraySpec) -> Layout:
    return Layout(codec="ffv1", shape=spec.shape, dtype=spec.dtype)


def _is_valid(index: Array) -> bool:
    return bool(len(index) and index[0] == 0 and np.isin(np.diff(index), (0, 1)).all())
