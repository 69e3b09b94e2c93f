"""Latency from publishing weights to their use on an arm, against a plain actor that returns a state dict on request.

The time starts when the learner has its new weights as arrays and ends when another process has loaded them. The reader is
already waiting, so the polling interval does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import ray
import torch

from benchmarks._naive_weights import NaiveReader, NaiveWeights, Reader
from dovetail.bench.rows import Row
from dovetail.config.cluster import ClusterConfig
from dovetail.core.types import Array
from dovetail.runtime.ray.cluster.connection import connected
from dovetail.runtime.ray.roles.weights import SharedMemoryPublisher, WeightsRole

__all__ = ["bench", "latencies"]

MEGABYTE = 10**6
_SIZES = ((1, 20), (100, 10), (1000, 3))  # MB, repetitions
_SHARED = _SIZES[:2]  # to several arms: state dicts of 1 GB for each would not fit into memory
_SETTLE_S = 0.05  # until all readers wait


def bench(*, quick: bool) -> Iterator[Row]:
    sizes = ((1, 5), (20, 3)) if quick else _SIZES
    object_store_mb = 8 * max(size for size, _ in sizes) + 200
    with connected(ClusterConfig(object_store_mb=object_store_mb), num_cpus=8):
        for size_mb, times in sizes:
            yield from _compare(size_mb, times=times, num_readers=1)
        for size_mb, times in () if quick else _SHARED:
            yield from _compare(size_mb, times=times, num_readers=4)


def _compare(size_mb: int, *, times: int, num_readers: int) -> Iterator[Row]:
    who = "one arm" if num_readers == 1 else f"the last of {num_readers} arms"
    naive = median(latencies("naive", size_mb * MEGABYTE, times=times, num_readers=num_readers))
    label = f"{size_mb} MB to {who}"
    yield Row(name=f"{label}, an actor that returns a state dict", value=1e3 * naive, unit="ms")
    for half in (False, True):
        ours = median(
            latencies("bf16" if half else "fp32", size_mb * MEGABYTE, times=times, num_readers=num_readers)
        )
        yield Row(
            name=f"{label}, dovetail" + (", as bf16" if half else ""),
            value=1e3 * ours,
            unit="ms",
            baseline="an actor that returns a state dict",
            ratio=ours / naive,
        )


def latencies(method: str, num_bytes: int, *, times: int, num_readers: int) -> list[float]:
    """Seconds from each publication to its use by the last reader, without the first, which includes start-up costs."""
    role: Any = ray.remote(NaiveWeights if method == "naive" else WeightsRole)
    reader: Any = ray.remote(NaiveReader if method == "naive" else Reader)
    weights = role.options(num_cpus=0).remote()
    readers = [reader.options(num_cpus=0).remote(weights, num_bytes) for _ in range(num_readers)]
    try:
        publish = _naive(weights) if method == "naive" else _ours(weights, half=method == "bf16")
        return [_once(publish, readers, _arrays(num_bytes, number), number) for number in range(1, times + 2)][1:]
    finally:
        for actor in (*readers, weights):
            ray.kill(actor)


def _once(
    publish: Callable[[dict[str, Array], int], None],
    readers: Sequence[Any],
    arrays: dict[str, Array],
    version: int,
) -> float:
    waiting = [reader.wait_for.remote(version) for reader in readers]
    time.sleep(_SETTLE_S)
    start_s = time.monotonic()
    publish(arrays, version)
    in_use_s: list[float] = ray.get(waiting)
    return max(in_use_s) - start_s


def _ours(weights: Any, *, half: bool) -> Callable[[dict[str, Array], int], None]:
    publisher = SharedMemoryPublisher(weights, half=half)
    return lambda arrays, version: publisher.publish({"policy": arrays}, version=version)


def _naive(weights: Any) -> Callable[[dict[str, Array], int], None]:
    def publish(arrays: dict[str, Array], version: int) -> None:
        weights.set.remote({name: torch.from_numpy(array) for name, array in arrays.items()}, version)

    return publish


def _arrays(num_bytes: int, number: int) -> dict[str, Array]:
    """Weights whose every layer differs from the last ones."""
    num_floats, layer = num_bytes // 4, 1 << 20
    sizes = [min(layer, num_floats - first) for first in range(0, num_floats, layer)]
    return {f"layer{i}": np.full(size, float(number), np.float32) for i, size in enumerate(sizes)}
