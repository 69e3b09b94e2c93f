"""RLPD updates per second on a GPU: eager, compiled, as CUDA graphs, and with a loop over critics.

`python -m dovetail.bench.learn_speed_gpu [--quick]` prints the rows as JSON lines.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator

import torch
from torch import Tensor

from dovetail.bench._learn_ours import loop_critics, make_batch, make_rlpd
from dovetail.bench.rows import Row, at_least
from dovetail.learn.algorithms.rlpd import RLPD

__all__ = ["bench"]

_HIDDEN, _BATCH, _CRITICS = (256, 256), 256, 10
_WHAT = f"GPU, RLPD, {_CRITICS} critics, state"
_LOOP = "one critic after the other"
_VARIANTS: dict[str, dict[str, bool]] = {
    "eager": {},
    f"eager, {_LOOP}": {},
    "CUDA graphs": {"cuda_graphs": True},
    "torch.compile": {"torch_compile": True},
    "CUDA graphs of compiled networks": {"cuda_graphs": True, "torch_compile": True},
}


def bench(*, quick: bool) -> Iterator[Row]:
    if not torch.cuda.is_available():
        return
    device, num = torch.device("cuda"), 50 if quick else 500
    batch = {name: values.to(device) for name, values in make_batch(_BATCH).items()}
    yield Row(name=f"{_WHAT}: {torch.cuda.get_device_name()}, torch", value=float(_version()), unit="version")
    speeds: dict[str, float] = {}
    for name, settings in _VARIANTS.items():
        start_s = time.perf_counter()
        algorithm = _make(device, settings, loop=name.endswith(_LOOP))
        _updates(algorithm, batch, 20)
        if settings.get("torch_compile"):
            yield Row(name=f"{_WHAT}: {name}: compiling", value=time.perf_counter() - start_s, unit="s")
        speeds[name] = yield from _measured(name, algorithm, batch, num)
    loop = speeds[f"eager, {_LOOP}"]  # eager only: random choices of critics cannot be captured in a graph
    times = speeds["eager"] / loop
    yield at_least(f"{_WHAT}: eager, times a loop over critics", times, "x", 3.0, baseline="a loop", ratio=times)
    best = max(speeds.values())
    yield Row(name=f"{_WHAT}: the fastest, times a loop", value=best / loop, unit="x", baseline="a loop")
    yield at_least(f"{_WHAT}: the fastest", best, "updates/s", 1000.0)


def _version() -> str:
    return ".".join(torch.__version__.split("+")[0].split(".")[:2])


def _make(device: torch.device, settings: dict[str, bool], *, loop: bool) -> RLPD:
    algorithm = make_rlpd(hidden=_HIDDEN, batch_size=_BATCH, critics=_CRITICS, device=device, **settings)
    if loop:
        loop_critics(algorithm)
    return algorithm


def _updates(algorithm: RLPD, batch: dict[str, Tensor], num: int) -> float:
    """Seconds per update; metrics are read after each one, as a learner does."""
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    for _ in range(num):
        algorithm.update(batch)
    torch.cuda.synchronize()
    return (time.perf_counter() - start_s) / num


def _measured(name: str, algorithm: RLPD, batch: dict[str, Tensor], num: int) -> Generator[Row, None, float]:
    """Yield rows; return updates per second."""
    _updates(algorithm, batch, 10)
    seconds = statistics.median(_updates(algorithm, batch, num // 5) for _ in range(5))
    yield Row(name=f"{_WHAT}: {name}", value=1.0 / seconds, unit="updates/s")
    busy = _kernel_seconds(lambda: _updates(algorithm, batch, 10)) / 10
    yield Row(name=f"{_WHAT}: {name}, the GPU idle", value=100 * max(0.0, 1.0 - busy / seconds), unit="%")
    return 1.0 / seconds


def _kernel_seconds(run: Callable[[], object]) -> float:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
    return float(1e-6 * sum(event.self_device_time_total for event in profiled.key_averages()))


if __name__ == "__main__":
    for row in bench(quick="--quick" in sys.argv):
        sys.stdout.write(json.dumps(row.to_json()) + "\n")
        sys.stdout.flush()
