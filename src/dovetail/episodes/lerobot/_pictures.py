"""The color images of the episodes of a dataset, from videos or embedded in the tables. Depth is in `_depth`."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from dovetail.core.disk import open_file
from dovetail.core.errors import StoreError
from dovetail.core.types import Array
from dovetail.episodes._frames import MAX_PIXELS
from dovetail.episodes._image_memory import allocate_images
from dovetail.episodes.lerobot._mapping import Piece
from dovetail.episodes.lerobot._meta import Meta
from dovetail.episodes.lerobot._video import read_frames

__all__ = ["Pictures"]


class Pictures:
    """Reads the images of an episode, given its row and its table. Images of Dovetail's own datasets may be padded."""

    def __init__(self, meta: Meta, *, is_ours: bool) -> None:
        self._meta, self._is_ours = meta, is_ours

    def frames(self, row: Mapping[str, Any], table: pa.Table, piece: Piece, *, with_last: bool) -> Array:
        """Return frames [T, H, W, C], or [T + 1, ...] including the last observation's."""
        name, num_stored_bytes = self._stored_images(row, table, piece.feature)
        frames = allocate_images(
            len(table) + with_last, piece.spec.shape, "uint8", num_stored_bytes=num_stored_bytes, name=name
        )
        for number, frame in enumerate(self.stream(row, table, piece, num_frames=len(frames))):
            frames[number] = frame
        return frames

    def stream(self, row: Mapping[str, Any], table: pa.Table, piece: Piece, *, num_frames: int) -> Iterator[Array]:
        """Yield the images of a camera one by one, in the shape of the robot's spec."""
        height, width, channels = piece.spec.shape
        for frame in self._pictures(row, table, piece.feature, num_frames):
            if (
                frame.shape[0] < height
                or frame.shape[1] < width
                or (frame.shape[:2] != (height, width) and not self._is_ours)
            ):
                raise StoreError(
                    f"{self._meta.root}: a frame of {piece.feature} is {list(frame.shape)}, not {list(piece.spec.shape)}"
                )
            yield frame[:height, :width, :channels]

    def _stored_images(self, row: Mapping[str, Any], table: pa.Table, feature: str) -> tuple[str, int]:
        """What contains the encoded images, and its size. One video may contain several episodes."""
        if self._meta.features[feature]["dtype"] == "image":
            return f"{self._meta.root}: '{feature}'", table[feature].nbytes
        path = self._meta.video_file(row, feature)
        with open_file(path) as file:
            return str(path), os.fstat(file.fileno()).st_size

    def _pictures(self, row: Mapping[str, Any], table: pa.Table, feature: str, num_frames: int) -> Iterator[Array]:
        if self._meta.features[feature]["dtype"] == "image":
            return (_decode_embedded(value.as_py(), self._meta.root) for value in table[feature])
        path, fps = self._meta.video_file(row, feature), self._meta.info["fps"]
        first = row.get(f"videos/{feature}/from_timestamp")
        if first is None:
            raise StoreError(f"{self._meta.root}: episode {row['episode_index']} has no video of {feature}")
        times = first + np.arange(num_frames) / fps
        return read_frames(path, times, fps=fps)


def _decode_embedded(value: Mapping[str, Any] | None, root: Path) -> Array:
    """Decode an image that LeRobot has embedded in the table as a PNG file."""
    data = value.get("bytes") if isinstance(value, Mapping) else None
    if not isinstance(data, bytes):
        raise StoreError(f"{root}: an image is missing in the data files")
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise ValueError(f"{picture.width}x{picture.height} pixels are too large")
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, zlib.error, Image.DecompressionBombError) as error:
        raise StoreError(f"{root}: an image in the data files cannot be decoded: {error}") from error
