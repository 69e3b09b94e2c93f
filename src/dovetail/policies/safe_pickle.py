"""Pickle files of others, read without running anything that is in them.

A pickle is a program. Here it may make numbers, text, lists, dicts and arrays of plain numbers, and that by stand-ins of
ours: nothing that it names is ever imported or called. What an array says of its size is believed only if its data is
there, so a small file cannot ask for much memory.
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

MAX_BYTES = 1 << 26  # statistics are small
_MAX_NODES = 1 << 17  # a list that holds one list many times over looks small, and is not once it is gone through
_MAX_DEPTH = 32
_PLAIN = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")


def read_pickle(data: bytes, *, name: str) -> Any:
    """What a pickle of plain things holds: dicts, lists, tuples, text, numbers and arrays of them; anything else in it,
    and it is refused in a line that says what that was. `name` is the file's."""
    if len(data) > MAX_BYTES:
        raise StoreError(f"{name} has {len(data)} bytes, and statistics that long are not read")
    try:
        return _Plain().of(_Reader(io.BytesIO(data), encoding="latin1").load())
    except _Refused as refusal:
        raise StoreError(
            f"{name} is refused: {refusal}; only plain numbers, text and numpy arrays are read"
        ) from None
    except Exception as error:  # of a file that may hold anything, anything may come
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise StoreError(f"{name} is not a pickle of plain things: {reason[:200]}") from error


class _Refused(Exception):
    """It asked for what nobody gives it."""


class _StandIn:
    """Called instead of what a pickle names. It cannot be changed from inside the pickle."""

    __slots__ = ("_make",)
    _make: Callable[..., Any]

    def __init__(self, make: Callable[..., Any]) -> None:
        object.__setattr__(self, "_make", make)

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __setstate__(self, state: Any) -> NoReturn:
        raise _Refused("it tries to change what reads it")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise _Refused("it tries to change what reads it")


class _Dtype:
    """A type of plain numbers, in the making."""

    __slots__ = ("plain",)

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or not _PLAIN.fullmatch(code):
            raise _Refused(f"it holds an array of type {code!s:.20}")
        self.plain = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise _Refused("it holds an array of records")
        self.plain = np.dtype(_one_of(state[1], "<>|=") + self.plain.str[1:])


class _Array:
    """An array, in the making; whole once it has its data."""

    __slots__ = ("values",)

    def __init__(self, values: Array | None = None) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.values = _values(data, dtype, shape, "F" if is_fortran is True else "C")


def _values(data: Any, dtype: Any, shape: Any, order: str) -> Array:
    if isinstance(data, str):  # as Python 2 wrote it
        data = data.encode("latin1")
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray):
        raise _Refused("it holds an array whose data is not plain numbers")
    if not (isinstance(shape, tuple) and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in shape)):
        raise _Refused("it holds an array without a shape")
    if math.prod(shape) * dtype.plain.itemsize != len(data):
        raise _Refused(f"it holds an array of shape {shape!s:.60} with {len(data)} bytes of data")
    flat = np.frombuffer(data, dtype.plain) if len(data) else np.empty(0, dtype.plain)
    if dtype.plain.kind == "b":
        flat = flat.view(np.uint8) != 0
    return flat.astype(flat.dtype.newbyteorder("=")).reshape(shape, order="F" if order == "F" else "C")


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(_values(data, dtype, shape, _one_of(order, "CF")))


def _scalar(dtype: Any, data: Any) -> Any:
    return _values(data, dtype, (), "C").item()


def _encoded(text: Any, encoding: Any) -> bytes:
    """How protocols before 3 write bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _Refused(f"it asks for the encoding {encoding!s:.20}")
    return text.encode("latin1")


def _no_bytes(*args: Any) -> bytes:
    """And how they write none of them."""
    if args:
        raise _Refused("it makes bytes of what is none")
    return b""


def _ordered(pairs: Iterable[Any] = ()) -> dict[Any, Any]:
    return {key: value for key, value in pairs}  # noqa: C416 - dict() would take what is no list of pairs


def _never(*_: Any) -> NoReturn:
    raise _Refused("it makes an array without data")


_ALLOWED: dict[str, _StandIn] = {
    "collections.OrderedDict": _StandIn(_ordered),
    "_codecs.encode": _StandIn(_encoded),
    "__builtin__.bytes": _StandIn(_no_bytes),
    "builtins.bytes": _StandIn(_no_bytes),
    "numpy.dtype": _StandIn(_Dtype),
    "numpy.ndarray": _StandIn(_never),  # named as what to reconstruct, and never called
    **{
        f"numpy.{core}.{where}": _StandIn(make)
        for core in ("core", "_core")
        for where, make in (
            ("multiarray._reconstruct", lambda *_: _Array()),
            ("multiarray.scalar", _scalar),
            ("numeric._frombuffer", _from_buffer),
        )
    },
}


class _Reader(pickle._Unpickler):
    """The one in Python: the one in C makes room for as many remembered things as a file claims to have."""

    def find_class(self, module: str, name: str) -> _StandIn:
        found = _ALLOWED.get(f"{module}.{name}")
        if found is None:
            raise _Refused(f"it names {module!s:.60}.{name!s:.60}")
        return found


class _Plain:
    """Copies what was read, without anything of ours in it, and no further than is reasonable."""

    def __init__(self) -> None:
        self._num_nodes = 0

    def of(self, value: Any, depth: int = 0) -> Any:
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise _Refused("it holds too much, or itself")
        if value is None or type(value) in (str, int, float, bool):
            return value
        if type(value) is dict:
            return {self._key(key): self.of(item, depth + 1) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.of(item, depth + 1) for item in value)
        if isinstance(value, _Array) and value.values is not None:
            return value.values
        raise _Refused(f"it holds a {type(value).__name__.lstrip('_')}")

    @staticmethod
    def _key(key: Any) -> Any:
        if type(key) not in (str, int, float, bool):
            raise _Refused(f"it holds a {type(key).__name__.lstrip('_')} as a key")
        return key


def _one_of(value: Any, valid: str) -> str:
    if not isinstance(value, str) or len(value) != 1 or value not in valid:
        raise _Refused(f"{value!s:.20} is none of {', '.join(valid)}")
    return value
