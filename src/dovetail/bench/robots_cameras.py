"""Three emulated cameras of 640x480 at 30 fps next to an arm at 50 Hz: what the control process costs."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from dovetail.bench.rows import Row, at_most
from dovetail.config.load import load
from dovetail.core.types import Episode, Purpose
from dovetail.emulators.emulator import EmulatorProcess
from dovetail.robot_host.host import RobotHost
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.roles.robot import order_episode

__all__ = ["bench"]

_NAMES = ("front", "left", "right")
_WIDTH, _HEIGHT, _FPS, _CONTROL_HZ = 640, 480, 30, 50
_SETTLE_S = 2.0  # the first seconds load modules and open cameras
_CONFIG = """
task: {{type: "dovetail.testing.fakes:FakeTask", max_steps: {num_ticks}, tolerance: 0.0}}
robot: {{type: "dovetail.testing.live:LiveArm", control_hz: {control_hz}}}
cameras: {{{cameras}}}
actor: {{type: naive, layout: processes}}
policy: {{type: "dovetail.testing.fake_learning:FakePolicy", horizon: 16}}
algorithm: {{type: "dovetail.testing.fake_learning:FakeAlgorithm"}}
"""


def bench(*, quick: bool) -> Iterator[Row]:
    seconds, turns = (5.0, 1) if quick else (8.0, 5)  # 1 s of an episode holds 140 MB of frames
    with contextlib.ExitStack() as stack:
        settings = ("port=0", f"size=[{_WIDTH},{_HEIGHT}]", f"fps={_FPS}")
        urls = [stack.enter_context(EmulatorProcess("camera", *settings)).lines[0].split()[0] for _ in _NAMES]
        without, with_three = [], []
        for _ in range(turns):  # in turns, because the machine's load changes
            without.append(_episode([], seconds=seconds))
            with_three.append(_episode(urls, seconds=seconds))
    yield from _rows(without, with_three)


def _rows(without: Sequence[dict[str, float]], with_three: Sequence[dict[str, float]]) -> Iterator[Row]:
    base, ours = (median(turn["cores"] for turn in turns) for turns in (without, with_three))
    yield Row(name=f"control process at {_CONTROL_HZ} Hz without cameras: CPU", value=base, unit="cores")
    yield at_most(
        f"control process at {_CONTROL_HZ} Hz with three cameras of {_WIDTH}x{_HEIGHT} at {_FPS} fps: CPU",
        ours,
        "cores",
        0.5,
        baseline="without cameras",
        ratio=ours / max(base, 1e-6),
    )
    frames = median(turn["frames_per_s"] for turn in with_three)
    yield Row(name="distinct frames in shared memory, all cameras", value=frames, unit="1/s")
    yield Row(name="CPU for each of them", value=1e3 * (ours - base) / max(frames, 1e-6), unit="ms")
    ticks, missed = (sum(turn[name] for turn in with_three) for name in ("ticks", "missed"))
    yield at_most(
        f"ticks later than a period with three cameras, of {ticks:.0f}", 100 * missed / max(ticks, 1.0), "%", 0.1
    )


def _episode(urls: Sequence[str], *, seconds: float) -> dict[str, float]:
    """One episode with all its processes: telemetry, CPU of the control process, frames that it received."""
    size = f"size: [{_WIDTH}, {_HEIGHT}], fps: {_FPS}"
    cameras = [f'{name}: {{type: video, url: "{url}", {size}}}' for name, url in zip(_NAMES, urls, strict=False)]
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        path = Path(folder) / "config.yaml"
        num_ticks = round((seconds + _SETTLE_S) * _CONTROL_HZ)
        path.write_text(_CONFIG.format(control_hz=_CONTROL_HZ, num_ticks=num_ticks, cameras=", ".join(cameras)))
        assembly = build_assembly(load([path]))
        try:
            actor = assembly.actor_for(Purpose.ONLINE)
            assert isinstance(actor, RobotHost)
            actor.start()
            meter = _CpuMeter(actor.processes["control"], seconds=seconds)
            meter.start()
            episode = actor.run(order_episode(assembly, purpose=Purpose.ONLINE, index=0, config_hash="bench"))
            meter.join()
            if episode is None or actor.fault is not None:
                raise RuntimeError(f"the episode did not run: {actor.fault}")
            frames = sum(_num_distinct(episode, name) for name in _NAMES[: len(urls)])
            duration_s = len(episode) / _CONTROL_HZ
            return {**actor.telemetry(), "cores": meter.cores, "frames_per_s": frames / duration_s}
        finally:
            assembly.close()


def _num_distinct(episode: Episode, camera: str) -> int:
    """Frames that differ from the one before."""
    small = np.concatenate(
        [segment.columns[f"observation/{camera}"][:, ::16, ::16] for segment in episode.segments]
    )
    return int((small[1:] != small[:-1]).any(axis=(1, 2, 3)).sum())


class _CpuMeter(threading.Thread):
    """Measures the CPU time of a process for some seconds, after it has settled."""

    def __init__(self, pid: int, *, seconds: float) -> None:
        super().__init__(name="cpu meter")
        self._pid, self._seconds, self.cores = pid, seconds, float("nan")

    def run(self) -> None:
        time.sleep(_SETTLE_S)
        began_s, before_s = time.monotonic(), _cpu_s(self._pid)
        time.sleep(self._seconds - _SETTLE_S)
        self.cores = (_cpu_s(self._pid) - before_s) / (time.monotonic() - began_s)


def _cpu_s(pid: int) -> float:
    """CPU time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
