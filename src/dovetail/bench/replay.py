"""How fast batches of images come out of the replay: against TorchRL, a plain numpy buffer, and memcpy; while a writer
appends; and from a cold disk."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from dovetail.bench._replay_data import BATCH, CAMERAS, KEYS, ROBOT, Source, buffers, fill
from dovetail.bench.rows import Row, at_least, at_most
from dovetail.core.types import Array, View
from dovetail.replay.reader import ReplayView
from dovetail.replay.writer import ReplayStore

__all__ = ["bench"]

_GIGABYTE = 10**9
_ROUNDS = 50
_WARM_UP = 3  # times as many
_NUM_FRAMES = 4_000  # that are written in any case
_SECOND_CORE = 2  # threads, of ours and of torch's, in the comparison that every user gets


def bench(*, quick: bool) -> Iterator[Row]:
    num_steps = 4_000 if quick else 20_000
    folder = Path(tempfile.mkdtemp(prefix="dovetail-bench-"))
    source = Source(num_steps)
    try:
        yield from _sampling(folder, source, rounds=10 if quick else _ROUNDS)
        yield from _writing(folder, seconds=3.0 if quick else 10.0)
        yield from _cold(folder, source, rounds=5 if quick else 20)
        yield from _reopening(folder, 40_000 if quick else 105_000)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- warm


def _sampling(folder: Path, source: Source, *, rounds: int) -> Iterator[Row]:
    store = ReplayStore(folder / "ours", keys=KEYS, capacity_bytes=4 * _GIGABYTE)
    fill(store, source)
    store.close()
    into, rng = buffers(), np.random.default_rng(0)
    ours = {n: ReplayView(folder / "ours", num_threads=n) for n in (1, _SECOND_CORE)}
    contenders: dict[str, Callable[[], object]] = {
        "dovetail, 1 thread": lambda: ours[1].sample(into, view=View(), rng=rng),
        "dovetail": lambda: ours[_SECOND_CORE].sample(into, view=View(), rng=rng),
        "numpy in memory": _numpy_buffer(source, rng),
        "memcpy": _memcpy(folder / "ours", into, rng),
    }
    if importlib.util.find_spec("torchrl"):
        peer = _torchrl(folder / "torchrl", source)
        contenders["TorchRL, 1 thread"] = lambda: _with_threads(1, peer)
        contenders["TorchRL"] = lambda: _with_threads(_SECOND_CORE, peer)
    ms = _race(contenders, rounds=rounds)
    yield Row(name="memcpy of the same bytes", value=ms["memcpy"], unit="ms")
    for name in ("numpy in memory", "dovetail, 1 thread", "dovetail"):
        yield Row(name=name, value=ms[name], unit="ms/batch", baseline="memcpy", ratio=ms["memcpy"] / ms[name])
    for name, what in (
        ("dovetail, 1 thread", "thread for thread"),
        ("dovetail", f"{_SECOND_CORE} threads, its 1"),
    ):
        share = ms["memcpy"] / ms[name]
        yield at_least(f"share of memcpy's speed, {what}", 100 * share, "%", 50, baseline="memcpy", ratio=share)
    if "TorchRL" not in ms:
        yield Row(
            name="TorchRL: not installed, say pip install 'dovetail[bench]'", value=float("nan"), unit="ms/batch"
        )
        return
    for name in ("TorchRL, 1 thread", "TorchRL"):
        yield Row(name=name, value=ms[name], unit="ms/batch", baseline="memcpy", ratio=ms["memcpy"] / ms[name])
    for threads in ("", ", 1 thread"):
        times = ms[f"TorchRL{threads}"] / ms[f"dovetail{threads}"]
        yield at_least(f"times as fast as TorchRL{threads}", times, "x", 4, baseline="TorchRL", ratio=times)


def _race(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Median ms of each, all by turns, so that a busy machine is busy for all of them."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():  # until nearly every page of every store has been mapped, as in a long run
        for _ in range(_WARM_UP * rounds):
            run()
    for _ in range(rounds):
        for name, run in contenders.items():
            time.sleep(
                0.02
            )  # a peer's threads spin for a while after they are done, on the core that is wanted now
            start_s = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start_s))
    return {name: statistics.median(values) for name, values in times.items()}


def _numpy_buffer(source: Source, rng: np.random.Generator) -> Callable[[], object]:
    """Arrays [N, ...] in memory, one row a step, and the next observation at the next index."""
    images = {key: source.all(key) for key in CAMERAS}
    states = source.states

    def sample() -> object:
        rows = rng.integers(len(states) - 1, size=BATCH)
        return [(images[key][rows], images[key][rows + 1]) for key in CAMERAS], states[rows], states[rows + 1]

    return sample


def _memcpy(folder: Path, into: Mapping[str, Array], rng: np.random.Generator) -> Callable[[], object]:
    """As many bytes of images as a batch has, from the same files into the same arrays, but in one piece each."""
    shape = (_NUM_FRAMES, *ROBOT.observation[CAMERAS[0]].shape)
    maps = {
        key: np.asarray(np.memmap(folder / f"frames-{key}.bin", np.uint8, "r", shape=shape)) for key in CAMERAS
    }

    def copy() -> None:
        for key in CAMERAS:
            for side in ("observation", "next"):
                first = int(rng.integers(_NUM_FRAMES - BATCH))
                np.copyto(into[f"{side}/{key}"], maps[key][first : first + BATCH])

    return copy


def _torchrl(folder: Path, source: Source) -> Callable[[], object]:
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

    num_steps = len(source.states) - 1
    storage = LazyMemmapStorage(num_steps, scratch_dir=folder)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
    for first in range(0, num_steps, 1000):
        rows = np.arange(first, min(first + 1000, num_steps))
        sides = {
            side: {key: torch.from_numpy(source.images(key, rows + ahead)) for key in CAMERAS}
            | {"state": torch.from_numpy(source.states[rows + ahead])}
            for side, ahead in (("observation", 0), ("next", 1))
        }
        flat = {
            "action": torch.zeros(len(rows), 7),
            "reward": torch.zeros(len(rows)),
            "done": torch.zeros(len(rows)),
        }
        buffer.extend(TensorDict({**sides, **flat}, batch_size=[len(rows)]))
    sample: Callable[[], object] = buffer.sample
    return sample


def _with_threads(num_threads: int, run: Callable[[], object]) -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        return run()
    finally:
        torch.set_num_threads(before)


# ---- with a writer


def _writing(folder: Path, *, seconds: float) -> Iterator[Row]:
    """A writer in a process of its own, paced as four robots would be: what an add takes, alone and beside a reader."""
    alone = _append(folder / "alone", seconds, lambda path: None)
    batches: list[float] = []
    into, rng = buffers(), np.random.default_rng(0)
    views: dict[Path, ReplayView] = {}

    def sample(path: Path) -> None:
        view = views.setdefault(path, ReplayView(path, num_threads=1))
        if view.size(View()):
            start_s = time.perf_counter()
            view.sample(into, view=View(), rng=rng)
            batches.append(1e3 * (time.perf_counter() - start_s))
        else:
            time.sleep(0.01)

    beside = _append(folder / "beside", seconds, sample)
    yield Row(name="an add of 20 steps, nobody reading", value=alone["ms"], unit="ms")
    ratio = beside["ms"] / alone["ms"]
    yield at_most("an add beside a reader, relative", ratio, "x", 1.1, baseline="nobody reading", ratio=ratio)
    yield Row(name="a batch beside a writer", value=statistics.median(batches[2:]), unit="ms/batch")


def _append(folder: Path, seconds: float, meanwhile: Callable[[Path], None]) -> dict[str, float]:
    command = [sys.executable, "-m", "dovetail.bench._replay_data", str(folder), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            meanwhile(folder)
            if not (folder / "layout.json").exists():
                time.sleep(0.01)
        assert process.stdout is not None
        found: dict[str, float] = json.loads(process.stdout.read())
    return found


# ---- cold


def _cold(folder: Path, source: Source, *, rounds: int) -> Iterator[Row]:
    """From the disk itself: each batch after the kernel has forgotten the files, against reading the same blocks."""
    into, path = buffers(), folder / "ours"
    files = {key: os.open(path / f"frames-{key}.bin", os.O_RDONLY) for key in CAMERAS}
    size = int(np.prod(ROBOT.observation[CAMERAS[0]].shape))
    ours, raw = [], []
    try:
        for number in range(rounds):
            view = ReplayView(path, num_threads=_SECOND_CORE)  # a new one: what is mapped is not forgotten
            view.size(View())
            _forget(path)
            start_s = time.perf_counter()
            view.sample(into, view=View(), rng=np.random.default_rng(number))
            ours.append(1e3 * (time.perf_counter() - start_s))
            del view
            frames = [
                source.frame_of(state) for side in ("observation", "next") for state in into[f"{side}/state"]
            ]
            _forget(path)
            start_s = time.perf_counter()
            for descriptor in files.values():
                for frame in frames:
                    os.pread(descriptor, size, frame * size)
            raw.append(1e3 * (time.perf_counter() - start_s))
    finally:
        for descriptor in files.values():
            os.close(descriptor)
    slow, plain = statistics.median(ours), statistics.median(raw)
    yield Row(name="cold: raw random reads of its blocks", value=plain, unit="ms/batch")
    yield Row(name="cold: dovetail", value=slow, unit="ms/batch", baseline="raw random reads", ratio=plain / slow)


def _forget(folder: Path) -> None:
    for path in folder.glob("*.bin"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


# ---- size


def _reopening(folder: Path, num_steps: int) -> Iterator[Row]:
    shutil.rmtree(folder / "torchrl", ignore_errors=True)
    path = folder / "large"
    store = ReplayStore(path, keys=KEYS, capacity_bytes=20 * _GIGABYTE)
    fill(store, Source(num_steps))
    store.close()
    num_bytes = sum(file.stat().st_blocks * 512 for file in path.iterdir())
    _forget(path)
    start_s = time.perf_counter()
    store = ReplayStore(path, keys=KEYS, capacity_bytes=20 * _GIGABYTE)
    store.open()
    ReplayView(path).size(View())
    elapsed_s = time.perf_counter() - start_s
    store.close()
    yield at_most(f"reopening {num_bytes / 1e9:.1f} GB, cold", elapsed_s, "s", 1.0)
