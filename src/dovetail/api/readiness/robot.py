"""Checks of real robots: they are observed for a second, and never moved."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator

from dovetail.api.readiness.finding import Finding
from dovetail.config.plugins import resolve
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import NeedsPackages
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import DovetailError
from dovetail.robot_host.robot_look import RobotLook
from dovetail.runs.assembly.arms import arm_configs
from dovetail.runs.assembly.robot_access import open_workcell
from dovetail.runs.assembly.workcell import Workcell

__all__ = ["robot_findings"]

_SECONDS = 1.0
_MIN_RATE = 0.9  # of control_hz
_MAX_LATENCY = 0.5  # of a tick


def robot_findings(config: RunConfig) -> Iterator[Finding]:
    """What each real arm of a config answers. Arms of other machines of a cluster cannot be asked from here."""
    arms = arm_configs(config)
    for name, own in arms.items():
        label = "robot" if len(arms) == 1 else f"robot {name}"
        missing = list(_packages(own, label))
        yield from missing
        if not missing and not config.cluster.machines:
            yield from _observed(own, label)


def _packages(config: RunConfig, label: str) -> Iterator[Finding]:
    kind = resolve("robot", config.robot.type)
    for module, package in kind.packages.items() if isinstance(kind, NeedsPackages) else ():
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            detail = f"robot '{config.robot.type}' needs {package}"
            yield Finding(name=label, ok=False, detail=detail, remedy=f"Install it with: pip install {package}")


def _observed(config: RunConfig, label: str) -> Iterator[Finding]:
    try:
        with open_workcell(config, looks=True) as workcell:
            if not isinstance(workcell.clock, SimulatedClock):
                yield from _look(workcell, label)
    except DovetailError as error:
        yield Finding(name=label, ok=False, detail=str(error))


def _look(workcell: Workcell, label: str) -> Iterator[Finding]:
    look = RobotLook(workcell.driver, workcell.clock)
    look.tick()  # connects
    link = look.link()
    look = RobotLook(workcell.driver, workcell.clock)
    end_s = time.monotonic() + _SECONDS
    while time.monotonic() < end_s:
        look.tick()
    timing, tick_ms = look.timing(), 1e3 / workcell.robot.spec.control_hz
    is_fast = timing.rate_hz >= _MIN_RATE * timing.wanted_hz and timing.latency_p50_ms <= _MAX_LATENCY * tick_ms
    problem = look.problem()
    yield Finding(
        name=label,
        ok=problem is None and is_fast,
        detail=f"'{workcell.robot.spec.name}': {problem or timing.line}",
        remedy="" if problem else "Lower control_hz, or make observe() of the driver return sooner",
        needed=problem is not None,
    )
    if link is not None:
        yield Finding(name=f"{label} link", ok=True, detail=link)
