"""Updates per second on one CPU thread, compared with the arithmetic alone.

Contenders take turns and are compared by the CPU time that each used, so that other jobs on the machine distort it less.
`python -m benchmarks learn_peers` adds Stable-Baselines3 and TorchRL.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.bench import learn_speed_gpu
from dovetail.bench._learn_floor import GEMM_MACS, gemm, ppo_macs, soft_macs
from dovetail.bench._learn_ours import (
    ACTIONS,
    CAMERAS,
    FEATURES,
    make_batch,
    make_rollout,
    our_image_sac,
    our_ppo,
    our_sac,
    with_images,
)
from dovetail.bench.rows import Row, at_least
from dovetail.learn.memory import keep_freed_memory
from dovetail.policies.images.encoders import EncoderConfig, ImageEncoder

__all__ = ["Peers", "Sizes", "Update", "bench", "race"]

Update = Callable[[], object]
_IN_A_ROW = 3
_GEMMS = 8  # timed together: one alone is too short


class Peers:
    """Other libraries with the same networks and batches: updates by the library's name. This one has none."""

    def sac(self, batch: Mapping[str, Tensor], *, hidden: Sequence[int], critics: int) -> dict[str, Update]:
        return {}

    def image_sac(self, batch: Mapping[str, Tensor], *, hidden: Sequence[int]) -> dict[str, Update]:
        return {}

    def ppo(self, rollout: Mapping[str, Tensor], *, hidden: Sequence[int], batch_size: int) -> dict[str, Update]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    hidden: tuple[int, ...] = (256, 256)
    batch: int = 256
    rounds: int = 30
    rollout: tuple[int, int] = (4, 512)
    image: int = 128


def bench(*, quick: bool, sizes: Sizes | None = None, peers: Peers | None = None) -> Iterator[Row]:
    sizes, peers = sizes or Sizes(rounds=6 if quick else 30), peers or Peers()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()  # as our commands do; it serves peers too
    try:
        yield from _state(sizes, peers, "SAC", critics=2)
        yield from _state(sizes, peers, "RLPD", critics=10)
        yield from _ppo(sizes, peers)
        yield from _images(sizes, peers)
        yield from learn_speed_gpu.bench(quick=quick)
    finally:
        torch.set_num_threads(before)


def race(contenders: Mapping[str, Update], *, rounds: int) -> dict[str, float]:
    """Median CPU seconds of each. Contenders take turns of a few calls in a row; the first call of a turn warms the
    caches and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        for _ in range(3):
            run()
    for _ in range(rounds):
        for name, run in contenders.items():
            run()
            for _ in range(_IN_A_ROW):
                start_s = time.process_time()
                run()
                times[name].append(time.process_time() - start_s)
    return {name: statistics.median(values) for name, values in times.items()}


def _several_gemms() -> Update:
    product = gemm()
    return lambda: [product() for _ in range(_GEMMS)]


def _state(sizes: Sizes, peers: Peers, name: str, *, critics: int) -> Iterator[Row]:
    batch = make_batch(sizes.batch)
    contenders: dict[str, Update] = {
        "dovetail": our_sac(batch, hidden=sizes.hidden, critics=critics),
        "gemm": _several_gemms(),
    }
    if critics > 2:
        contenders["a loop over critics"] = our_sac(batch, hidden=sizes.hidden, critics=critics, looped=True)
    contenders |= (others := peers.sac(batch, hidden=sizes.hidden, critics=critics))
    macs = soft_macs(
        features=FEATURES, actions=ACTIONS, hidden=sizes.hidden, batch=sizes.batch, critics=critics, targets=2
    )
    what = f"{name}, {critics} critics, state"
    seconds = race(contenders, rounds=sizes.rounds if critics <= 2 else max(2, sizes.rounds // 3))
    yield from _compared(what, seconds, others, macs, unit="updates/s", has_aim=critics <= 2)
    if critics > 2:
        times = seconds["a loop over critics"] / seconds["dovetail"]
        yield at_least(f"{what}: times a loop over critics", times, "x", 1.0, baseline="a loop", ratio=times)


def _ppo(sizes: Sizes, peers: Peers) -> Iterator[Row]:
    rollout = make_rollout(*sizes.rollout)
    contenders: dict[str, Update] = {
        "dovetail": our_ppo(rollout, hidden=sizes.hidden, batch_size=sizes.batch),
        "gemm": _several_gemms(),
    }
    contenders |= (others := peers.ppo(rollout, hidden=sizes.hidden, batch_size=sizes.batch))
    num_rows = rollout["reward"].numel()
    macs = ppo_macs(features=FEATURES, actions=ACTIONS, hidden=sizes.hidden, rows=num_rows)
    seconds = race(contenders, rounds=max(2, sizes.rounds // 3))
    yield from _compared(f"PPO, {num_rows} steps", seconds, others, macs, unit="epochs/s", has_aim=False)


def _compared(
    what: str, seconds: Mapping[str, float], peers: Mapping[str, Update], macs: int, *, unit: str, has_aim: bool
) -> Iterator[Row]:
    """The speed of each contender, ours divided by the fastest peer's, and ours as a share of the arithmetic's speed.
    A peer whose name has a comma is a variant and does not count as the fastest."""
    rate = _GEMMS * GEMM_MACS / seconds["gemm"]
    yield Row(name=f"{what}: sgemm", value=2e-9 * rate, unit="GFLOP/s")
    for name, value in seconds.items():
        if name != "gemm":
            yield Row(name=f"{what}: {name}", value=1.0 / value, unit=unit)
    named = {peer: seconds[peer] for peer in peers if "," not in peer}
    if named:
        fastest = min(named, key=lambda peer: named[peer])
        times = named[fastest] / seconds["dovetail"]
        row = f"{what}: times the faster peer"
        if has_aim:
            yield at_least(row, times, "x", 1.5, baseline=fastest, ratio=times)
        else:
            yield Row(name=row, value=times, unit="x", baseline=fastest, ratio=times)
    floor_s = macs / rate
    yield Row(name=f"{what}: the arithmetic alone", value=1.0 / floor_s, unit=unit)
    share = floor_s / seconds["dovetail"]
    row = f"{what}: share of the arithmetic's speed"
    if has_aim:
        yield at_least(row, 100 * share, "%", 45, baseline="sgemm", ratio=share)
    else:
        yield Row(name=row, value=100 * share, unit="%", baseline="sgemm", ratio=share)


def _images(sizes: Sizes, peers: Peers) -> Iterator[Row]:
    batch = with_images(make_batch(sizes.batch), sizes.image)
    rounds, what = max(1, sizes.rounds // 10), "SAC on two cameras"
    contenders = {"dovetail": our_image_sac(batch, hidden=sizes.hidden)}
    contenders |= peers.image_sac(batch, hidden=sizes.hidden)
    seconds = race(contenders, rounds=rounds)
    for name, value in seconds.items():
        yield Row(name=f"{what}: {name}", value=1.0 / value, unit="updates/s")
    if "SB3" in seconds:
        times = seconds["SB3"] / seconds["dovetail"]
        yield at_least(f"{what}: times SB3", times, "x", 1.5, baseline="SB3", ratio=times)
    # features of a frozen encoder, stored with each frame, against encoding every batch again
    encoder = ImageEncoder(num_channels=3, num_features=EncoderConfig().features).requires_grad_(False)
    num_features = FEATURES + len(CAMERAS) * EncoderConfig().features
    update = our_sac(make_batch(sizes.batch, num_features), hidden=sizes.hidden, critics=2)

    def encoding() -> object:
        for name in ("observation", "next"):
            for key in CAMERAS:
                encoder(batch[f"{name}/{key}"])
        return update()

    seconds = race({"cached": update, "encoded again": encoding}, rounds=rounds)
    for name, value in seconds.items():
        yield Row(name=f"{what}, frozen encoder: {name}", value=1.0 / value, unit="updates/s")
    times = seconds["encoded again"] / seconds["cached"]
    yield at_least(f"{what}, frozen encoder: times encoding again", times, "x", 10, baseline="again", ratio=times)
