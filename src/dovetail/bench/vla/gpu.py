"""Full size on a GPU in bfloat16: pi0 next to stock transformers in the same process, pi05 and SmolVLA."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from dovetail.bench.rows import Row, at_most
from dovetail.bench.vla._stock import STOCK, StockPi0
from dovetail.bench.vla.models import add_lora, first_actions, make_inputs, make_network
from dovetail.bench.vla.robots import new_weight_rows, through_shared_memory
from dovetail.bench.vla.timing import chunk_row, difference, or_skipped, skipped, times_ms
from dovetail.policies.vla.family import FlowNetwork
from dovetail.policies.vla.networks.paligemma import PaliGemmaNetwork
from dovetail.policies.vla.networks.sizes import Pi0Sizes, Pi05Sizes, SmolVLASizes
from dovetail.policies.vla.sampler import Commitment, Inputs, Sampler, compiled_parts

__all__ = ["PARTS", "GpuBench"]

_AIM_MS, _GUIDED_AIM_MS, _WARMUP_AIM_S = 12.0, 25.0, 60.0
_BUDGET_S = 400.0  # rows that have to compile are not started later than this
_FASTEST = "CUDA graph of kernels and compiled pieces"
PARTS = (
    "pi0",
    "stock",
    "memory",
    "lora",
    "pi05",
    "smolvla",
    "guided",
    "pi05_guided",
    "batch",
    "weights",
    "stock_compiled",
)


class GpuBench:
    def __init__(self, *, quick: bool, parts: Sequence[str]) -> None:
        self._parts, self._num, self._start_s = parts, 10 if quick else 50, time.perf_counter()
        self._sizes, self._device, self._dtype = (
            Pi0Sizes(has_float64_times=False),
            torch.device("cuda"),
            torch.bfloat16,
        )

    def rows(self) -> Iterator[Row]:
        version = ".".join(torch.__version__.split("+")[0].split(".")[:2])
        yield Row(name=f"{torch.cuda.get_device_name()}, torch", value=float(version), unit="version")
        network = make_network(self._sizes, device=self._device, dtype=self._dtype)
        inputs = make_inputs(self._sizes, device=self._device, dtype=self._dtype)
        yield Row(name="weights", value=sum(p.numel() for p in network.parameters()) / 1e9, unit="billion")
        parts: dict[str, Callable[[], Iterator[Row]]] = {
            "pi0": lambda: self._ours(network, inputs),
            "stock": lambda: self._stock(network, inputs),
            "memory": lambda: self._from_memory(network),
            "lora": self._lora,
            "pi05": self._pi05,
            "smolvla": self._smolvla,
            "guided": lambda: self._guided(network, inputs),
            "pi05_guided": self._pi05_guided,
            "batch": lambda: self._batch(network, 8),
            "weights": lambda: self._new_weights(network),
            "stock_compiled": lambda: self._stock_compiled(network, inputs),
        }
        for name in self._parts:
            if time.perf_counter() - self._start_s > _BUDGET_S:
                yield skipped(name, f"{_BUDGET_S:.0f} s have passed")
                continue
            yield from or_skipped(name, parts[name])
        yield Row(name="whole bench", value=time.perf_counter() - self._start_s, unit="s")
        yield Row(name="peak GPU memory", value=torch.cuda.max_memory_allocated() / 2**30, unit="GiB")

    def _pi05(self) -> Iterator[Row]:
        network = make_network(Pi05Sizes(), device=self._device, dtype=self._dtype)
        inputs = make_inputs(network.sizes, device=self._device, dtype=self._dtype)
        yield from self._ours(network, inputs, who="pi05, ours")

    def _lora(self) -> Iterator[Row]:
        """Adapters of rank 16 in all layers of text model and expert, which are not merged."""
        network = make_network(self._sizes, device=self._device, dtype=self._dtype)
        size = sum(array.nbytes for array in add_lora(network, rank=16).parameters()) / 1e6
        yield Row(name="pi0 with LoRA: adapters", value=size, unit="MB")
        inputs = make_inputs(self._sizes, device=self._device, dtype=self._dtype)
        yield from self._ours(network, inputs, who="pi0 with LoRA")
        if "guided" in self._parts:
            yield from self._guided(network, inputs, who="pi0 with LoRA")

    def _ours(self, network: PaliGemmaNetwork, inputs: Inputs, *, who: str = "ours") -> Iterator[Row]:
        num_steps = self._sizes.num_flow_steps
        eager = Sampler(network, num_steps=num_steps)
        expected = eager(inputs)
        yield chunk_row(f"{who}, eager", times_ms(lambda: eager(inputs), self._num))
        graph = Sampler(network, num_steps=num_steps, graph=True)
        yield from self._warmed_up(f"{who}, CUDA graph", graph, inputs)
        yield chunk_row(f"{who}, CUDA graph", times_ms(lambda: graph(inputs), self._num))
        parts = compiled_parts(network)
        name = f"{who}, {_FASTEST}"
        both = Sampler(network, num_steps=num_steps, parts=parts, graph=True)
        yield from self._warmed_up(name, both, inputs, aim=_WARMUP_AIM_S)
        times = times_ms(lambda: both(inputs), self._num)
        yield chunk_row(name, times, aim=_AIM_MS)
        one = Sampler(network, num_steps=1, parts=parts, graph=True)
        with_one = statistics.median(times_ms(lambda: one(inputs), self._num))
        step = (statistics.median(times) - with_one) / (num_steps - 1)
        yield Row(name=f"{name}: prefix", value=with_one - step, unit="ms")
        yield Row(name=f"{name}: one step", value=step, unit="ms")
        yield difference(f"{who}, CUDA graph against eager", graph(inputs), expected)
        yield difference(f"{name} against eager", both(inputs), expected)

    def _from_memory(self, network: PaliGemmaNetwork) -> Iterator[Row]:
        sizes = ((224, 224), (640, 480))
        yield from through_shared_memory("ours", network, device="cuda", sizes=sizes, num=self._num)

    def _pi05_guided(self) -> Iterator[Row]:
        network = make_network(Pi05Sizes(), device=self._device, dtype=self._dtype)
        inputs = make_inputs(network.sizes, device=self._device, dtype=self._dtype)
        yield from self._guided(network, inputs, who="pi05, ours")

    def _new_weights(self, network: PaliGemmaNetwork) -> Iterator[Row]:
        """All weights of pi0, while it acts at 50 Hz with guided chunks through a robot's processes."""
        from dovetail.bench.vla._weights import taken_while_acting  # the config and its packages

        found = taken_while_acting(network, device="cuda", seconds=75.0, num_versions=2)
        yield from new_weight_rows(found)

    def _guided(self, network: PaliGemmaNetwork, inputs: Inputs, *, who: str = "ours") -> Iterator[Row]:
        num_steps = self._sizes.num_flow_steps
        commitment = first_actions(inputs)
        eager = Sampler(network, num_steps=num_steps)
        yield chunk_row(
            f"{who}, guided by the vjp, eager", times_ms(lambda: eager(inputs, commitment), self._num // 5)
        )
        for what, parts in (("CUDA graph", None), (_FASTEST, compiled_parts(network))):
            name = f"{who}, guided by the vjp, {what}"
            sampler = Sampler(network, num_steps=num_steps, parts=parts, graph=True)
            yield from self._warmed_up(name, sampler, inputs, commitment)
            times = times_ms(lambda s=sampler: s(inputs, commitment), self._num)  # type: ignore[misc]
            yield chunk_row(name, times, aim=_GUIDED_AIM_MS)
            yield difference(f"{name} against eager", sampler(inputs, commitment), eager(inputs, commitment))

    def _batch(self, network: PaliGemmaNetwork, batch: int) -> Iterator[Row]:
        inputs = make_inputs(self._sizes, device=self._device, dtype=self._dtype, batch=batch)
        name = f"ours, batch {batch}, {_FASTEST}"
        parts = compiled_parts(network)
        sampler = Sampler(network, num_steps=self._sizes.num_flow_steps, parts=parts, graph=True)
        yield from self._warmed_up(name, sampler, inputs)
        yield chunk_row(name, times_ms(lambda: sampler(inputs), self._num))

    def _stock(self, network: PaliGemmaNetwork, inputs: Inputs) -> Iterator[Row]:
        stock = StockPi0(network)
        yield chunk_row(STOCK, times_ms(lambda: stock(inputs), max(self._num // 5, 3)))
        ours = Sampler(network, num_steps=self._sizes.num_flow_steps)(inputs)
        yield difference("ours, eager, against stock", ours, stock(inputs))

    def _stock_compiled(self, network: PaliGemmaNetwork, inputs: Inputs) -> Iterator[Row]:
        stock = StockPi0(network)
        start_s = time.perf_counter()
        stock.compile()
        stock(inputs)
        stock(inputs)
        name = "stock transformers, compiled"
        yield Row(name=f"{name}: warm-up", value=time.perf_counter() - start_s, unit="s")
        yield chunk_row(name, times_ms(lambda: stock(inputs), self._num // 5))

    def _smolvla(self) -> Iterator[Row]:
        """Without and with guidance. It has no kernels of its own, and transformers has no such model."""
        sizes = SmolVLASizes()
        network = make_network(sizes, device=self._device, dtype=self._dtype)
        inputs = make_inputs(sizes, device=self._device, dtype=self._dtype)
        yield from self._each_execution("smolvla", network, inputs, None)
        yield from self._each_execution("smolvla, guided by the vjp", network, inputs, first_actions(inputs))

    def _each_execution(
        self, name: str, network: FlowNetwork, inputs: Inputs, commitment: Commitment | None
    ) -> Iterator[Row]:
        num_steps = network.sizes.num_flow_steps
        eager = Sampler(network, num_steps=num_steps)
        expected = eager(inputs, commitment)
        yield chunk_row(f"{name}, eager", times_ms(lambda: eager(inputs, commitment), self._num // 5))
        for how, parts in (("CUDA graph", None), ("CUDA graph of compiled parts", compiled_parts(network))):
            row = f"{name}, {how}"
            sampler = Sampler(network, num_steps=num_steps, parts=parts, graph=True)
            yield from self._warmed_up(row, sampler, inputs, commitment)
            yield chunk_row(row, times_ms(partial(sampler, inputs, commitment), self._num))
            yield difference(f"{row} against eager", sampler(inputs, commitment), expected)

    def _warmed_up(
        self,
        name: str,
        sampler: Sampler,
        inputs: Inputs,
        commitment: Commitment | None = None,
        *,
        aim: float | None = None,
    ) -> Iterator[Row]:
        """Make the first chunk, which compiles and captures."""
        start_s = time.perf_counter()
        sampler(inputs, commitment)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start_s
        row = f"{name}: warm-up"
        yield Row(name=row, value=seconds, unit="s") if aim is None else at_most(row, seconds, "s", aim)
