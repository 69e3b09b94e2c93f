"""`dovetail bench serve`: the quick version against a real server process."""

from __future__ import annotations

import pytest

from dovetail.bench.serve import bench


@pytest.mark.extended
def test_quick_bench_asks_960_times_and_loses_no_answer() -> None:
    rows = {row.name: row for row in bench(quick=True)}
    assert rows["requests"].value == 960
    assert (rows["lost or swapped answers"].value, rows["lost or swapped answers"].met) == (0.0, True)
    for num in (1, 4, 16):
        name = "1 client" if num == 1 else f"{num} clients"
        assert 0.0 < rows[f"{name}: median"].value <= rows[f"{name}: 99th percentile"].value
        assert rows[f"{name}: throughput"].value > 0.0
