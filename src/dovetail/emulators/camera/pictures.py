"""The pictures of the emulated camera. Each one shows its number, so that a test knows which one it received."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from dovetail.core.types import Array

__all__ = ["NUM_PICTURES", "encode_jpeg", "make_picture", "picture_number"]

NUM_PICTURES = 64  # then the numbers repeat
_NUM_BITS = 6


def make_picture(number: int, *, width: int, height: int) -> Array:
    """A moving gradient [H, W, 3], with the bits of the number as light and dark blocks in the top eighth."""
    x, y = np.arange(width), np.arange(height)
    shift = number / NUM_PICTURES
    picture = np.empty((height, width, 3), np.uint8)
    picture[:, :, 0] = 127 + 120 * np.sin(2 * np.pi * (x / width + shift))
    picture[:, :, 1] = (127 + 120 * np.sin(2 * np.pi * (y / height + shift)))[:, None]
    picture[:, :, 2] = 127 + 120 * np.sin(2 * np.pi * (x[None] / width + y[:, None] / height - shift))
    edges = np.linspace(0, width, _NUM_BITS + 1).astype(int)
    for bit in range(_NUM_BITS):
        picture[: height // 8, edges[bit] : edges[bit + 1]] = 235 if number >> bit & 1 else 20
    return picture


def picture_number(picture: Array) -> int:
    """The number that a received picture shows, of any size."""
    height, width = picture.shape[:2]
    row, width_of_bit = picture[height // 16].mean(axis=-1), width / _NUM_BITS
    return sum(int(row[int((bit + 0.5) * width_of_bit)] > 127) << bit for bit in range(_NUM_BITS))


def encode_jpeg(picture: Array, *, quality: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "JPEG", quality=quality, subsampling=1)  # 4:2:2, as webcams send it
    return out.getvalue()
