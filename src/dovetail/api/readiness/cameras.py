"""Measures the cameras of a config: real rate, age of new frames, size. All at the same time, because they share a bus."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from dovetail.api.readiness.finding import Finding
from dovetail.config.schema import PluginSection, RunConfig
from dovetail.core.abilities import ConfiguresFrameRate
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Camera
from dovetail.core.errors import DovetailError
from dovetail.runs.assembly.arms import arm_configs

__all__ = ["MEASURE_S", "camera_findings", "camera_names"]

MEASURE_S = 2.0
_POLL_S = 0.001
_MIN_RATE, _MAX_AGE_S = 0.8, 0.2  # share of the configured rate; age of a frame that has just arrived
_SLOW = "More light shortens the exposure; try format: mjpeg, a smaller capture_size, or another USB port"
_LATE = "Use the device's own format at a smaller size, or a stream without buffering"


def camera_names(config: RunConfig) -> list[str]:
    """The cameras of all arms, each device once."""
    return list(_cameras(config))


def camera_findings(config: RunConfig, *, measure_s: float = MEASURE_S) -> Iterator[Finding]:
    """One line per camera. Opens all of them and closes them again."""
    sections = _cameras(config)
    if not sections:
        return
    needed = not config.cluster.machines  # else a camera may be at another machine
    with ThreadPoolExecutor(len(sections), thread_name_prefix="measure camera") as pool:
        measured = pool.map(lambda name: _measure(name, sections[name], measure_s, needed=needed), sections)
        yield from measured


def _cameras(config: RunConfig) -> Mapping[str, PluginSection]:
    named: dict[str, PluginSection] = {}
    for arm, own in arm_configs(config).items():
        for name, section in own.cameras.items():
            if section not in named.values():
                named[name if name not in named else f"{arm}/{name}"] = section
    return named


@dataclass(slots=True)
class _Measured:
    times_ns: list[int] = field(default_factory=list)  # of arrival
    ages_s: list[float] = field(default_factory=list)

    @property
    def rate_hz(self) -> float:
        duration_ns = self.times_ns[-1] - self.times_ns[0] if len(self.times_ns) > 1 else 0
        return (len(self.times_ns) - 1) * NS_PER_S / duration_ns if duration_ns > 0 else 0.0

    @property
    def longest_gap_s(self) -> float:
        return max((b - a for a, b in itertools.pairwise(self.times_ns)), default=0) / NS_PER_S


def _measure(name: str, section: PluginSection, measure_s: float, *, needed: bool) -> Finding:
    label = f"camera {name}"
    camera: Camera | None = None
    try:
        camera = section.build(name=name.rpartition("/")[2])
        camera.start()
        measured = _watch(camera, measure_s)
    except DovetailError as error:
        return Finding(name=label, ok=False, detail=str(error), needed=needed)
    finally:
        if camera is not None:
            camera.close()
    asked_hz = section.config.fps if isinstance(section.config, ConfiguresFrameRate) else None
    return _finding(label, camera, measured, asked_hz=asked_hz)


def _watch(camera: Camera, measure_s: float) -> _Measured:
    """Take each frame, as the control loop does."""
    measured = _Measured()
    buffers = {key: np.empty(spec.shape, spec.dtype) for key, spec in camera.spec.items()}
    shown_ns = camera.read(buffers)
    end_s = time.monotonic() + measure_s
    while time.monotonic() < end_s:
        time.sleep(_POLL_S)
        if camera.newest_ns() == shown_ns:
            continue
        shown_ns = camera.read(buffers)
        measured.times_ns.append(time.monotonic_ns())
        measured.ages_s.append((time.monotonic_ns() - shown_ns) / NS_PER_S)
    return measured


def _finding(label: str, camera: Camera, measured: _Measured, *, asked_hz: float | None) -> Finding:
    images = ", ".join(
        f"{spec.shape[1]}x{spec.shape[0]}{' depth' if spec.dtype == 'uint16' else ''}"
        for spec in camera.spec.values()
    )
    if len(measured.times_ns) < 2:
        return Finding(name=label, ok=False, detail=f"{images}, but no second frame", remedy=_SLOW)
    age_s = statistics.median(measured.ages_s)
    asked = f" (set to {asked_hz:g})" if asked_hz is not None else ""
    detail = (
        f"{images} at {measured.rate_hz:.1f} fps{asked}, frames are {1e3 * age_s:.0f} ms old when they arrive, longest gap "
        f"{1e3 * measured.longest_gap_s:.0f} ms"
    )
    is_slow = asked_hz is not None and measured.rate_hz < _MIN_RATE * asked_hz
    is_late = abs(age_s) > _MAX_AGE_S
    remedy = _SLOW if is_slow else _LATE
    return Finding(name=label, ok=not (is_slow or is_late), detail=detail, remedy=remedy, needed=False)
