"""Read safetensors files without a second copy in memory.

The library copies each tensor out of the bytes of a file, and a mapped file could change after its checksum. Here a file is
read once into a buffer, and the arrays are views of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.disk import damaged_message, open_file, parse_json, sha256
from dovetail.core.errors import StoreError
from dovetail.core.types import Array

__all__ = ["read_tensors"]

_TYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip
_BF16 = "BF16"  # numpy lacks it; as float32 it is exact
_LENGTH_BYTES = 8  # the length of the header, little-endian
_METADATA = "__metadata__"
_MAX_AXES = 32  # numpy allows no more


def read_tensors(path: Path, *, checksum: str | None = None, widen_bf16: bool = False) -> dict[str, Array]:
    """The arrays of a file. They share one buffer, which is in memory until the last of them is deleted. With `widen_bf16`,
    bfloat16 becomes float32, which takes twice its memory.

    Raises StoreError if the file is unreadable or damaged, or if numpy lacks the type of a tensor."""
    data = _read(path)
    if checksum is not None and sha256(data) != checksum:
        raise StoreError(damaged_message(path))
    try:
        return dict(_tensors(data, widen_bf16=widen_bf16))
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{path} is not a safetensors file that numpy can read: {reason}") from error


def _read(path: Path) -> bytearray:
    with open_file(path) as file:
        try:
            data = bytearray(os.fstat(file.fileno()).st_size)
            num_read = file.readinto(data)
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if num_read != len(data):
        raise StoreError(f"{path} became shorter while it was read")
    return data


def _tensors(data: bytearray, *, widen_bf16: bool) -> Iterator[tuple[str, Array]]:
    """Check that the tensors cover the data completely and do not overlap, as the format says."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if start > len(data):
        raise ValueError(f"its header should have {length} bytes, but the file has {len(data)}")
    header = parse_json(data[_LENGTH_BYTES:start].decode())
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    header.pop(_METADATA, None)
    at = 0
    for name, facts in sorted(header.items(), key=lambda item: _place(item[1])):
        begin, end = _place(facts)
        is_bf16 = widen_bf16 and facts["dtype"] == _BF16
        kind, shape = np.dtype(np.uint16 if is_bf16 else _TYPES[facts["dtype"]]), facts["shape"]
        if not isinstance(shape, list) or len(shape) > _MAX_AXES or not all(map(_is_size, shape)):
            raise ValueError(f"the shape of '{name[:80]}' is not valid")
        if begin != at or end - begin != math.prod(shape) * kind.itemsize or start + end > len(data):
            raise ValueError(f"the place of '{name[:80]}' is not valid")
        array = np.frombuffer(data, kind, count=math.prod(shape), offset=start + begin).reshape(shape)
        if is_bf16:  # the upper half of a float32
            wide = array.astype(np.uint32)
            wide <<= 16
            array = wide.view(np.float32)
        yield name, array if array.flags.aligned else array.copy()
        at = end
    if start + at != len(data):
        raise ValueError(f"{len(data) - start - at} bytes belong to no tensor")


def _place(facts: dict[str, Any]) -> tuple[int, int]:
    begin, end = facts["data_offsets"]
    if not _is_size(begin) or not _is_size(end):
        raise ValueError("a place is not a number")
    return begin, end


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
