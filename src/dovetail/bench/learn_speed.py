"""Updates a second on one CPU thread: against Stable-Baselines3 and TorchRL with the same networks and batches, and
against the arithmetic alone.

Contenders take turns, and what counts is the processor time each one used: other jobs on the machine take turns too.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from dovetail.bench import _learn_peers as peers
from dovetail.bench import learn_speed_gpu
from dovetail.bench._learn_floor import GEMM_MACS, gemm, ppo_macs, soft_macs
from dovetail.bench._learn_ours import (
    ACTIONS,
    CAMERAS,
    FEATURES,
    make_batch,
    make_rollout,
    our_ppo,
    our_sac,
    our_seeing_sac,
    with_images,
)
from dovetail.bench.rows import Row, at_least
from dovetail.learn.memory import keep_freed_memory
from dovetail.policies.encoders import EncoderConfig, ImageEncoder

__all__ = ["Sizes", "bench"]

_PEERS = {"stable_baselines3": "SB3", "torchrl": "TorchRL"}
_IN_A_ROW = 3
_GEMMS = 8  # timed together: one alone is too short


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    hidden: tuple[int, ...] = (256, 256)
    batch: int = 256
    rounds: int = 30
    rollout: tuple[int, int] = (4, 512)
    image: int = 128


def bench(*, quick: bool, sizes: Sizes | None = None) -> Iterator[Row]:
    sizes = sizes or Sizes(rounds=6 if quick else 30)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()  # as our commands do; peers have it too
    try:
        yield from _state(sizes, "SAC", critics=2)
        yield from _state(sizes, "RLPD", critics=10)
        yield from _ppo(sizes)
        yield from _images(sizes)
        yield from learn_speed_gpu.bench(quick=quick)
    finally:
        torch.set_num_threads(before)


def race(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Median seconds of processor time of each, by turns of a few in a row, as a learner does them: the first of a turn,
    which finds the caches full of others' things, is not counted."""
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


def _several_gemms() -> Callable[[], object]:
    product = gemm()
    return lambda: [product() for _ in range(_GEMMS)]


def _state(sizes: Sizes, name: str, *, critics: int) -> Iterator[Row]:
    batch = make_batch(sizes.batch)
    contenders: dict[str, Callable[[], object]] = {
        "dovetail": our_sac(batch, hidden=sizes.hidden, critics=critics),
        "gemm": _several_gemms(),
    }
    if critics > 2:
        contenders["a loop over critics"] = our_sac(batch, hidden=sizes.hidden, critics=critics, looped=True)
    if _has("stable_baselines3"):
        contenders["SB3"] = peers.sb3_sac(batch, hidden=sizes.hidden, critics=critics)
        contenders["SB3, its own nets (ReLU, no LayerNorm)"] = peers.sb3_sac(
            batch, hidden=sizes.hidden, critics=critics, own_nets=True
        )
    if _has("torchrl"):
        contenders["TorchRL"] = peers.torchrl_sac(batch, hidden=sizes.hidden, critics=critics)
    macs = soft_macs(
        features=FEATURES, actions=ACTIONS, hidden=sizes.hidden, batch=sizes.batch, critics=critics, targets=2
    )
    what = f"{name}, {critics} critics, state"
    seconds = race(contenders, rounds=sizes.rounds if critics <= 2 else max(2, sizes.rounds // 3))
    yield from _compared(what, seconds, macs, unit="updates/s", peer_aim=1.5 if critics <= 2 else None)
    if critics > 2:
        times = seconds["a loop over critics"] / seconds["dovetail"]
        yield at_least(f"{what}: times a loop over critics", times, "x", 1.0, baseline="a loop", ratio=times)


def _ppo(sizes: Sizes) -> Iterator[Row]:
    rollout = make_rollout(*sizes.rollout)
    contenders: dict[str, Callable[[], object]] = {
        "dovetail": our_ppo(rollout, hidden=sizes.hidden, batch_size=sizes.batch),
        "gemm": _several_gemms(),
    }
    if _has("stable_baselines3"):
        contenders["SB3"] = peers.sb3_ppo(rollout, hidden=sizes.hidden, batch_size=sizes.batch)
    if _has("torchrl"):
        contenders["TorchRL"] = peers.torchrl_ppo(rollout, hidden=sizes.hidden, batch_size=sizes.batch)
    num_rows = rollout["reward"].numel()
    macs = ppo_macs(features=FEATURES, actions=ACTIONS, hidden=sizes.hidden, rows=num_rows)
    seconds = race(contenders, rounds=max(2, sizes.rounds // 3))
    yield from _compared(f"PPO, {num_rows} steps", seconds, macs, unit="epochs/s", peer_aim=None)


def _compared(
    what: str, seconds: Mapping[str, float], macs: int, *, unit: str, peer_aim: float | None
) -> Iterator[Row]:
    """Everybody's speed, ours over the faster peer's, and what share of the arithmetic's speed ours is."""
    rate = _GEMMS * GEMM_MACS / seconds["gemm"]
    yield Row(name=f"{what}: sgemm", value=2e-9 * rate, unit="GFLOP/s")
    for name, value in seconds.items():
        if name != "gemm":
            yield Row(name=f"{what}: {name}", value=1.0 / value, unit=unit)
    named = {peer: seconds[peer] for peer in _PEERS.values() if peer in seconds}
    if named:
        fastest = min(named, key=lambda peer: named[peer])
        times = named[fastest] / seconds["dovetail"]
        row = f"{what}: times the faster peer"
        if peer_aim is None:
            yield Row(name=row, value=times, unit="x", baseline=fastest, ratio=times)
        else:
            yield at_least(row, times, "x", peer_aim, baseline=fastest, ratio=times)
    else:
        yield Row(name="peers: not installed, say pip install 'dovetail[bench]'", value=float("nan"), unit=unit)
    floor_s = macs / rate
    yield Row(name=f"{what}: the arithmetic alone", value=1.0 / floor_s, unit=unit)
    share = floor_s / seconds["dovetail"]
    row = f"{what}: share of the arithmetic's speed"
    if peer_aim is None:
        yield Row(name=row, value=100 * share, unit="%", baseline="sgemm", ratio=share)
    else:
        yield at_least(row, 100 * share, "%", 45, baseline="sgemm", ratio=share)


def _images(sizes: Sizes) -> Iterator[Row]:
    batch = with_images(make_batch(sizes.batch), sizes.image)
    rounds, what = max(1, sizes.rounds // 10), "SAC on two cameras"
    contenders: dict[str, Callable[[], object]] = {"dovetail": our_seeing_sac(batch, hidden=sizes.hidden)}
    if _has("stable_baselines3"):
        contenders["SB3"] = peers.sb3_seeing_sac(batch, hidden=sizes.hidden, cameras=CAMERAS)
    seconds = race(contenders, rounds=rounds)
    for name, value in seconds.items():
        yield Row(name=f"{what}: {name}", value=1.0 / value, unit="updates/s")
    if "SB3" in seconds:
        times = seconds["SB3"] / seconds["dovetail"]
        yield at_least(f"{what}: times SB3", times, "x", 1.5, baseline="SB3", ratio=times)
    # a frozen encoder's features, kept with each frame, against encoding both sides of every batch again
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


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
