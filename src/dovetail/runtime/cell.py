"""A robot at its task behind the safety filter, with its clock: what a control process is made of. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.schema import PluginSection
from dovetail.core.clock import RealClock, SimulatedClock
from dovetail.core.contracts import Clock, Operator, Robot, SimulatedRobot, Task
from dovetail.core.specs import match
from dovetail.core.types import Array, Purpose
from dovetail.human.none import NoOperator
from dovetail.human.scripted import Demonstrator
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.runtime.unjudged import Unjudged

__all__ = ["Cell", "build_cell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    task: Task
    robot: SafeRobot
    clock: Clock
    _raw: Robot
    hides_success: bool = False  # from practice

    def task_for(self, purpose: Purpose) -> Task:
        """As that purpose may know it: practice may be kept from knowing when it is done."""
        return Unjudged(self.task) if self.hides_success and purpose is Purpose.ONLINE else self.task

    @property
    def probe(self) -> Callable[[], Mapping[str, Array]]:
        """What should be recorded beside each observation: a simulator's own state, say."""
        probe: Callable[[], Mapping[str, Array]] = getattr(self._raw, "probe", dict)
        return probe

    def operator(self, purpose: Purpose, section: PluginSection, *, demo_noise: float) -> Operator:
        """Who may take over: the expert shows, nobody helps in an evaluation, and practice is as configured."""
        if purpose is Purpose.DEMO:
            return Demonstrator(task=self.task, noise=demo_noise)
        if purpose is Purpose.EVAL:
            return NoOperator()
        operator: Operator = section.build(task=self.task_for(purpose))
        return operator

    def close(self) -> None:
        self.robot.stop()
        close = getattr(self._raw, "close", None)
        if close:
            close()


def build_cell(
    *, task: PluginSection | None, robot: PluginSection, safety: PluginSection, hides_success: bool = False
) -> Cell:
    """Make robot and task, and let them check each other."""
    job: Any = task.build() if task else None
    raw: Any = robot.build(task=job)
    job = job or raw.task
    clock: Clock
    if isinstance(raw, SimulatedRobot):
        simulated = SimulatedClock(realtime=getattr(robot.config, "realtime", False))
        simulated.on_advance(raw.advance)
        clock = simulated
    else:
        clock = RealClock()
    assert isinstance(safety.config, SafetyConfig)
    safe = SafeRobot(raw, safety.config, clock)
    match(safe.spec, task=job.spec)
    return Cell(task=job, robot=safe, clock=clock, _raw=raw, hides_success=hides_success)
