"""Everything at once: what the pipeline on Ray gains over one thing after another, and how far it carries."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.bench.registry import BENCHES, load_bench
from dovetail.bench.rows import Row

__all__ = ["bench"]


def bench(*, quick: bool) -> Iterator[Row]:
    for name in BENCHES:
        if name.startswith("pipeline_"):
            yield from load_bench(name)(quick=quick)
