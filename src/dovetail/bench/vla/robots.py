"""The policy in a robot's processes: chunks through shared memory, and new weights while it acts."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from dovetail.bench.rows import Row, at_most
from dovetail.bench.vla._folder import write_folder
from dovetail.bench.vla.timing import chunk_row, difference
from dovetail.policies.vla.networks.paligemma import PaliGemmaNetwork

__all__ = ["new_weight_rows", "through_shared_memory", "weight_rows"]

_MEMORY_AIM_MS = 2.0


def through_shared_memory(
    name: str, network: PaliGemmaNetwork, *, device: str, sizes: Sequence[tuple[int, int]], num: int
) -> Iterator[Row]:
    """The policy in this process and in the inference process, with cameras of each size. The first size is the
    network's."""
    from dovetail.bench.vla import _inference as inference  # the config and its packages

    image_size = network.sizes.vision.image_size
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-pi0-") as scratch:
        folder = Path(scratch)
        write_folder(folder, network, num_state=inference.NUM_STATE, num_actions=inference.NUM_ACTIONS)
        robots = [inference.make_robot(width=width, height=height) for width, height in sizes]
        bare = inference.bare_chunks(folder, robots[0], device=device, image_size=image_size, num=num)
        yield chunk_row(f"{name}: policy call in one process, arrays to arrays", bare.times_ms)
        for (width, height), robot in zip(sizes, robots, strict=True):
            through = inference.chunks_of_process(
                folder, robot, device=device, image_size=image_size, horizon=network.sizes.horizon, num=num
            )
            label = f"{name}: images of {width} x {height} in shared memory to actions in shared memory"
            yield chunk_row(label, through.times_ms)
            more = statistics.median(through.times_ms) - statistics.median(bare.times_ms)
            if (width, height) == sizes[0]:
                yield at_most(f"{label}: more than the policy call", more, "ms", _MEMORY_AIM_MS)
                yield difference(label, torch.from_numpy(through.actions), torch.from_numpy(bare.actions))
            else:
                yield Row(name=f"{label}: more than the policy call", value=more, unit="ms")


def weight_rows(seconds: float) -> Iterator[Row]:
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
