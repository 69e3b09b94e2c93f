"""How much memory a Parquet file needs when it is read, found without decompressing it.

A few kilobytes can decode to gigabytes: by compression, by a repeated value, or by a repeated entry of a dictionary. The
file's metadata may be wrong. So this reads the header of each page, as Arrow does, and adds up what it would allocate.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from dovetail.episodes._thrift import Reader, Shape

__all__ = ["MAX_EXTRA_BYTES", "ParquetSizes"]

MAX_EXTRA_BYTES = 96 << 20  # decoded data may be larger than twice the file by this much
_MAX_FOOTER_BYTES = 8 << 20
_HEADER_BYTES = 64 << 10  # a page's header is shorter: it holds at most two values as statistics
_MAGIC = b"PAR1"

# Field numbers of parquet.thrift.
_COLUMN: Shape = {1: None, 3: None, 5: None, 7: None, 9: None, 11: None}
_FOOTER: Shape = {2: {1: None, 2: None, 4: None}, 4: {1: {1: None, 3: _COLUMN}, 3: None}}
_PAGE: Shape = {1: None, 2: None, 3: None, 5: {1: None, 2: None}, 7: {1: None}, 8: {1: None, 4: None}}
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # bytes of a value by physical type; 6: any number of bytes
_FIXED_LENGTH = 7
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_BINARY, _RLE_DICTIONARY, _SPLIT = 0, 2, 3, 5, 8, 9
_ALLOWED = {_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_BINARY, _RLE_DICTIONARY, _SPLIT}


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One column of one row group."""

    name: str  # of the top-level column
    width: int | None  # bytes of a value; None: any number
    num_values: int
    start: int
    end: int


def _parse_footer(data: bytes) -> dict[int, Any]:
    return Reader(data).structure(_FOOTER)


class ParquetSizes:
    """Sizes of a file by row group and column. Raises ValueError if the file is damaged."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.num_bytes = source.seek(0, os.SEEK_END)
        footer = self._footer()
        # A schema lists its elements depth first; those without a physical type are groups.
        lengths = [element.get(2, 0) for element in footer.get(2, ()) if 1 in element]
        groups = footer.get(4, ())
        self.num_rows = [_count(group.get(3)) for group in groups]
        self._groups = [self._chunks(group.get(1, ()), lengths) for group in groups]

    def check(self, *, groups: Collection[int] | None = None, columns: Collection[str] | None = None) -> None:
        """Raise ValueError if reading these takes far more memory than the file has bytes."""
        limit = MAX_EXTRA_BYTES + 2 * self.num_bytes
        needed = self.decoded_bytes(groups=groups, columns=columns)
        if needed > limit:
            raise ValueError(
                f"{self.num_bytes} bytes decode to {needed} bytes, more than the {limit} that are allowed"
            )

    def decoded_bytes(
        self, *, groups: Collection[int] | None = None, columns: Collection[str] | None = None
    ) -> int:
        """Upper limit of the bytes that Arrow allocates for these row groups and top-level columns."""
        total = 0
        for number in range(len(self._groups)) if groups is None else groups:
            for chunk in self._groups[number]:
                if columns is None or chunk.name in columns:
                    if chunk.num_values < self.num_rows[number]:
                        raise ValueError(f"column '{chunk.name[:80]}' has fewer values than rows")
                    total += self._chunk_bytes(chunk)
        return total

    def _footer(self) -> dict[int, Any]:
        if self.num_bytes < 12:
            raise ValueError("not a Parquet file: it is too short")
        self._source.seek(-8, os.SEEK_END)
        end = self._source.read(8)
        size = int.from_bytes(end[:4], "little")
        if end[4:] != _MAGIC or size > min(self.num_bytes - 8, _MAX_FOOTER_BYTES):
            raise ValueError("not a Parquet file, or its metadata is too large")
        self._source.seek(-8 - size, os.SEEK_END)
        return _parse_footer(self._source.read(size))

    def _chunks(self, columns: Collection[dict[int, Any]], lengths: list[Any]) -> list[_Chunk]:
        found = []
        for index, column in enumerate(columns):
            data = _structure(column).get(3)
            if (
                not isinstance(data, dict) or 1 in column or index >= len(lengths)
            ):  # 1: the data is in another file
                raise ValueError("damaged metadata of a column")
            path, kind, start = data.get(3), data.get(1), _count(data.get(9))
            if not path or kind is None:
                raise ValueError("damaged metadata of a column")
            width = max(1, _count(lengths[index])) if kind == _FIXED_LENGTH else _WIDTHS.get(kind)
            dictionary = data.get(11)
            if dictionary is not None and 0 < dictionary < start:
                start = dictionary
            found.append(
                _Chunk(
                    name=path[0].decode("utf-8", "replace"),
                    width=width,
                    num_values=_count(data.get(5)),
                    start=start,
                    end=start + _count(data.get(7)),
                )
            )
        return found

    def _chunk_bytes(self, chunk: _Chunk) -> int:
        total = entry_bytes = num_values = 0
        for page in self._pages(chunk):
            size = _count(page.get(2))
            total += size
            kind = page.get(1)
            if kind == _DICTIONARY:
                entry_bytes = size  # of all entries together, so of one at most
            if kind not in (_DATA, _DATA_V2):
                continue
            header = _structure(page.get(5 if kind == _DATA else 8))
            count, encoding = _count(header.get(1)), header.get(2 if kind == _DATA else 4)
            if not isinstance(encoding, int) or encoding not in _ALLOWED:
                raise ValueError(f"a page has encoding {encoding}, which is not supported")
            num_values += count
            from_dictionary = encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY)
            total += count * (chunk.width or (4 + entry_bytes if from_dictionary else 4))
            if num_values >= chunk.num_values:
                break
        if num_values != chunk.num_values:
            raise ValueError(f"column '{chunk.name[:80]}' has {num_values} values, not {chunk.num_values}")
        return total

    def _pages(self, chunk: _Chunk) -> Iterator[dict[int, Any]]:
        offset = chunk.start
        while offset < min(chunk.end, self.num_bytes):
            self._source.seek(offset)
            reader = Reader(self._source.read(min(_HEADER_BYTES, chunk.end - offset)))
            page = reader.structure(_PAGE)
            yield page
            offset += reader.place + _count(page.get(3))


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("damaged metadata: a size is missing or negative")
    return value


def _structure(value: object) -> dict[int, Any]:
    if not isinstance(value, dict):
        raise ValueError("damaged metadata: a structure is missing")
    return value
