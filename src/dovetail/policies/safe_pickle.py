"""Reads pickle files of other systems without running code from them.

A pickle is a program. This reader lets it create numbers, text, lists, dicts and arrays of plain numbers, by replacement
functions: it never imports or calls anything that the pickle names. The size of an array is checked against its data, so
a small file cannot allocate much memory.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np

from dovetail.core.errors import StoreError
from dovetail.core.types import Array

__all__ = ["MAX_BYTES", "read_pickle"]

MAX_BYTES = 1 << 26
_MAX_NODES = 1 << 17  # a small file can contain one list many times
_MAX_DEPTH = 32
_PLAIN = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")


def read_pickle(data: bytes, *, name: str) -> Any:
    """The contents of a pickle of dicts, lists, tuples, text, numbers and arrays. Raise StoreError, which tells why, if it
    contains anything else. `name` is the file name."""
    if len(data) > MAX_BYTES:
        raise StoreError(f"{name} has {len(data)} bytes, more than the maximum of {MAX_BYTES}")
    try:
        return _PlainCopy().of(_Reader(io.BytesIO(data), encoding="latin1").load())
    except _Refused as refusal:
        raise StoreError(
            f"{name} is refused: {refusal}. Only numbers, text, lists, dicts and numpy arrays are allowed"
        ) from None
    except Exception as error:  # a malformed pickle can raise any exception
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise StoreError(f"{name} is not a valid pickle: {reason[:200]}") from error


class _Refused(Exception):
    """The pickle contains something that is not allowed."""


class _Replacement:
    """Called instead of the function that a pickle names. The pickle cannot modify it."""

    __slots__ = ("_make",)
    _make: Callable[..., Any]

    def __init__(self, make: Callable[..., Any]) -> None:
        object.__setattr__(self, "_make", make)

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __setstate__(self, state: Any) -> NoReturn:
        raise _Refused("it tries to modify its reader")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise _Refused("it tries to modify its reader")


class _Dtype:
    """A dtype of plain numbers under construction."""

    __slots__ = ("plain",)

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or not _PLAIN.fullmatch(code):
            raise _Refused(f"it contains an array of type {code!s:.20}")
        self.plain = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise _Refused("it contains a structured array")
        self.plain = np.dtype(_one_of(state[1], "<>|=") + self.plain.str[1:])


class _Array:
    """An array under construction, complete once `values` is set."""

    __slots__ = ("values",)

    def __init__(self, values: Array | None = None) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.values = _values(data, dtype, shape, "F" if is_fortran is True else "C")


def _values(data: Any, dtype: Any, shape: Any, order: str) -> Array:
    if isinstance(data, str):  # from Python 2
        data = data.encode("latin1")
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray):
        raise _Refused("it contains an array whose data is not plain numbers")
    if not (isinstance(shape, tuple) and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in shape)):
        raise _Refused("it contains an array without a valid shape")
    if math.prod(shape) * dtype.plain.itemsize != len(data):
        raise _Refused(f"it contains an array of shape {shape!s:.60} with {len(data)} bytes of data")
    flat = np.frombuffer(data, dtype.plain) if len(data) else np.empty(0, dtype.plain)
    if dtype.plain.kind == "b":
        flat = flat.view(np.uint8) != 0
    return flat.astype(flat.dtype.newbyteorder("=")).reshape(shape, order="F" if order == "F" else "C")


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(_values(data, dtype, shape, _one_of(order, "CF")))


def _scalar(dtype: Any, data: Any) -> Any:
    return _values(data, dtype, (), "C").item()


def _encoded(text: Any, encoding: Any) -> bytes:
    """Bytes in pickle protocols before 3."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _Refused(f"it uses the encoding {encoding!s:.20}")
    return text.encode("latin1")


def _empty_bytes(*args: Any) -> bytes:
    """Empty bytes in pickle protocols before 3."""
    if args:
        raise _Refused("it calls bytes() with arguments")
    return b""


def _ordered(pairs: Iterable[Any] = ()) -> dict[Any, Any]:
    return {key: value for key, value in pairs}  # noqa: C416 - dict() accepts more than pairs


def _refuse_ndarray(*_: Any) -> NoReturn:
    raise _Refused("it creates an array without data")


_ALLOWED: dict[str, _Replacement] = {
    "collections.OrderedDict": _Replacement(_ordered),
    "_codecs.encode": _Replacement(_encoded),
    "__builtin__.bytes": _Replacement(_empty_bytes),
    "builtins.bytes": _Replacement(_empty_bytes),
    "numpy.dtype": _Replacement(_Dtype),
    "numpy.ndarray": _Replacement(_refuse_ndarray),  # the argument of _reconstruct, never called
    **{
        f"numpy.{core}.{where}": _Replacement(make)
        for core in ("core", "_core")
        for where, make in (
            ("multiarray._reconstruct", lambda *_: _Array()),
            ("multiarray.scalar", _scalar),
            ("numeric._frombuffer", _from_buffer),
        )
    },
}


class _Reader(pickle._Unpickler):
    """The Python implementation, because the C one allocates a memo as large as the file demands."""

    def find_class(self, module: str, name: str) -> _Replacement:
        found = _ALLOWED.get(f"{module}.{name}")
        if found is None:
            raise _Refused(f"it uses {module!s:.60}.{name!s:.60}")
        return found


class _PlainCopy:
    """Copies the result into plain objects, up to a maximum size and depth."""

    def __init__(self) -> None:
        self._num_nodes = 0

    def of(self, value: Any, depth: int = 0) -> Any:
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise _Refused("it contains too many or too deeply nested objects")
        if value is None or type(value) in (str, int, float, bool):
            return value
        if type(value) is dict:
            return {self._key(key): self.of(item, depth + 1) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.of(item, depth + 1) for item in value)
        if isinstance(value, _Array) and value.values is not None:
            return value.values
        raise _Refused(f"it contains a {type(value).__name__.lstrip('_')}")

    @staticmethod
    def _key(key: Any) -> Any:
        if type(key) not in (str, int, float, bool):
            raise _Refused(f"it contains a {type(key).__name__.lstrip('_')} as a key")
        return key


def _one_of(value: Any, valid: str) -> str:
    if not isinstance(value, str) or len(value) != 1 or value not in valid:
        raise _Refused(f"{value!s:.20} is not one of {', '.join(valid)}")
    return value
