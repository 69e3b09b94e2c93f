"""Parquet tables of a dataset: frames, episodes, tasks, and Dovetail's additional data."""

from __future__ import annotations

import contextlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.core.disk import open_file
from dovetail.core.errors import StoreError
from dovetail.core.types import Array
from dovetail.episodes._parquet_pages import MAX_EXTRA_BYTES, ParquetSizes
from dovetail.episodes.lerobot._stats import QUANTILES, Stats

__all__ = [
    "KEPT",
    "ParquetReader",
    "column",
    "data_schema",
    "data_table",
    "episodes_schema",
    "open_parquet",
    "pack",
    "read_schema",
    "read_table",
    "read_tasks",
    "stats_row",
    "tasks_table",
    "unpack",
    "write_table",
]

# One row per episode, in `dovetail/`. Not in the dataset's own tables, because LeRobot reads a whole row of those for
# every frame.
KEPT = pa.schema(
    [
        ("episode_index", pa.int64()),
        ("id", pa.string()),
        ("episode", pa.string()),  # JSON: everything but the steps
        ("robot", pa.string()),  # JSON
        ("labels", pa.string()),  # JSON or null: everything but rewards and discounts, which are features
        ("arrays", pa.binary()),  # .npz: `steps/<column>` that no feature holds exactly, `last/<key>`
    ]
)


def _type(feature: Mapping[str, Any]) -> pa.DataType:
    value = pa.from_numpy_dtype(np.dtype(feature["dtype"]))
    return value if feature["shape"] == [1] else pa.list_(value, feature["shape"][0])


def data_schema(features: Mapping[str, Mapping[str, Any]]) -> pa.Schema:
    """Return the schema of the data files. Vectors are lists of fixed size; images are in the videos."""
    return pa.schema([(name, _type(of)) for name, of in features.items() if of["dtype"] != "video"])


def data_table(schema: pa.Schema, columns: Mapping[str, Array]) -> pa.Table:
    """Convert columns [T] or [T, D] to rows of the data files."""
    arrays = []
    for field in schema:
        values = np.ascontiguousarray(columns[field.name])
        if pa.types.is_fixed_size_list(field.type):
            flat = pa.array(values.reshape(-1), field.type.value_type)
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=field.type))
        else:
            arrays.append(pa.array(values.reshape(-1), field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def episodes_schema(features: Mapping[str, Mapping[str, Any]]) -> pa.Schema:
    fields: list[tuple[str, pa.DataType]] = [
        ("episode_index", pa.int64()),
        ("tasks", pa.list_(pa.string())),
        ("length", pa.int64()),
        ("data/chunk_index", pa.int64()),
        ("data/file_index", pa.int64()),
        ("dataset_from_index", pa.int64()),
        ("dataset_to_index", pa.int64()),
        ("dovetail/id", pa.string()),
    ]
    for name, feature in features.items():
        if feature["dtype"] == "video":
            fields += [(f"videos/{name}/{part}_index", pa.int64()) for part in ("chunk", "file")]
            fields += [(f"videos/{name}/{part}_timestamp", pa.float64()) for part in ("from", "to")]
    for name, feature in features.items():
        fields += [(f"stats/{name}/{stat}", kind) for stat, kind in _stat_types(feature["dtype"]).items()]
    fields += [(f"meta/episodes/{part}_index", pa.int64()) for part in ("chunk", "file")]
    return pa.schema(fields)


def _stat_types(dtype: str) -> dict[str, pa.DataType]:
    """Types as LeRobot writes them, so that it can add episodes later."""
    real = pa.list_(pa.float64())
    if dtype == "video":
        real = pa.list_(pa.list_(real))
        extreme = real
    else:
        kind = np.dtype(dtype).kind
        extreme = pa.list_({"b": pa.bool_(), "f": pa.float64()}.get(kind, pa.int64()))
    moments = {"min": extreme, "max": extreme, "mean": real, "std": real, "count": pa.list_(pa.int64())}
    return {**moments, **dict.fromkeys(QUANTILES, real)}


def stats_row(stats: Mapping[str, Stats]) -> dict[str, Any]:
    return {
        f"stats/{feature}/{name}": value.tolist() for feature, of in stats.items() for name, value in of.items()
    }


def tasks_table(tasks: Sequence[str]) -> pa.Table:
    """Return the table of tasks in the order of their index.

    LeRobot reads the texts as the index of a pandas frame, which the metadata of the schema declares.
    """
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
        ],
        "columns": [
            {
                "name": "task_index",
                "field_name": "task_index",
                "pandas_type": "int64",
                "numpy_type": "int64",
                "metadata": None,
            },
            {
                "name": "task",
                "field_name": "task",
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": None,
            },
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    schema = pa.schema(
        [("task_index", pa.int64()), ("task", pa.string())], metadata={"pandas": json.dumps(pandas)}
    )
    return pa.table({"task_index": list(range(len(tasks))), "task": list(tasks)}, schema=schema)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a small Parquet file with one call, because the library writes it in pieces of a few bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    path.write_bytes(sink.getvalue())


def read_tasks(path: Path) -> dict[int, str]:
    """Read the tasks by index. The name of the text column depends on the program that wrote it."""
    table = read_table(path)
    texts = [field.name for field in table.schema if _is_text(field.type)]
    if "task_index" not in table.column_names or len(texts) != 1:
        raise StoreError(
            f"{path} has columns {', '.join(table.column_names)}, expected task_index and one text column"
        )
    return dict(zip(table["task_index"].to_pylist(), table[texts[0]].to_pylist(), strict=True))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


@contextlib.contextmanager
def open_parquet(path: Path) -> Iterator[ParquetReader]:
    try:
        with open_file(path) as source, pq.ParquetFile(source) as file:
            yield ParquetReader(file, ParquetSizes(source))
    except (OSError, ValueError, pa.ArrowException, RecursionError) as error:
        raise StoreError(f"cannot read {path}: {' '.join(str(error).split())[:300]}") from error


class ParquetReader:
    """Reads row groups of a file. Refuses tables that take far more memory than the file has bytes."""

    def __init__(self, file: pq.ParquetFile, sizes: ParquetSizes) -> None:
        self._file, self._sizes = file, sizes
        self.schema: pa.Schema = file.schema_arrow
        self.num_rows = sizes.num_rows  # of each row group

    def read(self, *, groups: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        self._sizes.check(groups=groups, columns=columns)
        if groups is None:
            return self._file.read(columns=columns)
        return self._file.read_row_groups(groups, columns=columns)


def read_table(path: Path, columns: Iterable[str] | None = None) -> pa.Table:
    """Read those of the given columns that the file has; by default all."""
    with open_parquet(path) as file:
        return file.read(columns=None if columns is None else [c for c in columns if c in file.schema.names])


def read_schema(path: Path) -> pa.Schema:
    with open_parquet(path) as file:
        return file.schema


def column(table: pa.Table, name: str) -> Array:
    """Return a column as [N], or as [N, D] if it contains lists."""
    if name not in table.column_names:
        raise StoreError(f"the data files have no column '{name}'")
    values = table[name].combine_chunks()
    while pa.types.is_nested(values.type):
        values = values.flatten()
    flat = np.asarray(values.to_numpy(zero_copy_only=False))
    if flat.dtype.hasobject or values.null_count:
        raise StoreError(f"column '{name}' has missing values, or values that are not numbers")
    if len(table) and len(flat) % len(table):
        raise StoreError(f"column '{name}' has rows of different lengths")
    return flat if len(flat) == len(table) else flat.reshape(len(table), -1)


def pack(arrays: Mapping[str, Array]) -> bytes:
    """Pack numeric arrays exactly and without pickle."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def unpack(data: bytes) -> dict[str, Array]:
    """Unpack the arrays of `pack`. Raises StoreError if they are damaged, or take far more memory than the data."""
    limit = MAX_EXTRA_BYTES + 2 * len(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > limit:
                raise ValueError(f"{len(data)} bytes decode to more than the {limit} that are allowed")
            return {
                member.filename.removesuffix(".npy"): _array(archive.open(member), member.file_size)
                for member in archive.infolist()
            }
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise StoreError(
            f"the arrays of an episode cannot be read: {' '.join(str(error).split())[:200]}"
        ) from error


def _array(file: IO[bytes], num_bytes: int) -> Array:
    """Read a .npy file. Its header gives a shape, for which numpy would allocate memory before it reads the values."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize > num_bytes:
        raise ValueError(f"an array of {dtype}{list(shape)} does not fit its {num_bytes} bytes")
    values = np.frombuffer(file.read(), dtype)
    return values.reshape(shape, order="F" if fortran else "C").copy()
