"""Tiny models on a CPU, next to stock transformers in the same process."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import torch

from dovetail.bench.rows import Row
from dovetail.bench.vla._stock import STOCK, StockPi0
from dovetail.bench.vla.models import TINY, TINY_PI05, TINY_SMOLVLA, make_inputs, make_network
from dovetail.bench.vla.robots import through_shared_memory
from dovetail.bench.vla.timing import chunk_row, difference, skipped, times_ms
from dovetail.policies.vla.family import FlowNetwork
from dovetail.policies.vla.sampler import Inputs, Sampler

__all__ = ["network_rows", "shared_memory_rows"]

_CPU = torch.device("cpu")


def network_rows(num: int) -> Iterator[Row]:
    """On a CPU, with tiny models."""
    others: dict[str, FlowNetwork] = {
        "pi05": make_network(TINY_PI05, device=_CPU, dtype=torch.float32),
        "smolvla": make_network(TINY_SMOLVLA, device=_CPU, dtype=torch.float32),
    }
    for name, other in others.items():
        sampler, inputs = _tiny(other)
        yield chunk_row(f"CPU, tiny {name}: ours, eager", times_ms(partial(sampler, inputs), num))
    network = make_network(TINY, device=_CPU, dtype=torch.float32)
    sampler, inputs = _tiny(network)
    ours = times_ms(lambda: sampler(inputs), num)
    try:
        stock = StockPi0(network)
    except Exception as error:  # another version of transformers, or none: the rows of ours remain
        yield skipped("stock transformers", error)
        yield chunk_row("CPU, tiny pi0: ours, eager", ours)
        return
    theirs = times_ms(lambda: stock(inputs), num)
    yield chunk_row(f"CPU, tiny pi0: {STOCK}", theirs)
    ratio = statistics.median(ours) / statistics.median(theirs)
    yield chunk_row("CPU, tiny pi0: ours, eager", ours, baseline=STOCK, ratio=ratio)
    yield difference("CPU, tiny pi0: ours against stock", sampler(inputs), stock(inputs))


def _tiny(network: FlowNetwork) -> tuple[Sampler, Inputs]:
    inputs = make_inputs(network.sizes, device=_CPU, dtype=torch.float32)
    return Sampler(network, num_steps=network.sizes.num_flow_steps), inputs


def shared_memory_rows(num: int) -> Iterator[Row]:
    """The inference process on a CPU, with a tiny model and one thread, as robots have it."""
    network = make_network(TINY, device=torch.device("cpu"), dtype=torch.float32)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from through_shared_memory("CPU, tiny pi0", network, device="cpu", sizes=((56, 56),), num=num)
    finally:
        torch.set_num_threads(num_threads)
