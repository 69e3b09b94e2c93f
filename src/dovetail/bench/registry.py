"""Which benches there are: data, so that listing them imports none."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from dovetail.bench.rows import Row

__all__ = ["BENCHES", "Bench", "Entry", "load_bench"]


class Bench(Protocol):
    """A measurement: rows as they are known. `quick` asks for a rough answer within a minute."""

    def __call__(self, *, quick: bool) -> Iterator[Row]: ...


class Entry(NamedTuple):
    target: str  # module:function
    what: str
    part: bool = False  # of another bench, which runs it too


BENCHES: Mapping[str, Entry] = MappingProxyType(
    {
        "sim": Entry("dovetail.bench.sim:bench", "speed of the simulation on one core"),
        "experts": Entry("dovetail.bench.experts:bench", "scripted experts and blind replay, per task and arm"),
        "replay": Entry("dovetail.bench.replay:bench", "batches of images per second, against TorchRL and memcpy"),
        "images": Entry(
            "dovetail.bench.images:bench", "size, quality and speed of the codecs for recorded images"
        ),
        "realtime": Entry(
            "dovetail.bench.realtime:bench",
            "punctuality of the control loop, chunk modes under delay, weight swaps",
        ),
        "takeover": Entry("dovetail.bench.takeover:bench", "from a person's word to the arm, in both layouts"),
        "learn": Entry("dovetail.bench.learn:bench", "learning: speed of updates, robot time to success"),
        "learn_speed": Entry(
            "dovetail.bench.learn_speed:bench",
            "updates a second, against Stable-Baselines3, TorchRL and the arithmetic alone",
            part=True,
        ),
        "learn_lift": Entry(
            "dovetail.bench.learn_lift:bench", "weak policies lifted by HG-DAgger, Hi-ORS and DSRL", part=True
        ),
        "learn_minutes": Entry(
            "dovetail.bench.learn_minutes:bench", "robot time to 95 %, three seeds, beside SB3's SAC", part=True
        ),
        "learn_ppo": Entry(
            "dovetail.bench.learn_ppo:bench", "PPO on push_cube: time to 95 %, collecting meanwhile", part=True
        ),
        "arms": Entry("dovetail.bench.arms:bench", "two arms on one policy: robot time, against each arm alone"),
        "pipeline": Entry(
            "dovetail.bench.pipeline:bench", "everything at once on Ray, against one thing after another"
        ),
        "pipeline_ratio": Entry(
            "dovetail.bench.pipeline_ratio:bench",
            "seconds per episode at the same update-to-data ratio",
            part=True,
        ),
        "pipeline_free": Entry(
            "dovetail.bench.pipeline_free:bench", "the same with a learner that is free to run", part=True
        ),
        "pipeline_solved": Entry(
            "dovetail.bench.pipeline_solved:bench", "wall-clock to 95 % on peg_insertion", part=True
        ),
        "pipeline_publish": Entry(
            "dovetail.bench.pipeline_publish:bench", "from publishing weights to their use on an arm", part=True
        ),
        "pipeline_ingest": Entry(
            "dovetail.bench.pipeline_ingest:bench", "1 to 32 arms into one store, beside a learner", part=True
        ),
        "demo": Entry("dovetail.bench.demo:bench", "`make demo` for five seeds, and the same inline"),
    }
)


def load_bench(name: str) -> Bench:
    module, _, function = BENCHES[name].target.partition(":")
    bench: Bench = getattr(importlib.import_module(module), function)
    return bench
