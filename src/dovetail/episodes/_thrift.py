"""Read structures in Thrift's compact format, as the metadata of Parquet files uses it.

pyarrow's own access to that metadata ends the process if a file is damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Reader", "Shape"]

Shape = Mapping[int, "Shape | None"]
"""Which fields to keep, by number; for a structure, or a list of structures, its own fields. Others are skipped."""

_MAX_DEPTH = 16
_MAX_ITEMS = 200_000  # of one list of structures


class Reader:
    """Raises ValueError if the data is damaged."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def structure(self, shape: Shape, *, depth: int = 0) -> dict[int, Any]:
        if depth > _MAX_DEPTH:
            raise ValueError("damaged metadata: it is nested too deeply")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            value = self._value(head & 15, shape.get(number, {}), keep=number in shape, depth=depth)
            if number in shape:
                found[number] = value
        return found

    def _value(self, kind: int, shape: Shape | None, *, keep: bool, depth: int, in_list: bool = False) -> Any:
        match kind:
            case 1 | 2:  # a boolean: in a field, the kind is the value
                return self._byte() == 1 if in_list else kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._zigzag()
            case 7:
                return self._bytes(8)
            case 8:
                data = self._bytes(self._varint())
                return data if keep else None
            case 9 | 10:
                return self._list(shape, keep=keep, depth=depth)
            case 12:
                return self.structure(shape or {}, depth=depth + 1)
        raise ValueError("damaged metadata: an unknown type")

    def _list(self, shape: Shape | None, *, keep: bool, depth: int) -> list[Any]:
        head = self._byte()
        size = head >> 4 if head >> 4 != 15 else self._varint()
        if depth > _MAX_DEPTH or size > len(self._data) or (keep and size > _MAX_ITEMS):
            raise ValueError("damaged metadata: a list is too long")
        kept = []
        for _ in range(size):
            value = self._value(head & 15, shape, keep=keep, depth=depth + 1, in_list=True)
            if keep:
                kept.append(value)
        return kept

    def _byte(self) -> int:
        self.place += 1
        if self.place > len(self._data):
            raise ValueError("damaged metadata: it ends too early")
        return self._data[self.place - 1]

    def _bytes(self, size: int) -> bytes:
        self.place += size
        if self.place > len(self._data):
            raise ValueError("damaged metadata: it ends too early")
        return self._data[self.place - size : self.place]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("damaged metadata: a number is too long")
        return value | byte << shift

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
