"""Numbers from names: the same on every machine and with every version of every package, so that recorded outputs need no
recorded inputs. numpy only, because scripts in other environments use it too."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np


def hashed(name: str, shape: tuple[int, ...]) -> Any:
    """float32 in [-1, 1), from the name and the place (splitmix64)."""
    num = int(np.prod(shape))
    with np.errstate(over="ignore"):
        x = np.arange(1, num + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(zlib.crc32(name.encode())) << np.uint64(20)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x ^= x >> np.uint64(31)
    unit = (x >> np.uint64(40)).astype(np.float64) / 2.0**23  # 24 bits: exact in float32
    return (unit - 1.0).astype(np.float32).reshape(shape)


def hashed_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Weights of a network by name: norms near 1, others small enough that activations neither vanish nor explode."""
    found = {}
    for name, shape in shapes.items():
        values = hashed(name, tuple(shape))
        if len(shape) > 1:
            found[name] = values * np.float32((3.0 / np.prod(shape[1:])) ** 0.5)
        else:
            found[name] = (
                np.float32(1.0 if "norm" in name and name.endswith("weight") else 0.0) + np.float32(0.3) * values
            )
    return found


def hashed_frames(name: str, shape: tuple[int, ...]) -> Any:
    """uint8 images [..., H, W, 3], from smooth waves and noise."""
    noise = (hashed(name, shape) + 1.0) * 0.5
    *_, height, width, _ = shape
    rows, columns = np.mgrid[:height, :width]
    waves = (rows * 5 + columns * 3) % 97 / 97.0
    return (255.0 * (0.5 * noise + 0.5 * waves[..., None])).astype(np.uint8)
