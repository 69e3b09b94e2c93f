"""How much memory the decoded images of an episode may take.

A video compresses well: one of a few kilobytes may claim gigabytes of pixels. So the memory is compared with the file's
size before it is allocated, and with what the machine has.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dovetail.core.errors import StoreError
from dovetail.core.types import Array

__all__ = ["allocate_images"]

FREE_BYTES = 256 << 20  # of one camera: allowed whatever the file's size is
MAX_EXPANSION = 10_000  # of a file. H.264 at its worst quality makes a still 1080p scene smaller by this factor
_MEMORY = Path("/proc/meminfo")


def allocate_images(
    num_images: int, shape: Sequence[int], dtype: str, *, num_stored_bytes: int, name: str
) -> Array:
    """An empty array [N, *shape] for the images that `num_stored_bytes` encode.

    Raises StoreError if a real recording would be larger than that, or if the memory is not available.
    """
    needed = num_images * math.prod(shape) * np.dtype(dtype).itemsize
    if needed > max(FREE_BYTES, MAX_EXPANSION * num_stored_bytes):
        raise StoreError(
            f"{name} is refused: {num_images} images in {num_stored_bytes} bytes would take {_mb(needed)} of memory, more "
            f"than {MAX_EXPANSION} times their size. No camera records such images"
        )
    available = _available_bytes()
    if available is not None and needed > available:
        raise StoreError(
            f"{name}: {num_images} images need {_mb(needed)} of memory, but {_mb(available)} are available. Use a machine "
            "with more memory, or record smaller images"
        )
    return np.empty((num_images, *shape), dtype)


def _mb(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MB"


def _available_bytes() -> int | None:
    """Memory that can be allocated without swapping; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in _MEMORY.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None
