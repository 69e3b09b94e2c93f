"""Camera frames in the sizes that a policy looks at."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dovetail.core.images import resize_images
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Array

__all__ = ["SeenFrames"]


class SeenFrames:
    """Scales each frame once, although history and slow cameras ask for it again. Keeps the frames of the last request.

    A frame's number is valid within one history: another `first` row forgets everything, because a control process that
    starts again counts its frames from 0.
    """

    def __init__(self) -> None:
        self._first = -1
        self._small: dict[str, dict[int, Array]] = {}

    def of(self, key: str, numbers: Array, spec: ArraySpec, *, first: int, frame: Callable[[int], Array]) -> Array:
        """The frames of these numbers as the spec says, [N, *shape]. `frame` reads a frame of the camera."""
        if first != self._first:
            self._first = first
            self._small.clear()
        known, small = self._small.get(key, {}), {}
        for number in dict.fromkeys(numbers.tolist()):
            before = known.get(number)
            small[number] = (
                before if before is not None and before.shape == spec.shape else resize_images(frame(number), spec)
            )
        self._small[key] = small
        return np.stack([small[number] for number in numbers.tolist()])
