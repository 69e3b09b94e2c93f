"""Time of one action chunk of pi0 with random weights, next to stock transformers in the same process and through the
inference process; of pi05 and SmolVLA.

On a GPU: full size, bfloat16, three cameras of 224 x 224 pixels (SmolVLA: 512 x 512), 48 prompt tokens (pi05: 200), 10 flow
steps, chunks of 50. On a CPU: tiny models in float32. `python -m dovetail.bench.vla [--quick]` prints the rows as JSON lines
and needs neither the CLI nor Ray. On a GPU, `--only PART...` measures only these parts (`PARTS`).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from dovetail.bench._vla_folder import write_folder
from dovetail.bench._vla_stock import StockPi0
from dovetail.bench.rows import Row, at_most
from dovetail.core.errors import one_line
from dovetail.policies.vla.family import FlowNetwork
from dovetail.policies.vla.paligemma_network import PaliGemmaNetwork
from dovetail.policies.vla.pi0_network import Pi0Network
from dovetail.policies.vla.pi05_network import Pi05Network
from dovetail.policies.vla.sampler import Commitment, Inputs, Sampler, compiled_parts
from dovetail.policies.vla.sizes import GemmaSizes, Pi0Sizes, Pi05Sizes, SmolVLASizes, VisionSizes
from dovetail.policies.vla.smolvla_network import SmolVLANetwork

__all__ = ["PARTS", "TINY", "bench", "make_inputs", "make_network", "new_weight_rows", "skipped"]

_AIM_MS, _GUIDED_AIM_MS, _WARMUP_AIM_S = 12.0, 25.0, 60.0
_MEMORY_AIM_MS = 2.0
_BUDGET_S = 400.0  # rows that have to compile are not started later than this
_BASELINE = "stock transformers, eager"
_CPU = torch.device("cpu")
_FASTEST = "CUDA graph of kernels and compiled pieces"
TINY = Pi0Sizes(
    vision=VisionSizes(width=64, num_layers=2, num_heads=4, mlp_width=128, image_size=56),
    text=GemmaSizes(width=64, num_layers=4, num_heads=4, head_size=32, mlp_width=256),
    expert=GemmaSizes(width=32, num_layers=4, num_heads=4, head_size=32, mlp_width=128),
    vocabulary=256,
    has_float64_times=False,  # as transformers
)
_TINY_PI05 = Pi05Sizes(vision=TINY.vision, text=TINY.text, expert=TINY.expert, vocabulary=TINY.vocabulary)
_TINY_SMOLVLA = SmolVLASizes(
    vision=VisionSizes(width=64, num_layers=2, num_heads=4, mlp_width=128, image_size=64, patch_size=8, join=4),
    text=GemmaSizes(width=64, num_layers=4, num_heads=4, num_kv_heads=2, head_size=32, mlp_width=256),
    expert=GemmaSizes(width=48, num_layers=4, num_heads=4, num_kv_heads=2, head_size=32, mlp_width=128),
    vocabulary=256,
)


PARTS = (
    "pi0",
    "stock",
    "memory",
    "pi05",
    "smolvla",
    "guided",
    "pi05_guided",
    "batch",
    "weights",
    "stock_compiled",
)
_SLOW_PARTS = PARTS[5:]  # not with --quick


def bench(*, quick: bool, parts: Sequence[str] = ()) -> Iterator[Row]:
    torch.manual_seed(0)
    if torch.cuda.is_available():
        yield from _GpuBench(
            quick=quick, parts=parts or [p for p in PARTS if not (quick and p in _SLOW_PARTS)]
        ).rows()
    else:
        yield from network_rows(num=3 if quick else 20)
        yield from _orskipped("CPU, tiny pi0: shared memory", lambda: shared_memory_rows(num=5 if quick else 50))
    if not parts:
        yield from _orskipped("100 MB of new weights", lambda: _weight_rows(seconds=6.0 if quick else 30.0))


def network_rows(num: int) -> Iterator[Row]:
    """On a CPU, with tiny models."""
    others: dict[str, FlowNetwork] = {
        "pi05": make_network(_TINY_PI05, device=_CPU, dtype=torch.float32),
        "smolvla": make_network(_TINY_SMOLVLA, device=_CPU, dtype=torch.float32),
    }
    for name, other in others.items():
        sampler, inputs = _tiny(other)
        yield _row(f"CPU, tiny {name}: ours, eager", _times_ms(partial(sampler, inputs), num))
    network = make_network(TINY, device=_CPU, dtype=torch.float32)
    sampler, inputs = _tiny(network)
    ours = _times_ms(lambda: sampler(inputs), num)
    try:
        stock = StockPi0(network)
    except Exception as error:  # another version of transformers, or none: the rows of ours remain
        yield skipped("stock transformers", error)
        yield _row("CPU, tiny pi0: ours, eager", ours)
        return
    theirs = _times_ms(lambda: stock(inputs), num)
    yield _row(f"CPU, tiny pi0: {_BASELINE}", theirs)
    ratio = statistics.median(ours) / statistics.median(theirs)
    yield _row("CPU, tiny pi0: ours, eager", ours, baseline=_BASELINE, ratio=ratio)
    yield _difference("CPU, tiny pi0: ours against stock", sampler(inputs), stock(inputs))


def _tiny(network: FlowNetwork) -> tuple[Sampler, Inputs]:
    inputs = make_inputs(network.sizes, device=_CPU, dtype=torch.float32)
    return Sampler(network, num_steps=network.sizes.num_flow_steps), inputs


def shared_memory_rows(num: int) -> Iterator[Row]:
    """The inference process on a CPU, with a tiny model and one thread, as robots have it."""
    network = make_network(TINY, device=torch.device("cpu"), dtype=torch.float32)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _shared_memory("CPU, tiny pi0", network, device="cpu", sizes=((56, 56),), num=num)
    finally:
        torch.set_num_threads(num_threads)


def _shared_memory(
    name: str, network: PaliGemmaNetwork, *, device: str, sizes: Sequence[tuple[int, int]], num: int
) -> Iterator[Row]:
    """The policy in this process and in the inference process, with cameras of each size. The first size is the
    network's."""
    from dovetail.bench import _vla_inference as inference  # the config and its packages

    image_size = network.sizes.vision.image_size
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-pi0-") as scratch:
        folder = Path(scratch)
        write_folder(folder, network, num_state=inference.NUM_STATE, num_actions=inference.NUM_ACTIONS)
        robots = [inference.make_robot(width=width, height=height) for width, height in sizes]
        bare = inference.bare_chunks(folder, robots[0], device=device, image_size=image_size, num=num)
        yield _row(f"{name}: policy call in one process, arrays to arrays", bare.times_ms)
        for (width, height), robot in zip(sizes, robots, strict=True):
            through = inference.chunks_of_process(
                folder, robot, device=device, image_size=image_size, horizon=network.sizes.horizon, num=num
            )
            label = f"{name}: images of {width} x {height} in shared memory to actions in shared memory"
            yield _row(label, through.times_ms)
            more = statistics.median(through.times_ms) - statistics.median(bare.times_ms)
            if (width, height) == sizes[0]:
                yield at_most(f"{label}: more than the policy call", more, "ms", _MEMORY_AIM_MS)
                yield _difference(label, torch.from_numpy(through.actions), torch.from_numpy(bare.actions))
            else:
                yield Row(name=f"{label}: more than the policy call", value=more, unit="ms")


def _weight_rows(seconds: float) -> Iterator[Row]:
    """A whole robot with all its processes, so this needs every package of an installation."""
    from dovetail.bench._control_loops import with_new_weights

    busy = with_new_weights(seconds=seconds)
    name = "100 MB of new weights every second, 50 Hz"
    yield Row(name=f"{name}: versions taken", value=busy["weights_swaps"], unit="")
    lost = busy["missed"] + busy.get("starved", 0.0)
    yield at_most(f"{name}: ticks missed or without an action, of {busy['ticks']:.0f}", lost, "", 0)


def new_weight_rows(found: Mapping[str, float]) -> Iterator[Row]:
    name = f"{found['version_gb']:.2g} GB of new weights, 50 Hz"
    yield Row(name=f"{name}: versions taken", value=found["weights_swaps"], unit="")
    yield Row(name=f"{name}: longest load", value=found["weights_load_max_ms"] / 1e3, unit="s")
    yield Row(name=f"{name}: longest exchange", value=found["weights_swap_max_ms"], unit="ms")
    lost = found["missed"] + found.get("starved", 0.0)
    yield at_most(f"{name}: ticks missed or without an action, of {found['ticks']:.0f}", lost, "", 0)


def _orskipped(name: str, part: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    try:
        yield from part()
    except Exception as error:  # one part that fails, or lacks a package, must not lose the other rows
        yield skipped(name, error)


class _GpuBench:
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
            yield from _orskipped(name, parts[name])
        yield Row(name="whole bench", value=time.perf_counter() - self._start_s, unit="s")
        yield Row(name="peak GPU memory", value=torch.cuda.max_memory_allocated() / 2**30, unit="GiB")

    def _pi05(self) -> Iterator[Row]:
        network = make_network(Pi05Sizes(), device=self._device, dtype=self._dtype)
        inputs = make_inputs(network.sizes, device=self._device, dtype=self._dtype)
        yield from self._ours(network, inputs, who="pi05, ours")

    def _ours(self, network: PaliGemmaNetwork, inputs: Inputs, *, who: str = "ours") -> Iterator[Row]:
        num_steps = self._sizes.num_flow_steps
        eager = Sampler(network, num_steps=num_steps)
        expected = eager(inputs)
        yield _row(f"{who}, eager", _times_ms(lambda: eager(inputs), self._num))
        graph = Sampler(network, num_steps=num_steps, graph=True)
        yield from self._warmed_up(f"{who}, CUDA graph", graph, inputs)
        yield _row(f"{who}, CUDA graph", _times_ms(lambda: graph(inputs), self._num))
        parts = compiled_parts(network)
        name = f"{who}, {_FASTEST}"
        both = Sampler(network, num_steps=num_steps, parts=parts, graph=True)
        yield from self._warmed_up(name, both, inputs, aim=_WARMUP_AIM_S)
        times = _times_ms(lambda: both(inputs), self._num)
        yield _row(name, times, aim=_AIM_MS)
        one = Sampler(network, num_steps=1, parts=parts, graph=True)
        with_one = statistics.median(_times_ms(lambda: one(inputs), self._num))
        step = (statistics.median(times) - with_one) / (num_steps - 1)
        yield Row(name=f"{name}: prefix", value=with_one - step, unit="ms")
        yield Row(name=f"{name}: one step", value=step, unit="ms")
        yield _difference(f"{who}, CUDA graph against eager", graph(inputs), expected)
        yield _difference(f"{name} against eager", both(inputs), expected)

    def _from_memory(self, network: PaliGemmaNetwork) -> Iterator[Row]:
        sizes = ((224, 224), (640, 480))
        yield from _shared_memory("ours", network, device="cuda", sizes=sizes, num=self._num)

    def _pi05_guided(self) -> Iterator[Row]:
        network = make_network(Pi05Sizes(), device=self._device, dtype=self._dtype)
        inputs = make_inputs(network.sizes, device=self._device, dtype=self._dtype)
        yield from self._guided(network, inputs, who="pi05, ours")

    def _new_weights(self, network: PaliGemmaNetwork) -> Iterator[Row]:
        """All weights of pi0, while it acts at 50 Hz with guided chunks through a robot's processes."""
        from dovetail.bench._vla_weights import taken_while_acting  # the config and its packages

        found = taken_while_acting(network, device="cuda", seconds=75.0, num_versions=2)
        yield from new_weight_rows(found)

    def _guided(self, network: PaliGemmaNetwork, inputs: Inputs, *, who: str = "ours") -> Iterator[Row]:
        num_steps = self._sizes.num_flow_steps
        commitment = _first_actions(inputs)
        eager = Sampler(network, num_steps=num_steps)
        yield _row(
            f"{who}, guided by the vjp, eager", _times_ms(lambda: eager(inputs, commitment), self._num // 5)
        )
        for what, parts in (("CUDA graph", None), (_FASTEST, compiled_parts(network))):
            name = f"{who}, guided by the vjp, {what}"
            sampler = Sampler(network, num_steps=num_steps, parts=parts, graph=True)
            yield from self._warmed_up(name, sampler, inputs, commitment)
            times = _times_ms(lambda s=sampler: s(inputs, commitment), self._num)  # type: ignore[misc]
            yield _row(name, times, aim=_GUIDED_AIM_MS)
            yield _difference(f"{name} against eager", sampler(inputs, commitment), eager(inputs, commitment))

    def _batch(self, network: PaliGemmaNetwork, batch: int) -> Iterator[Row]:
        inputs = make_inputs(self._sizes, device=self._device, dtype=self._dtype, batch=batch)
        name = f"ours, batch {batch}, {_FASTEST}"
        parts = compiled_parts(network)
        sampler = Sampler(network, num_steps=self._sizes.num_flow_steps, parts=parts, graph=True)
        yield from self._warmed_up(name, sampler, inputs)
        yield _row(name, _times_ms(lambda: sampler(inputs), self._num))

    def _stock(self, network: PaliGemmaNetwork, inputs: Inputs) -> Iterator[Row]:
        stock = StockPi0(network)
        yield _row(_BASELINE, _times_ms(lambda: stock(inputs), max(self._num // 5, 3)))
        ours = Sampler(network, num_steps=self._sizes.num_flow_steps)(inputs)
        yield _difference("ours, eager, against stock", ours, stock(inputs))

    def _stock_compiled(self, network: PaliGemmaNetwork, inputs: Inputs) -> Iterator[Row]:
        stock = StockPi0(network)
        start_s = time.perf_counter()
        stock.compile()
        stock(inputs)
        stock(inputs)
        name = "stock transformers, compiled"
        yield Row(name=f"{name}: warm-up", value=time.perf_counter() - start_s, unit="s")
        yield _row(name, _times_ms(lambda: stock(inputs), self._num // 5))

    def _smolvla(self) -> Iterator[Row]:
        """Without and with guidance. It has no kernels of its own, and transformers has no such model."""
        sizes = SmolVLASizes()
        network = make_network(sizes, device=self._device, dtype=self._dtype)
        inputs = make_inputs(sizes, device=self._device, dtype=self._dtype)
        yield from self._each_execution("smolvla", network, inputs, None)
        yield from self._each_execution("smolvla, guided by the vjp", network, inputs, _first_actions(inputs))

    def _each_execution(
        self, name: str, network: FlowNetwork, inputs: Inputs, commitment: Commitment | None
    ) -> Iterator[Row]:
        num_steps = network.sizes.num_flow_steps
        eager = Sampler(network, num_steps=num_steps)
        expected = eager(inputs, commitment)
        yield _row(f"{name}, eager", _times_ms(lambda: eager(inputs, commitment), self._num // 5))
        for how, parts in (("CUDA graph", None), ("CUDA graph of compiled parts", compiled_parts(network))):
            row = f"{name}, {how}"
            sampler = Sampler(network, num_steps=num_steps, parts=parts, graph=True)
            yield from self._warmed_up(row, sampler, inputs, commitment)
            yield _row(row, _times_ms(partial(sampler, inputs, commitment), self._num))
            yield _difference(f"{row} against eager", sampler(inputs, commitment), expected)

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


def _first_actions(inputs: Inputs) -> Commitment:
    """Ten actions of seven axes that a chunk must continue."""
    target = torch.randn_like(inputs.noise)
    weights = torch.zeros_like(target)
    weights[:, :10, :7] = 1.0
    return Commitment(target, weights)


@overload
def make_network(sizes: Pi0Sizes, *, device: torch.device, dtype: torch.dtype) -> PaliGemmaNetwork: ...
@overload
def make_network(sizes: SmolVLASizes, *, device: torch.device, dtype: torch.dtype) -> SmolVLANetwork: ...
def make_network(
    sizes: Pi0Sizes | SmolVLASizes, *, device: torch.device, dtype: torch.dtype
) -> PaliGemmaNetwork | SmolVLANetwork:
    """Random weights of the model that has such sizes, made on the device."""
    network: PaliGemmaNetwork | SmolVLANetwork
    with torch.device("meta"):
        if isinstance(sizes, SmolVLASizes):
            network = SmolVLANetwork(sizes)
        else:
            network = Pi05Network(sizes) if isinstance(sizes, Pi05Sizes) else Pi0Network(sizes)
    network = network.to(dtype).to_empty(device=device).requires_grad_(False).eval()
    for parameter in network.parameters():
        parameter.normal_(0.0, parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.02)
    return network


def make_inputs(
    sizes: Pi0Sizes | SmolVLASizes, *, device: torch.device, dtype: torch.dtype, batch: int = 1
) -> Inputs:
    size, num_tokens = sizes.image_size, sizes.num_prompt_tokens
    return Inputs(
        images=torch.rand(batch, sizes.num_cameras, 3, size, size, device=device).mul(2.0).sub(1.0).to(dtype),
        camera_mask=torch.ones(batch, sizes.num_cameras, dtype=torch.bool, device=device),
        tokens=torch.randint(1, sizes.vocabulary, (batch, num_tokens), device=device),
        token_mask=torch.ones(batch, num_tokens, dtype=torch.bool, device=device),
        state=torch.randn(batch, sizes.state_size, device=device).to(dtype),
        noise=torch.randn(batch, sizes.horizon, sizes.action_size, device=device),
    )


def _times_ms(call: Callable[[], Tensor], num: int) -> list[float]:
    """The time of each call until its result is in the CPU's memory, after two calls that do not count."""
    times = []
    for _ in range(max(num, 3) + 2):
        start_s = time.perf_counter()
        call().cpu()
        times.append(1e3 * (time.perf_counter() - start_s))
    return times[2:]


def _row(
    name: str,
    times_ms: list[float],
    *,
    aim: float | None = None,
    baseline: str | None = None,
    ratio: float | None = None,
) -> Row:
    median = statistics.median(times_ms)
    return Row(
        name=name,
        value=median,
        unit="ms/chunk",
        baseline=baseline,
        ratio=ratio,
        aim=aim,
        met=None if aim is None else median <= aim,
        samples=tuple(times_ms),
    )


def _difference(name: str, ours: Tensor, theirs: Tensor) -> Row:
    relative = (ours.float() - theirs.float()).norm() / theirs.float().norm()
    return Row(name=f"{name}: difference of actions", value=100.0 * float(relative), unit="%")


def skipped(name: str, reason: object) -> Row:
    why = one_line(reason) if isinstance(reason, Exception) else str(reason)
    return Row(name=f"{name} skipped: {why[:200]}", value=0.0, unit="")


if __name__ == "__main__":
    chosen = sys.argv[sys.argv.index("--only") + 1 :] if "--only" in sys.argv else []
    for row in bench(quick="--quick" in sys.argv, parts=chosen):
        sys.stdout.write(json.dumps(row.to_json()) + "\n")
        sys.stdout.flush()
