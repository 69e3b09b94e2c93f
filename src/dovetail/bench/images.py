"""Size, quality and speed of the codecs for recorded images.

The frames are those of the front and the wrist camera in an expert's episodes, in two sizes; `auto` is lossless up to the
smaller one. Everything runs on one thread, as it does beside a control loop.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dovetail.bench.rows import Row, at_least, at_most
from dovetail.config.schema import RunConfig
from dovetail.core.types import Array, Purpose
from dovetail.episodes._frames import ColorConverter, Layout, decode, encode
from dovetail.episodes.images import CODECS, ImageCodec
from dovetail.human.scripted import Demonstrator
from dovetail.robots.sim.episode_renderer import TRACE_KEYS, EpisodeRenderer
from dovetail.robots.sim.robot import SimRobot
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.roles.robot import order_episode

__all__ = ["bench"]

SIZES = ((128, 128), (640, 480))  # width, height
TASKS = ("peg_insertion", "pick_place")
CAMERAS = ("front", "wrist")


def bench(*, quick: bool) -> Iterator[Row]:
    tasks, repeats = (TASKS[:1], 1) if quick else (TASKS, 3)
    for size in SIZES:
        videos = [video for task in tasks for video in _videos(task, size)]
        for codec in CODECS:
            yield from _measure(f"{size[0]}x{size[1]} {codec}", videos, codec=codec, repeats=repeats)


def _videos(task_name: str, size: tuple[int, int]) -> Iterator[Array]:
    """The frames of each camera in one demonstration, [T, H, W, 3]."""
    config = RunConfig.model_validate(
        {
            "task": {"type": task_name},
            "robot": {"type": "sim"},
            "policy": {"type": "gaussian_mlp"},
            "algorithm": {"type": "rlpd"},
        }
    )
    assembly = build_assembly(config)
    try:
        expert = assembly.actor(operator=Demonstrator(task=assembly.task, noise=0.2), policy=None)
        episode = expert.run(order_episode(assembly, purpose=Purpose.DEMO, index=0, config_hash=""))
    finally:
        assembly.close()
    assert config.task is not None
    assert episode is not None, "an episode without a stop request is complete"
    robot = config.robot.build(task=config.task.build())
    assert isinstance(robot, SimRobot)
    trace = {key: episode.column(f"extra/{key}") for key in TRACE_KEYS}
    for camera in CAMERAS:
        with EpisodeRenderer(robot.world, camera=camera, width=size[0], height=size[1]) as renderer:
            yield np.stack(list(renderer.frames(trace)))


def _measure(name: str, videos: Sequence[Array], *, codec: str, repeats: int) -> Iterator[Row]:
    """All videos together: bytes, mean error, and the best of several timings."""
    quality = ImageCodec(name=codec).quality  # type: ignore[arg-type]  # a key of CODECS
    layouts = [Layout(codec=CODECS[codec], shape=video.shape[1:], dtype="uint8") for video in videos]
    num_frames, raw_bytes = sum(map(len, videos)), sum(video.nbytes for video in videos)
    files: list[io.BytesIO] = []

    def write() -> None:
        files[:] = [io.BytesIO() for _ in videos]
        for file, video, layout in zip(files, videos, layouts, strict=True):
            encode(file, video, layout, crf=quality)

    def read() -> Iterator[Array]:
        for file, video, layout in zip(files, videos, layouts, strict=True):
            file.seek(0)
            converter = ColorConverter(layout)
            yield from (converter.pixels(image) for image in decode(file, num_frames=len(video)))

    write_s = _seconds(write, repeats)
    read_s = _seconds(lambda: sum(1 for _ in read()), repeats)
    recorded = (frame for video in videos for frame in video)
    squares = sum(
        float(np.square(np.subtract(a, b, dtype=np.float32)).sum()) for a, b in zip(recorded, read(), strict=True)
    )
    size, raw = sum(len(file.getvalue()) for file in files) / num_frames, raw_bytes / num_frames
    yield at_most(f"{name}: size", size, "bytes/frame", 0.1 * raw, baseline="raw", ratio=size / raw)
    if codec == "lossless":
        yield at_most(f"{name}: error", squares, "in all", 0.0)
    else:
        yield at_least(f"{name}: PSNR", float(10 * np.log10(255**2 * raw_bytes / squares)), "dB", 30.0)
    yield at_least(f"{name}: encode", num_frames / write_s, "frames/s", 30.0)  # a camera's frame rate
    yield Row(name=f"{name}: decode", value=num_frames / read_s, unit="frames/s")


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """The best of several: other load on the machine only makes it slower."""
    best = float("inf")
    for _ in range(repeats):
        start_s = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start_s)
    return best
