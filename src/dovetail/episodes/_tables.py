"""Bit-exact conversion of named columns [T, ...] to Arrow tables and back: Parquet in the log, IPC in the spool.

A row is a scalar or a fixed-size list, which any Parquet reader can show. The metadata of the field holds the shape of a
row and numpy's dtype. Dictionary encoding is off, because it treats all NaNs as equal and loses their bits.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.core.errors import StoreError
from dovetail.core.types import Array
from dovetail.episodes._ipc_sizes import decoded_bytes
from dovetail.episodes._parquet_pages import ParquetSizes

__all__ = ["from_ipc", "from_parquet", "parquet_note", "to_ipc", "to_parquet"]

_KINDS = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    + ("float16", "float32", "float64")
)
MAX_SEGMENT_BYTES = 1 << 30  # a record of a journal, decoded: a few seconds of steps with images
_FIELD, _NOTE = b"dovetail.row", b"dovetail.note"


def to_parquet(columns: Mapping[str, Array], *, note: bytes = b"") -> bytes:
    """Return the bytes of a Parquet file; `note` is stored in its schema."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        _table(columns, note),
        sink,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        version="2.6",
    )
    return bytes(sink.getvalue())


def from_parquet(data: bytes, *, only: Iterable[str] | None = None) -> dict[str, Array]:
    """Read all columns of a Parquet file, or `only` some. Raises ValueError for files that dovetail did not write."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        names = file.schema_arrow.names
        wanted = names if only is None else [name for name in only if name in names]
        ParquetSizes(io.BytesIO(data)).check(columns=wanted)
        return {  # one after the other, so that only one is in memory twice
            name: _columns(file.read(columns=[name], use_threads=False))[name] for name in wanted
        }
    except (pa.ArrowException, OSError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a table of dovetail: {_line(error)}") from error


def parquet_note(data: bytes) -> bytes:
    """Read the note in a Parquet file's schema. Raises ValueError if there is none."""
    try:
        note: bytes = pq.read_schema(pa.BufferReader(data)).metadata[_NOTE]
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise ValueError(f"not a table of dovetail: {_line(error)}") from error
    return note


def to_ipc(tables: Iterable[Mapping[str, Array]]) -> bytes:
    """Return several tables as consecutive Arrow streams."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    for columns in tables:
        table = _table(columns, b"")
        with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
            stream.write_table(table)
    return bytes(sink.getvalue())


def from_ipc(data: bytes, *, max_bytes: int = MAX_SEGMENT_BYTES) -> list[dict[str, Array]]:
    """Read the tables of `to_ipc`. Raises ValueError for other data, and if more than `max_bytes` would be decoded."""
    source = pa.BufferReader(data)
    tables: list[dict[str, Array]] = []
    if (needed := decoded_bytes(data)) > max_bytes:
        raise ValueError(f"{len(data)} bytes decode to {needed} bytes, more than the {max_bytes} that are allowed")
    try:
        while source.tell() < len(data):
            with pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False)) as stream:
                tables.append(_columns(stream.read_all()))
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise ValueError(f"not tables of dovetail: {_line(error)}") from error
    return tables


def _table(columns: Mapping[str, Array], note: bytes) -> Any:
    arrays, fields = [], []
    for name, column in columns.items():
        array = _to_arrow(name, column)
        row = json.dumps({"dtype": column.dtype.name, "shape": column.shape[1:]}).encode()
        arrays.append(array)
        fields.append(pa.field(name, array.type, nullable=False, metadata={_FIELD: row}))
    return pa.table(arrays, schema=pa.schema(fields, metadata={_NOTE: note}))


def _to_arrow(name: str, column: Array) -> Any:
    if column.dtype.name not in _KINDS:
        raise StoreError(
            f"column '{name}' has dtype {column.dtype}, but only bool, integers and float16 to float64 can be stored"
        )
    row_size = math.prod(column.shape[1:])
    if row_size == 0:
        return pa.array(np.zeros(len(column), bool))  # only the number of rows: Parquet has no empty lists
    flat = pa.array(np.ascontiguousarray(column).reshape(-1), from_pandas=False)
    return flat if column.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, row_size)


def _columns(table: Any) -> dict[str, Array]:
    return {field.name: _to_numpy(table.column(index), field) for index, field in enumerate(table.schema)}


def _to_numpy(column: Any, field: Any) -> Array:
    row = json.loads(field.metadata[_FIELD])
    if row["dtype"] not in _KINDS or not all(type(side) is int and side >= 0 for side in row["shape"]):
        raise ValueError(f"column '{field.name}' is not as it was written")
    shape, row_size = (len(column), *row["shape"]), math.prod(row["shape"])
    is_list = pa.types.is_fixed_size_list(field.type)
    if row_size != (field.type.list_size if is_list else 1) and (row_size or is_list):
        raise ValueError(f"column '{field.name}' is not as it was written")
    values = np.empty(shape, row["dtype"])
    if row_size == 0:
        return values
    flat, filled = values.reshape(-1), 0
    for chunk in column.chunks:
        piece = chunk.flatten() if is_list else chunk
        if piece.null_count or filled + len(piece) > len(flat):
            raise ValueError(f"column '{field.name}' is not as it was written")
        flat[filled : filled + len(piece)] = _exact(piece, values.dtype)
        filled += len(piece)
    if filled != len(flat):
        raise ValueError(f"column '{field.name}' is not as it was written")
    return values


def _exact(piece: Any, dtype: np.dtype[Any]) -> Array:
    """Return the exact bits of an Arrow array. A conversion by value may change the bits of a NaN."""
    if dtype == np.bool_:
        return np.asarray(piece.to_numpy(zero_copy_only=False))
    if piece.type.bit_width != 8 * dtype.itemsize:
        raise ValueError(f"the type is {piece.type}, expected {dtype}")
    data = piece.buffers()[1]
    return np.frombuffer(data, dtype, count=len(piece), offset=piece.offset * dtype.itemsize)


def _line(error: Exception) -> str:
    """Shorten Arrow's messages, which may have many lines, to one line."""
    return " ".join(str(error).split())[:200]
