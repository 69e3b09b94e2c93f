"""Columns as Arrow tables: exact round trips and refused dtypes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.errors import StoreError
from dovetail.episodes._tables import from_ipc, from_parquet, parquet_note, to_ipc, to_parquet
from support.small_episodes import assert_bits

KINDS = st.sampled_from(["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])


@st.composite
def tables(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Any bits as any numbers: signalling NaNs, denormals and negative zeros among them."""
    num_rows = draw(st.integers(0, 4))
    columns = {}
    for name in draw(st.lists(st.text("abz_/-. é", min_size=1, max_size=6), max_size=4, unique=True)):
        dtype = np.dtype(draw(KINDS))
        shape = (num_rows, *draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)))
        size = int(np.prod(shape)) * dtype.itemsize
        data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
        columns[name] = ((data & 1) if dtype.kind == "b" else data).view(dtype).reshape(shape)
    return columns


def assert_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert list(a) == list(b)
    for name in a:
        assert_bits(a[name], b[name])


@settings(max_examples=150, deadline=None)
@given(tables(), st.binary(max_size=20))
def test_parquet_round_trip(columns: dict[str, np.ndarray], note: bytes) -> None:
    data = to_parquet(columns, note=note)
    assert data == to_parquet(columns, note=note)
    assert_equal(from_parquet(data), columns)
    assert parquet_note(data) == note
    for name in columns:
        assert_bits(from_parquet(data, only=[name])[name], columns[name])


@settings(max_examples=100, deadline=None)
@given(st.lists(tables(), max_size=3))
def test_ipc_round_trip(given_tables: list[dict[str, np.ndarray]]) -> None:
    found = from_ipc(to_ipc(given_tables))
    assert len(found) == len(given_tables)
    for a, b in zip(found, given_tables, strict=True):
        assert_equal(a, b)


def test_nan_payloads_round_trip() -> None:
    """Parquet dictionaries would merge different NaNs."""
    bits = np.array([0x7FC00000, 0x7FC00001, 0xFFC12345, 0x7FA00000, 0x80000000, 0], np.uint32)
    column = np.tile(bits, 50).view(np.float32)
    assert_bits(from_parquet(to_parquet({"x": column}))["x"], column)


def test_parquet_columns_are_plain_numbers_and_lists() -> None:
    data = to_parquet({"a": np.array([1, 2]), "b": np.array([[1.5, 2.5], [3.5, 4.5]], np.float32)})
    assert pq.read_table(pa.BufferReader(data)).to_pydict() == {"a": [1, 2], "b": [[1.5, 2.5], [3.5, 4.5]]}


@pytest.mark.parametrize(
    "column", [np.array([1j]), np.array(["x"]), np.array(["2020"], "M8[s]"), np.array([1.0], "g")]
)
def test_unsupported_dtype_is_refused_by_name(column: np.ndarray) -> None:
    with pytest.raises(StoreError, match="column 'extra/odd' has dtype "):
        to_parquet({"extra/odd": column})


def test_damaged_table_raises_value_error() -> None:
    data = to_parquet({"a": np.arange(5)})
    for damaged in (b"", b"PAR1", data[:-3], data[: len(data) // 2]):
        with pytest.raises(ValueError, match="not a table of dovetail"):
            from_parquet(damaged)
        with pytest.raises(ValueError, match="not a table of dovetail"):
            parquet_note(damaged)
    with pytest.raises(ValueError, match="not tables of dovetail"):
        from_ipc(to_ipc([{"a": np.arange(5)}])[:-20])
