"""Speed of sampling batches of images from the replay: against numpy arrays and memcpy, beside a writer, and from a cold
disk. `python -m benchmarks replay_peers` adds TorchRL."""

from __future__ import annotations

import json
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

from dovetail.bench._replay_data import BATCH, CAMERAS, KEYS, ROBOT, Source, buffers, fill
from dovetail.bench.rows import Row, at_least, at_most
from dovetail.core.types import Array, View
from dovetail.replay.reader import MappedReplayReader
from dovetail.replay.writer import MappedReplayWriter

__all__ = ["THREADS", "MakePeer", "bench"]

_GIGABYTE = 10**9
_ROUNDS = 50
_WARM_UP_ROUNDS = 3  # times as many as are measured
_NUM_FRAMES = 4_000  # at least this many are written
THREADS = {", 1 thread": 1, "": 2}  # of each contender; two is the default
MakePeer = Callable[[Path, Source], Mapping[str, Callable[[], object]]]


def bench(*, quick: bool, make_peer: MakePeer | None = None) -> Iterator[Row]:
    """`make_peer(folder, source)`: another buffer, filled from `source`; samplers named as in `THREADS`."""
    num_steps = 4_000 if quick else 20_000
    folder = Path(tempfile.mkdtemp(prefix="dovetail-bench-"))
    source = Source(num_steps)
    try:
        peer = make_peer(folder / "peer", source) if make_peer is not None else {}
        yield from _sampling(folder, source, peer, rounds=10 if quick else _ROUNDS)
        shutil.rmtree(folder / "peer", ignore_errors=True)
        yield from _writing(folder, seconds=3.0 if quick else 10.0)
        yield from _cold(folder, source, rounds=5 if quick else 20)
        yield from _reopening(folder, 40_000 if quick else 105_000)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- warm


def _sampling(
    folder: Path, source: Source, peer: Mapping[str, Callable[[], object]], *, rounds: int
) -> Iterator[Row]:
    store = MappedReplayWriter(folder / "ours", keys=KEYS, capacity_bytes=4 * _GIGABYTE)
    fill(store, source)
    store.close()
    into, rng = buffers(), np.random.default_rng(0)
    ours = {n: MappedReplayReader(folder / "ours", num_threads=n) for n in THREADS.values()}
    contenders: dict[str, Callable[[], object]] = {
        "dovetail, 1 thread": lambda: ours[1].sample(into, view=View(), rng=rng),
        "dovetail": lambda: ours[2].sample(into, view=View(), rng=rng),
        "numpy in memory": _numpy_buffer(source, rng),
        "memcpy": _memcpy(folder / "ours", into, rng),
        **peer,
    }
    ms = _race(contenders, rounds=rounds)
    yield Row(name="memcpy of the same bytes", value=ms["memcpy"], unit="ms")
    for name in ("numpy in memory", "dovetail, 1 thread", "dovetail"):
        yield Row(name=name, value=ms[name], unit="ms/batch", baseline="memcpy", ratio=ms["memcpy"] / ms[name])
    for name, what in (
        ("dovetail, 1 thread", "thread for thread"),
        ("dovetail", "2 threads, its 1"),
    ):
        share = ms["memcpy"] / ms[name]
        yield at_least(f"share of memcpy's speed, {what}", 100 * share, "%", 50, baseline="memcpy", ratio=share)
    for name in peer:
        yield Row(name=name, value=ms[name], unit="ms/batch", baseline="memcpy", ratio=ms["memcpy"] / ms[name])
    for name in peer:
        base, _, threads = name.partition(",")
        times = ms[name] / ms["dovetail, 1 thread" if threads else "dovetail"]
        yield at_least(f"times as fast as {name}", times, "x", 4, baseline=base, ratio=times)


def _race(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Median milliseconds of each. Contenders take turns, so that other load on the machine affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():  # until nearly every page of every store is mapped, as in a long run
        for _ in range(_WARM_UP_ROUNDS * rounds):
            run()
    for _ in range(rounds):
        for name, run in contenders.items():
            time.sleep(0.02)  # threads of the previous contender may still spin
            start_s = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start_s))
    return {name: statistics.median(values) for name, values in times.items()}


def _numpy_buffer(source: Source, rng: np.random.Generator) -> Callable[[], object]:
    """Arrays [N, ...] in memory with one row per step; the next observation is the next row."""
    images = {key: source.all(key) for key in CAMERAS}
    states = source.states

    def sample() -> object:
        rows = rng.integers(len(states) - 1, size=BATCH)
        return [(images[key][rows], images[key][rows + 1]) for key in CAMERAS], states[rows], states[rows + 1]

    return sample


def _memcpy(folder: Path, into: Mapping[str, Array], rng: np.random.Generator) -> Callable[[], object]:
    """Copy as many bytes as a batch has, from the same files into the same arrays, but contiguous ones."""
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


# ---- with a writer


def _writing(folder: Path, *, seconds: float) -> Iterator[Row]:
    """Duration of an append in a writer process, paced like four robots: alone and beside a reader."""
    alone = _append(folder / "alone", seconds, lambda path: None)
    batches: list[float] = []
    into, rng = buffers(), np.random.default_rng(0)
    views: dict[Path, MappedReplayReader] = {}

    def sample(path: Path) -> None:
        view = views.setdefault(path, MappedReplayReader(path, num_threads=1))
        if view.size(View()):
            start_s = time.perf_counter()
            view.sample(into, view=View(), rng=rng)
            batches.append(1e3 * (time.perf_counter() - start_s))
        else:
            time.sleep(0.01)

    beside = _append(folder / "beside", seconds, sample)
    yield Row(name="an append of 20 steps, without a reader", value=alone["ms"], unit="ms")
    ratio = beside["ms"] / alone["ms"]
    yield at_most("an append beside a reader, relative", ratio, "x", 1.1, baseline="without a reader", ratio=ratio)
    yield Row(name="a batch beside a writer", value=statistics.median(batches[2:]), unit="ms/batch")


def _append(folder: Path, seconds: float, while_running: Callable[[Path], None]) -> dict[str, float]:
    command = [sys.executable, "-P", "-m", "dovetail.bench._replay_data", str(folder), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            while_running(folder)
            if not (folder / "layout.json").exists():
                time.sleep(0.01)
        assert process.stdout is not None
        found: dict[str, float] = json.loads(process.stdout.read())
    return found


# ---- cold


def _cold(folder: Path, source: Source, *, rounds: int) -> Iterator[Row]:
    """Batches with an empty page cache, against reading the same blocks with `pread`."""
    into, path = buffers(), folder / "ours"
    files = {key: os.open(path / f"frames-{key}.bin", os.O_RDONLY) for key in CAMERAS}
    size = int(np.prod(ROBOT.observation[CAMERAS[0]].shape))
    ours, raw = [], []
    try:
        for number in range(rounds):
            view = MappedReplayReader(path, num_threads=2)  # a new one, because mapped pages stay in the cache
            view.size(View())
            _drop_page_cache(path)
            start_s = time.perf_counter()
            view.sample(into, view=View(), rng=np.random.default_rng(number))
            ours.append(1e3 * (time.perf_counter() - start_s))
            del view
            frames = [
                source.frame_of(state) for side in ("observation", "next") for state in into[f"{side}/state"]
            ]
            _drop_page_cache(path)
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


def _drop_page_cache(folder: Path) -> None:
    for path in folder.glob("*.bin"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


# ---- size


def _reopening(folder: Path, num_steps: int) -> Iterator[Row]:
    path = folder / "large"
    store = MappedReplayWriter(path, keys=KEYS, capacity_bytes=20 * _GIGABYTE)
    fill(store, Source(num_steps))
    store.close()
    num_bytes = sum(file.stat().st_blocks * 512 for file in path.iterdir())
    _drop_page_cache(path)
    start_s = time.perf_counter()
    store = MappedReplayWriter(path, keys=KEYS, capacity_bytes=20 * _GIGABYTE)
    store.open()
    MappedReplayReader(path).size(View())
    elapsed_s = time.perf_counter() - start_s
    store.close()
    yield at_most(f"reopening {num_bytes / 1e9:.1f} GB, cold", elapsed_s, "s", 1.0)
