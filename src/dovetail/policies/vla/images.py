"""Images as each family wants them: resized without distortion, on black, in [-1, 1]."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dovetail.core.images import resize_with_pad
from dovetail.core.types import Array

__all__ = ["prepare_images", "prepare_images_in_corner"]


def prepare_images(frames: Array, *, size: int, with_pil: bool, device: torch.device) -> Tensor:
    """uint8 [B, H, W, 3] to float32 [B, 3, size, size], centered. Borders are -1.

    With PIL it is openpi's way: on uint8, with antialiasing. Without, it is LeRobot's: on floats, without antialiasing.
    """
    if with_pil:
        frames = np.stack([resize_with_pad(frame, size=size) for frame in frames])
    images = _resize(frames, size=size, device=device)
    rows, columns = size - images.shape[-2], size - images.shape[-1]
    top, left = rows // 2, columns // 2
    return functional.pad(images, (left, columns - left, top, rows - top)) * 2.0 - 1.0


def prepare_images_in_corner(frames: Array, *, size: int, with_pil: bool, device: torch.device) -> Tensor:
    """The same as LeRobot's smolvla does it: borders are on the left and on top only."""
    assert not with_pil, "openpi has no smolvla"
    images = _resize(frames, size=size, device=device)
    return functional.pad(images, (size - images.shape[-1], 0, size - images.shape[-2], 0)) * 2.0 - 1.0


def _resize(frames: Array, *, size: int, device: torch.device) -> Tensor:
    """uint8 [B, H, W, 3] to float32 [B, 3, h, w] in [0, 1], whose longer side is `size`. Bilinear, without antialiasing."""
    images = torch.tensor(frames, device=device).permute(0, 3, 1, 2).float() / 255.0
    if images.shape[-2:] == (size, size):
        return images
    fitted = _fitted(images.shape[-2], images.shape[-1], size=size)
    return functional.interpolate(images, size=fitted, mode="bilinear", align_corners=False).clamp(0.0, 1.0)


def _fitted(height: int, width: int, *, size: int) -> tuple[int, int]:
    ratio = max(width / size, height / size)
    return int(height / ratio), int(width / ratio)
