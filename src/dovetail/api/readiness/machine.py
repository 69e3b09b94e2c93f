"""Checks of the machine: Python, packages, folder, disk, clock and real-time rights."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from dovetail.api.readiness.finding import Finding
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import ConfiguresLayout
from dovetail.processes.priority import CONTROL_PRIORITY, low_priority

__all__ = ["machine_findings"]

MIN_FREE_GB = 2.0
_NUM_SLEEPS, _SLEEP_S, _MAX_LATE_S = 20, 0.001, 0.005


def machine_findings(config: RunConfig | None, runs_dir: Path) -> Iterator[Finding]:
    yield _python()
    yield from _packages()
    yield _runs_folder(runs_dir)
    yield _disk(runs_dir)
    yield _clock()
    yield _real_time_rights(config)


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding(name="python", ok=ok, detail=platform.python_version(), remedy="Install Python 3.11 or newer")


def _packages() -> Iterator[Finding]:
    """Compare the installed packages with the required versions, without importing them."""
    fine = []
    for text in importlib.metadata.requires("dovetail") or []:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name=wanted.name, ok=False, detail="is not installed", remedy=f"pip install '{wanted}'")
            continue
        if wanted.specifier.contains(version, prereleases=True):
            fine.append(f"{wanted.name} {version}")
        else:
            detail = f"{version}, but we need {wanted.specifier}"
            yield Finding(name=wanted.name, ok=False, detail=detail, remedy=f"pip install '{wanted}'")
    yield Finding(name="packages", ok=True, detail=", ".join(fine))


def _runs_folder(runs_dir: Path) -> Finding:
    there = _nearest(runs_dir)
    ok = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    detail = f"{runs_dir} " + ("can be written" if ok else f"cannot be written ({there})")
    return Finding(name="runs folder", ok=ok, detail=detail, remedy="Choose another with --runs-dir")


def _disk(runs_dir: Path) -> Finding:
    free_gb = shutil.disk_usage(_nearest(runs_dir)).free / 1e9
    return Finding(
        name="disk",
        ok=free_gb >= MIN_FREE_GB,
        detail=f"{free_gb:.1f} GB free",
        remedy=f"Free at least {MIN_FREE_GB:g} GB, or use --runs-dir",
    )


def _nearest(path: Path) -> Path:
    """The path, or the first existing folder above it."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _clock() -> Finding:
    """How late this machine wakes up. A control loop cannot be more punctual."""
    late_s = []
    for _ in range(_NUM_SLEEPS):
        began_s = time.monotonic()
        time.sleep(_SLEEP_S)
        late_s.append(time.monotonic() - began_s - _SLEEP_S)
    resolution_s, typical_s = time.get_clock_info("monotonic").resolution, statistics.median(late_s)
    return Finding(
        name="clock",
        ok=resolution_s <= 1e-6 and typical_s <= _MAX_LATE_S,
        detail=f"resolution {resolution_s * 1e9:.0f} ns, wakes up {typical_s * 1e3:.2f} ms late (median)",
        remedy="Stop other programs, or turn off power saving of the processor",
        needed=False,
    )


def _real_time_rights(config: RunConfig | None) -> Finding:
    actor = config.actor.config if config is not None else None
    matters = isinstance(actor, ConfiguresLayout) and actor.layout == "processes"
    low = low_priority()
    ok = low is None and _may_take_priority()
    detail = (
        "the control loop may take real-time priority" if ok else "the control loop gets no real-time priority"
    )
    remedy = "Add `@USER - rtprio 50` to /etc/security/limits.conf and log in again (docs/realtime.md)"
    if low is not None:
        detail += f", because this process was started with priority '{low}'"
        remedy = "Start the run without chrt -i and nice"
    if not ok and not matters:
        return Finding(
            name="real time", ok=True, detail=f"{detail}; only an arm with actor.layout=processes needs it"
        )
    return Finding(
        name="real time",
        ok=ok,
        detail=detail,
        remedy=remedy,
        needed=False,
    )


def _may_take_priority() -> bool:
    try:
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(CONTROL_PRIORITY))
        os.sched_setscheduler(0, *before)
    except (OSError, AttributeError):  # no permission, or not on Linux
        return False
    return True
