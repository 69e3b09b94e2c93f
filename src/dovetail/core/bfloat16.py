"""bfloat16 in numpy, which has no such type: a dtype of our own that holds the two bytes of each number.

`BFLOAT16` is a structured dtype, so shapes, copies, slices, equality and shared memory work as with any other array. It
has two fields, because numpy would convert one field to other numbers; so arithmetic and `astype` raise an error.
"""

from __future__ import annotations

import numpy as np

from dovetail.core.types import Array

__all__ = ["BFLOAT16", "all_finite", "as_float32", "dtype_name", "from_bfloat16", "to_bfloat16"]

BFLOAT16 = np.dtype([("bfloat16_low", "u1"), ("bfloat16_high", "u1")])
_EXPONENT = 0x7F80  # all bits set: infinite or not a number
_NAN = 0x7FC0


def from_bfloat16(array: Array) -> Array:
    """The same numbers as float32. Exact."""
    return (array.view("<u2").astype(np.uint32) << 16).view(np.float32)


def as_float32(array: Array) -> Array:
    """A copy as float32, of any type of numbers."""
    return from_bfloat16(array) if array.dtype == BFLOAT16 else np.array(array, np.float32)


def to_bfloat16(array: Array) -> Array:
    """float32 rounded to the nearest bfloat16, ties to even."""
    bits = np.asarray(array, np.float32, order="C").reshape(-1).view(np.uint32)
    lowest_kept = (bits >> 16) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + lowest_kept) >> 16).astype("<u2")  # only the bits of a NaN can overflow
    rounded[np.isnan(array).reshape(-1)] = _NAN
    return rounded.view(BFLOAT16).reshape(array.shape)


def dtype_name(dtype: np.dtype[np.generic]) -> str:
    """`bfloat16`, or numpy's name."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def all_finite(array: Array) -> bool:
    """Whether no number is infinite or NaN."""
    if array.dtype == BFLOAT16:
        return bool(((array.view("<u2") & _EXPONENT) != _EXPONENT).all())
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
