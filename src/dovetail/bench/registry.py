"""The names of the benches. Listing them imports no bench."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from dovetail.bench.rows import Row

__all__ = ["BENCHES", "Bench", "Entry", "load_bench"]


class Bench(Protocol):
    """A measurement: yields each row when it is measured. `quick` asks for a rough answer within a minute."""

    def __call__(self, *, quick: bool) -> Iterator[Row]: ...


class Entry(NamedTuple):
    """A bench: the module whose `bench` function measures it, and one line about it."""

    module: str
    summary: str


BENCHES: Mapping[str, Entry] = MappingProxyType(
    {
        "sim": Entry("dovetail.bench.sim", "speed of the simulation on one core"),
        "realtime": Entry(
            "dovetail.bench.realtime", "lateness of the control loop beside a learner, weight swaps"
        ),
        "takeover": Entry(
            "dovetail.bench.takeover", "delay from an operator's message to the arm, in both layouts"
        ),
        "stop": Entry(
            "dovetail.bench.stop.bench", "time from STOP to the arm, from every source, wherever a run is stuck"
        ),
        "robots_drivers": Entry(
            "dovetail.bench.robots", "latency and jitter of each driver, late ticks at 50 Hz under load"
        ),
        "robots_cameras": Entry(
            "dovetail.bench.robots_cameras", "CPU of the control process with three cameras, and its lateness"
        ),
        "replay": Entry("dovetail.bench.replay", "batches of images per second, against memcpy"),
        "images": Entry("dovetail.bench.images", "size, quality and speed of the codecs for recorded images"),
        "vla": Entry(
            "dovetail.bench.vla.chunks",
            "time of a chunk of pi0 (next to stock transformers), pi05 and smolvla; full size on a GPU",
        ),
        "vla_train": Entry(
            "dovetail.bench.vla.train",
            "time and memory of a training step of pi0, next to stock transformers; full size on a GPU",
        ),
        "vla_ppo": Entry(
            "dovetail.bench.vla.ppo", "PPO of a small VLA: collecting and learning in turn and at the same time"
        ),
        "vla_act": Entry("dovetail.bench.vla.act", "time of a chunk of ACT; published size on a GPU"),
        "serve": Entry(
            "dovetail.bench.serve", "overhead and throughput of a policy server with openpi's protocol"
        ),
        "learn_speed": Entry("dovetail.bench.learn_speed", "updates per second, against the arithmetic alone"),
    }
)


def load_bench(entry: Entry) -> Bench:
    bench: Bench = importlib.import_module(entry.module).bench
    return bench
