"""openpi's messages: msgpack with numpy arrays, as maps with the bytes keys `__ndarray__`, `data`, `dtype` and `shape`.

Received data is never executed, and a message takes little more memory than its bytes: sizes are checked before arrays are
made, and the number of values in maps and lists is limited. Some servers send the four keys as text, so both are read;
bytes are sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from dovetail.core.types import Array
from dovetail.policies.remote.wire import DTYPES, WireError

__all__ = ["MAX_MESSAGE", "pack", "unpack"]

MAX_MESSAGE = 1 << 25  # 32 MB: four cameras with 1920x1080 pixels
_MAX_ITEMS = 1024  # of one map or list; a list of a stated length is allocated before its items arrive
_MAX_VALUES = (
    1 << 16
)  # in all maps and lists; a list is one byte in a message and 56 in memory, a short text 3 and 51
_DTYPES = {dtype.newbyteorder(order).str for dtype in DTYPES.values() for order in ("little", "big")}


def pack(message: Mapping[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(message, default=_pack_array)
    return packed


def unpack(data: bytes) -> dict[str, Any]:
    """The map of a message. Raise WireError if it is anything else."""
    if len(data) > MAX_MESSAGE:
        raise WireError(f"a message of {len(data)} bytes is larger than {MAX_MESSAGE}")
    containers = _Containers()
    try:
        message = msgpack.unpackb(
            data,
            object_hook=containers.read_map,
            list_hook=containers.read_list,
            ext_hook=_no_extension,
            max_array_len=_MAX_ITEMS,
            max_map_len=_MAX_ITEMS,
            max_ext_len=16,
        )
    except WireError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise WireError("the received data is not a message of openpi's protocol") from error
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise WireError("the received message is not a map with text keys")
    return message


class _Containers:
    """Reads the maps and lists of one message, up to a limit of values in them."""

    def __init__(self) -> None:
        self._num_left = _MAX_VALUES

    def read_list(self, items: list[Any]) -> list[Any]:
        self._count(len(items))
        return items

    def read_map(self, items: dict[Any, Any]) -> Any:
        self._count(2 * len(items))
        for kind, read in (("__ndarray__", _array), ("__npgeneric__", _scalar)):
            if kind.encode() in items or kind in items:
                return read({_text(key): value for key, value in items.items()})
        return items

    def _count(self, num_values: int) -> None:
        self._num_left -= 1 + num_values
        if self._num_left < 0:
            raise WireError(f"a message has more than {_MAX_VALUES} values in maps and lists")


def _pack_array(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        raise WireError(f"a {type(value).__name__} cannot be sent")
    if value.dtype.str not in _DTYPES:
        raise WireError(f"an array of {value.dtype} cannot be sent: only plain numbers can")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    data = value.data.cast("B") if value.flags.c_contiguous and value.size else value.tobytes()
    return {b"__ndarray__": True, b"data": data, b"dtype": value.dtype.str, b"shape": value.shape}


def _array(items: dict[str, Any]) -> Array:
    """A read-only view of the message's bytes."""
    dtype, shape, data = _dtype(items), items.get("shape"), items.get("data")
    if not (isinstance(shape, list) and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in shape)):
        raise WireError("an array has an invalid shape")
    # a zero must not hide factors that numpy cannot represent
    if math.prod(max(n, 1) for n in shape) > MAX_MESSAGE:
        raise WireError("an array is too large")
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * dtype.itemsize:
        raise WireError(f"an array of shape {shape} and dtype {dtype.str} does not have the size of its data")
    found = np.frombuffer(data, dtype) if data else np.empty(0, dtype)
    if dtype == np.bool_ and data and found.view(np.uint8).max() > 1:
        raise WireError("a bool array contains other bytes than 0 and 1")
    return found.astype(dtype.newbyteorder("="), copy=False).reshape(shape)


def _scalar(items: dict[str, Any]) -> Any:
    value = items.get("data")
    if not isinstance(value, bool | int | float):
        raise WireError("a scalar is not a number")
    return _dtype(items).type(value)


def _dtype(items: dict[str, Any]) -> np.dtype[Any]:
    name = _text(items.get("dtype"))
    if name not in _DTYPES:
        raise WireError(f"an array has the dtype {name[:20]!r}, expected plain numbers")
    return np.dtype(name)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("ascii", errors="replace")
    if not isinstance(value, str):
        raise WireError("an array of a message has a key or dtype that is not text")
    return value


def _no_extension(code: int, data: bytes) -> Any:
    raise WireError(f"a message contains the msgpack extension {code}")
