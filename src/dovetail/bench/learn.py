"""Learning: how fast updates are, and how much of a robot's time each algorithm needs. Hours, in shards that resume."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.bench.registry import BENCHES, load_bench
from dovetail.bench.rows import Row

__all__ = ["bench"]


def bench(*, quick: bool) -> Iterator[Row]:
    for name in BENCHES:
        if name.startswith("learn_"):
            yield from load_bench(name)(quick=quick)
