"""How small the log's codecs make images, how near they stay, and how fast they are, on frames of an expert at work.

Frames are those of the front and the wrist camera in an expert's episodes, in two sizes: up to the smaller one `auto`
keeps images exactly. All on one thread, as beside a control loop.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dovetail.bench.rows import Row, at_least, at_most
from dovetail.config.schema import RunConfig
from dovetail.core.types import Array, Purpose
from dovetail.episodes._frames import Colours, Layout, decode, encode
from dovetail.episodes.images import CODECS, ImageCodec
from dovetail.human.scripted import Demonstrator
from dovetail.robots.sim.film import TRACE_KEYS, Film
from dovetail.robots.sim.robot import SimRobot
from dovetail.runs.assembly.build import build_station
from dovetail.runs.evaluate import order_episode

__all__ = ["bench"]

SIZES = ((128, 128), (640, 480))  # width, height
TASKS = ("peg_insertion", "pick_place")
CAMERAS = ("front", "wrist")


def bench(*, quick: bool) -> Iterator[Row]:
    tasks, repeats = (TASKS[:1], 1) if quick else (TASKS, 3)
    for size in SIZES:
        films = [film for task in tasks for film in _films(task, size)]
        for codec in CODECS:
            yield from _measure(f"{size[0]}x{size[1]} {codec}", films, codec=codec, repeats=repeats)


def _films(task_name: str, size: tuple[int, int]) -> Iterator[Array]:
    """What each camera saw of one demonstration, [T, H, W, 3]."""
    config = RunConfig.model_validate(
        {
            "task": {"type": task_name},
            "robot": {"type": "sim"},
            "policy": {"type": "gaussian_mlp"},
            "algorithm": {"type": "rlpd"},
        }
    )
    station = build_station(config)
    try:
        expert = station.actor(operator=Demonstrator(task=station.task, noise=0.2), policy=None)
        episode = expert.run(order_episode(station, purpose=Purpose.DEMO, index=0, config_hash=""))
    finally:
        station.close()
    assert config.task is not None
    assert episode is not None, "nobody asks a bench to stop"
    robot = config.robot.build(task=config.task.build())
    assert isinstance(robot, SimRobot)
    trace = {key: episode.column(f"extra/{key}") for key in TRACE_KEYS}
    for camera in CAMERAS:
        with Film(robot.world, camera=camera, width=size[0], height=size[1]) as film:
            yield np.stack(list(film.frames(trace)))


def _measure(name: str, films: Sequence[Array], *, codec: str, repeats: int) -> Iterator[Row]:
    """All films together: their bytes, their mean error, and the best of some timings."""
    quality = ImageCodec(name=codec).quality  # type: ignore[arg-type]  # one that may be asked for
    layouts = [Layout(codec=CODECS[codec], shape=film.shape[1:], dtype="uint8") for film in films]
    num_frames, raw_bytes = sum(map(len, films)), sum(film.nbytes for film in films)
    files: list[io.BytesIO] = []

    def write() -> None:
        files[:] = [io.BytesIO() for _ in films]
        for file, film, layout in zip(files, films, layouts, strict=True):
            encode(file, film, layout, crf=quality)

    def read() -> Iterator[Array]:
        for file, film, layout in zip(files, films, layouts, strict=True):
            file.seek(0)
            colours = Colours(layout)
            yield from (colours.pixels(picture) for picture in decode(file, num_frames=len(film)))

    write_s = _seconds(write, repeats)
    read_s = _seconds(lambda: sum(1 for _ in read()), repeats)
    seen = (frame for film in films for frame in film)
    squares = sum(
        float(np.square(np.subtract(a, b, dtype=np.float32)).sum()) for a, b in zip(seen, read(), strict=True)
    )
    size, raw = sum(len(file.getvalue()) for file in files) / num_frames, raw_bytes / num_frames
    yield at_most(f"{name}: size", size, "bytes/frame", 0.1 * raw, baseline="raw", ratio=size / raw)
    if codec == "lossless":
        yield at_most(f"{name}: error", squares, "in all", 0.0)
    else:
        yield at_least(f"{name}: PSNR", float(10 * np.log10(255**2 * raw_bytes / squares)), "dB", 30.0)
    yield at_least(f"{name}: encode", num_frames / write_s, "frames/s", 30.0)  # as fast as a camera
    yield Row(name=f"{name}: decode", value=num_frames / read_s, unit="frames/s")


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """The best of some: what else runs on the machine only ever slows it."""
    best = float("inf")
    for _ in range(repeats):
        start_s = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start_s)
    return best
