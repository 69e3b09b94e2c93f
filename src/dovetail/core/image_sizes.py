"""Sizes of the images that a policy looks at. A camera may be larger: its images are scaled down, never up.

The aspect ratio is kept, so that nothing is distorted and nothing is padded: 640x480 becomes 128x96. Encoders take any size;
a policy that needs a square pads by itself. `dovetail.core.images` computes the pixels.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["SCALINGS", "Scaling", "fitted_shape", "is_fitted"]

Scaling = Literal["averaged", "interpolated"]
SCALINGS: tuple[Scaling, ...] = ("averaged", "interpolated")


def fitted_shape(shape: tuple[int, ...], size: int | None) -> tuple[int, ...]:
    """The shape [h, w, C] of an image [H, W, C] whose longer side is at most `size`. None: unchanged."""
    longest = max(shape[:2])
    if size is None or longest <= size:
        return shape
    height, width = (max(1, side * size // longest) for side in shape[:2])
    return (height, width, *shape[2:])


def is_fitted(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Whether images of shape `large` become `small` for some size."""
    return len(small) == len(large) == 3 and small == fitted_shape(large, max(small[:2]))
