"""Read and write safetensors files without a second copy in memory, bfloat16 included.

The library copies each tensor out of the bytes of a file, and a mapped file could change after its checksum. Here a file is
read once into a buffer, and the arrays are views of it. A file is written from the memory of the arrays, with the same
bytes that the library writes, because files are named by their hash.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.bfloat16 import BFLOAT16, dtype_name
from dovetail.core.disk import damaged_message, open_file, parse_json, sha256
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Array

__all__ = ["parse_tensors", "read_tensors", "tensor_blocks"]

# in the order of the tensors in a file: large types first, so that all are aligned
_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in (
        ("U64", "<u8"), ("I64", "<i8"), ("F64", "<f8"),
        ("F32", "<f4"), ("U32", "<u4"), ("I32", "<i4"),
        ("BF16", BFLOAT16), ("F16", "<f2"), ("U16", "<u2"), ("I16", "<i2"),
        ("I8", "i1"), ("U8", "u1"), ("BOOL", "?"),
    )
}  # fmt: skip
_NAMES = {dtype_name(kind): name for name, kind in _TYPES.items()}
_PLACES = {name: place for place, name in enumerate(_TYPES)}
_LENGTH_BYTES = 8  # the length of the header, little-endian
_METADATA = "__metadata__"
_MAX_AXES = 32  # numpy allows no more


def read_tensors(path: Path, *, checksum: str | None = None) -> dict[str, Array]:
    """The arrays of a file. They share one buffer, which is in memory until the last of them is deleted.

    Raises StoreError if the file is unreadable or damaged, or if numpy lacks the type of a tensor."""
    data = _read(path)
    if checksum is not None and sha256([data]) != checksum:
        raise StoreError(damaged_message(path))
    return parse_tensors(data, name=str(path))


def parse_tensors(data: bytearray | memoryview, *, name: str) -> dict[str, Array]:
    """The arrays in the bytes of a file. They are views of `data`. Raises StoreError as `read_tensors` does."""
    try:
        return dict(_tensors(data))
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{name} is not a safetensors file that numpy can read: {reason}") from error


def tensor_blocks(arrays: Mapping[str, Array], *, prefix: str = "") -> list[memoryview]:
    """The bytes of a file: its header, then the memory of each array, without a copy unless it is not contiguous.

    Errors name an array with `prefix`."""
    named = [(_type_of(array, prefix + name), name, array) for name, array in arrays.items()]
    named.sort(key=lambda item: (_PLACES[item[0]], item[1]))
    header: dict[str, Any] = {}
    blocks: list[memoryview] = []
    at = 0
    for kind, name, array in named:
        whole = np.asarray(array, _TYPES[kind], order="C")
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + whole.nbytes]}
        at += whole.nbytes
        if whole.nbytes:
            blocks.append(whole.reshape(-1).view(np.uint8).data)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return [memoryview(len(text).to_bytes(_LENGTH_BYTES, "little") + text), *blocks]


def _type_of(array: Array, name: str) -> str:
    try:
        return _NAMES[dtype_name(array.dtype)]
    except KeyError as error:
        raise UsageError(f"weights '{name}' are {array.dtype}, but only plain numbers can be saved") from error


def _read(path: Path) -> memoryview:
    with open_file(path) as file:
        try:
            # no bytearray: it is filled with zeros first, and gigabytes of them stop all threads for seconds
            data = np.empty(os.fstat(file.fileno()).st_size, np.uint8).data
            num_read = file.readinto(data)
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if num_read != len(data):
        raise StoreError(f"{path} became shorter while it was read")
    return data


def _tensors(data: bytearray | memoryview) -> Iterator[tuple[str, Array]]:
    """Check that the tensors cover the data completely and do not overlap, as the format says."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if start > len(data):
        raise ValueError(f"its header should have {length} bytes, but the file has {len(data)}")
    header = parse_json(bytes(data[_LENGTH_BYTES:start]).decode())
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    header.pop(_METADATA, None)
    at = 0
    for name, facts in sorted(header.items(), key=lambda item: _place(item[1])):
        begin, end = _place(facts)
        kind, shape = _TYPES[facts["dtype"]], facts["shape"]
        if not isinstance(shape, list) or len(shape) > _MAX_AXES or not all(map(_is_size, shape)):
            raise ValueError(f"the shape of '{name[:80]}' is not valid")
        if begin != at or end - begin != math.prod(shape) * kind.itemsize or start + end > len(data):
            raise ValueError(f"the place of '{name[:80]}' is not valid")
        array = np.frombuffer(data, kind, count=math.prod(shape), offset=start + begin).reshape(shape)
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
