"""Time and memory of one training step of pi0 with random weights, next to stock transformers in the same process.

On a GPU: full size, batch 32, three cameras of 224 x 224 pixels, AdamW. On a CPU: a tiny model. `python -m
dovetail.bench.vla.train [--quick]` prints the rows as JSON lines and needs neither the CLI nor Ray.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from dovetail.bench.rows import Row
from dovetail.bench.vla._folder import published_sources
from dovetail.bench.vla._stock import StockPi0
from dovetail.bench.vla.models import TINY, make_inputs, make_network
from dovetail.bench.vla.timing import skipped
from dovetail.policies.vla.lora import Lora, Place
from dovetail.policies.vla.networks.pi0 import Pi0Network
from dovetail.policies.vla.networks.sizes import Pi0Sizes
from dovetail.policies.vla.sampler import Inputs
from dovetail.policies.vla.settings import LoraConfig
from dovetail.policies.vla.training import flow_matching_loss

__all__ = ["bench"]

_STOCK = "stock transformers, all weights, bfloat16"
_BUDGET_S = 300.0  # rows are not started later than this
_NUM_WARMUP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    name: str
    trains: str = "full"
    is_master_fp32: bool = True  # float32 parameters, products in bfloat16; otherwise bfloat16 parameters
    recompute: bool = False


_WAYS = (
    _Way(name="all weights, bfloat16, recomputed", is_master_fp32=False, recompute=True),
    _Way(name="all weights, bfloat16", is_master_fp32=False),
    _Way(name="all weights, float32 master weights, recomputed", recompute=True),
    _Way(name="action expert, float32 master weights", trains="expert"),
    _Way(name="LoRA of rank 16, recomputed", trains="lora", is_master_fp32=False, recompute=True),
)


def bench(*, quick: bool) -> Iterator[Row]:
    is_gpu = torch.cuda.is_available()
    yield from _Bench(
        device=torch.device("cuda" if is_gpu else "cpu"),
        sizes=Pi0Sizes(has_float64_times=False) if is_gpu else TINY,
        batch=32 if is_gpu else 4,
        num=3 if quick else 8,
    ).rows()


class _Bench:
    def __init__(self, *, device: torch.device, sizes: Pi0Sizes, batch: int, num: int) -> None:
        self._device, self._sizes, self._batch, self._num = device, sizes, batch, num
        self._start_s = time.perf_counter()
        self._stock_ms: float | None = None

    def rows(self) -> Iterator[Row]:
        torch.manual_seed(0)
        parts: list[tuple[str, Callable[[], Iterator[Row]]]] = [(_STOCK, self._stock)]
        parts += [(f"ours, {way.name}", partial(self._ours, way)) for way in _WAYS]
        for name, part in parts:
            if time.perf_counter() - self._start_s > _BUDGET_S:
                yield skipped(name, f"{_BUDGET_S:.0f} s have passed")
                continue
            self._free()
            failure = None
            try:
                yield from part()
            except Exception as error:  # out of memory, or another version of transformers: other rows remain
                failure = skipped(name, error)  # without the error, which refers to the tensors of the step
            if failure is not None:
                yield failure
        yield Row(name="whole bench", value=time.perf_counter() - self._start_s, unit="s")

    def _free(self) -> None:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def _stock(self) -> Iterator[Row]:
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        stock = StockPi0(make_network(self._sizes, device=self._device, dtype=dtype))
        stock.let_learn()
        inputs = make_inputs(self._sizes, device=self._device, dtype=dtype, batch=self._batch)
        actions = torch.randn_like(inputs.noise)
        rows = self._measured(_STOCK, stock.parameters(), lambda: stock.loss(inputs, actions))
        for row in rows:
            if row.unit == "ms":
                self._stock_ms = row.value
            yield row

    def _ours(self, way: _Way) -> Iterator[Row]:
        is_gpu = self._device.type == "cuda"
        dtype = torch.float32 if way.is_master_fp32 or not is_gpu else torch.bfloat16
        network = make_network(self._sizes, device=self._device, dtype=dtype)
        assert isinstance(network, Pi0Network)
        runner = network.run_layer
        runner.recompute, runner.is_compiled, runner.is_bf16 = way.recompute, is_gpu, way.is_master_fp32 and is_gpu
        inputs = make_inputs(self._sizes, device=self._device, dtype=dtype, batch=self._batch)
        actions = torch.randn_like(inputs.noise)
        yield from self._measured(
            f"ours, {way.name}", _trained(network, way), partial(_loss, network, inputs, actions)
        )

    def _measured(self, name: str, parameters: list[nn.Parameter], loss: Callable[[], Tensor]) -> Iterator[Row]:
        optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
        times_ms = []
        for number in range(_NUM_WARMUP + self._num):
            start_s = time.perf_counter()
            optimizer.zero_grad()
            value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            value.item()
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            elapsed_ms = 1e3 * (time.perf_counter() - start_s)
            if number == 0:
                yield Row(name=f"{name}: first step", value=elapsed_ms / 1e3, unit="s")
            if number >= _NUM_WARMUP:
                times_ms.append(elapsed_ms)
        median = statistics.median(times_ms)
        ratio = None if self._stock_ms is None else median / self._stock_ms
        yield Row(
            name=f"{name}: a step of {self._batch} rows",
            value=median,
            unit="ms",
            baseline=None if ratio is None else _STOCK,
            ratio=ratio,
            samples=tuple(times_ms),
        )
        trained = sum(parameter.numel() for parameter in parameters) / 1e6
        yield Row(name=f"{name}: trained weights", value=trained, unit="million")
        if self._device.type == "cuda":
            yield Row(name=f"{name}: memory", value=torch.cuda.max_memory_allocated() / 2**30, unit="GiB")


def _loss(network: Pi0Network, inputs: Inputs, actions: Tensor) -> Tensor:
    return flow_matching_loss(network, inputs, actions)


def _trained(network: Pi0Network, way: _Way) -> list[nn.Parameter]:
    if way.trains == "lora":
        lora = LoraConfig()
        found = Lora.add(network, _places(network), pattern=lora.targets, rank=lora.rank, alpha=lora.alpha, seed=0)
        return list(found.parameters())
    module = network if way.trains == "full" else network.components["expert"]
    return list(module.requires_grad_(True).parameters())


def _places(network: Pi0Network) -> dict[str, Place]:
    """Where the published tensors are in this network."""
    found, parameters = {}, dict(network.named_parameters())
    for ours, shapes in published_sources(network).items():
        first = 0
        for name, num in shapes:
            found[name] = Place(ours, first, num)
            first += num
        assert first == len(parameters[ours])
    return found


if __name__ == "__main__":
    for row in bench(quick="--quick" in sys.argv):
        sys.stdout.write(json.dumps(row.to_json()) + "\n")
        sys.stdout.flush()
