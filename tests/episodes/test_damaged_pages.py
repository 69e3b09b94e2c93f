"""A page header of another type is a damaged file, not a crash."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.episodes._parquet_pages import ParquetSizes


def test_page_whose_header_is_not_a_structure_is_refused():
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": list(range(50))}), sink, compression="none", use_dictionary=False)
    whole = sink.getvalue()
    refused = 0
    for place in range(4, 40):  # the header of the first page
        for value in range(256):
            damaged = bytearray(whole)
            damaged[place] = value
            try:
                ParquetSizes(io.BytesIO(bytes(damaged))).check(columns=["a"])
            except ValueError:
                refused += 1
    assert refused > 1000
    with pytest.raises(ValueError, match="Parquet"):
        ParquetSizes(io.BytesIO(b"no")).check(columns=["a"])
