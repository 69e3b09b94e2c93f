"""The images of an episode that are decoded whenever they are read, so that one image is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dovetail.core.types import Array

__all__ = ["ImageStream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageStream:
    """All rows of a camera, including that of the last observation: [T + 1, H, W, C], read as often as needed."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.uint8] | np.dtype[np.uint16]
    decode: Callable[[], Iterator[Array]]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return self.decode()
