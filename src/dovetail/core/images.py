"""Images as a policy looks at them. Actor, replay and remote policy all call this, so their pixels are the same.

Color is averaged (PIL, bilinear with antialiasing, integers only: the same bits on every machine), or interpolated between
the four nearest pixels for policies that were trained so (LeRobot's, by torch). The spec says which. Depth takes the nearest
pixel, because the average of two distances, or of a distance and a missing value, is a distance that was never measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dovetail.core.image_sizes import Scaling, fitted_shape, is_fitted
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import Array

__all__ = ["resize_images", "resize_with_pad", "seen_inputs", "seen_robot"]


def resize_images(frames: Array, spec: ArraySpec) -> Array:
    """Scale images [..., H, W, C] to the shape [h, w, C] of the spec; unchanged if they have it."""
    shape = spec.shape
    if frames.shape[-3:] == shape:
        return frames
    resize = _nearest if frames.dtype != np.uint8 else _averaged if spec.scaling == "averaged" else _interpolated
    flat = frames.reshape(-1, *frames.shape[-3:])
    small = np.empty((len(flat), *shape), frames.dtype)
    for number, frame in enumerate(flat):
        if number and np.array_equal(frame, flat[number - 1]):  # a slow camera, or padded history
            small[number] = small[number - 1]
        else:
            small[number] = resize(frame, shape)
    return small.reshape(*frames.shape[:-3], *shape)


def resize_with_pad(frame: Array, *, size: int) -> Array:
    """As openpi's client does, bit for bit: fitted, centered on black. uint8 [H, W, 3] to [size, size, 3].

    The sides are rounded as openpi rounds them, in floats, and not as `fitted_shape` does."""
    if frame.shape[:2] == (size, size):
        return frame
    ratio = max(frame.shape[1] / size, frame.shape[0] / size)
    height, width = int(frame.shape[0] / ratio), int(frame.shape[1] / ratio)
    padded = np.zeros((size, size, 3), np.uint8)
    top, left = int((size - height) / 2), int((size - width) / 2)
    padded[top : top + height, left : left + width] = _averaged(frame, (height, width, 3))
    return padded


def seen_robot(robot: RobotSpec, size: int | None, scaling: Scaling = "averaged") -> RobotSpec:
    """The robot with images whose longer side is at most `size`. None: as they are."""
    smaller = {
        key: replace(
            spec, shape=fitted_shape(spec.shape, size), scaling=scaling if spec.is_image else spec.scaling
        )
        for key, spec in robot.observation.items()
        if spec.is_picture and spec.shape != fitted_shape(spec.shape, size)
    }
    return replace(robot, observation={**robot.observation, **smaller}) if smaller else robot


def seen_inputs(inputs: Mapping[str, Array], spec: PolicySpec) -> dict[str, Array]:
    """Inputs of a policy, [B, ...] or [B, h, ...], with images in the sizes of its spec. Others are left as they are: if
    they do not fit, the policy's own check says so."""
    seen = dict(inputs)
    for key, array in spec.observation.items():
        value = inputs.get(key)
        if value is None or not array.is_picture or value.dtype != array.dtype:
            continue
        if value.shape[-3:] != array.shape and is_fitted(array.shape, value.shape[-3:]):
            seen[key] = resize_images(value, array)
    return seen


def _averaged(frame: Array, shape: tuple[int, ...]) -> Array:
    from PIL import Image  # only who resizes needs it: the core of a robot's computer is numpy

    size = (shape[1], shape[0])
    parts = [frame] if shape[2] == 3 else [frame[..., channel] for channel in range(shape[2])]
    resized = [
        np.asarray(Image.fromarray(np.ascontiguousarray(part)).resize(size, resample=Image.Resampling.BILINEAR))
        for part in parts
    ]
    return resized[0] if shape[2] == 3 else np.stack(resized, axis=-1)


def _interpolated(frame: Array, shape: tuple[int, ...]) -> Array:
    """Bilinear without antialiasing, as torch.nn.functional.interpolate does it in floats, then rounded."""
    rows, columns = (_neighbors(old, new) for old, new in zip(frame.shape[:2], shape[:2], strict=True))
    pixels, width = frame.reshape(-1, frame.shape[2]), frame.shape[1]

    def line(row: Array) -> Array:
        # only the pixels that are needed: the whole rows would take three times as long
        left, right = (
            pixels.take(row[:, None] * width + column, axis=0).astype(np.float32) for column in columns[:2]
        )
        return np.asarray(left + (right - left) * columns[2][:, None])

    above, below = line(rows[0]), line(rows[1])
    return np.asarray(np.rint(above + (below - above) * rows[2][:, None, None]), np.uint8)


@lru_cache(maxsize=64)
def _neighbors(old: int, new: int) -> tuple[Array, Array, Array]:
    """For each of `new` pixels: the two nearest of `old`, and the share of the second one."""
    at = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0.0, old - 1.0)
    first = at.astype(np.intp)
    return first, np.minimum(first + 1, old - 1), (at - first).astype(np.float32)


def _nearest(frame: Array, shape: tuple[int, ...]) -> Array:
    # the middle of each target pixel, in integers
    rows, columns = (
        (2 * np.arange(new) + 1) * old // (2 * new) for old, new in zip(frame.shape[:2], shape[:2], strict=True)
    )
    picked: Array = frame[rows[:, None], columns[None, :]]
    return picked
