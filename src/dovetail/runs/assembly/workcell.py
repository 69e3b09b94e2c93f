"""A robot at its task behind the safety filter, with its clock: what a control process is made of. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.actor.control import EMERGENCY
from dovetail.config.plugins import resolve
from dovetail.config.schema import PluginSection
from dovetail.core.abilities import (
    Closes,
    ConfiguresRealtime,
    ConfiguresSpeed,
    Demonstrates,
    Probes,
    WrapsOperator,
)
from dovetail.core.clock import RealClock, SimulatedClock
from dovetail.core.contracts import Clock, Operator, Robot, SimulatedRobot, Task
from dovetail.core.specs import match
from dovetail.core.types import Array, Purpose
from dovetail.human.browser import ConsoleControl, OperatorWithConsole
from dovetail.human.device import DeviceOperator, OperatorWithStop
from dovetail.human.mailbox import Mailbox
from dovetail.human.none import NoOperator
from dovetail.human.scripted import Demonstrator
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.runs.assembly.hidden_success import HiddenSuccess

__all__ = ["Workcell", "build_workcell", "demonstrates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workcell:
    task: Task
    robot: SafeRobot
    clock: Clock
    _raw: Robot
    hides_success: bool = False  # from practice
    _devices: dict[str, DeviceOperator] = field(
        default_factory=dict
    )  # one of each, whatever it is for: it is opened once

    def task_for(self, purpose: Purpose) -> Task:
        """As that purpose may know it: practice may be kept from knowing when it is done."""
        return HiddenSuccess(self.task) if self.hides_success and purpose is Purpose.ONLINE else self.task

    @property
    def probe(self) -> Callable[[], Mapping[str, Array]]:
        """What should be recorded beside each observation: a simulator's own state, say."""
        return self._raw.probe if isinstance(self._raw, Probes) else dict

    def operator(
        self, purpose: Purpose, section: PluginSection, *, demo_noise: float, desk: ConsoleControl | None = None
    ) -> Operator:
        """Who may take over: the expert shows, or whose hands are configured; nobody helps in an evaluation, and
        practice is as configured. Who sits at the `desk` comes before all of them."""
        hands = demonstrates(section)
        operator: Operator
        if purpose is Purpose.DEMO and not hands:
            operator = self._stoppable(Demonstrator(task=self.task, noise=demo_noise), section)
        elif purpose is Purpose.EVAL:
            operator = self._stoppable(NoOperator(), section)
        else:
            operator = self._device(section) or self._build_operator(section, self.task_for(purpose))
        if desk is None:
            return operator
        return OperatorWithConsole(
            operator,
            desk,
            may_drive=purpose is not Purpose.EVAL,
            demonstrates=purpose is Purpose.DEMO and hands,
        )

    def _stoppable(self, operator: Operator, section: PluginSection) -> Operator:
        device = self._device(section)
        return operator if device is None else OperatorWithStop(operator, device)

    def _device(self, section: PluginSection) -> DeviceOperator | None:
        """Whoever is configured, if that is a device."""
        kind = resolve("operator", section.type)
        if not (isinstance(kind, type) and issubclass(kind, DeviceOperator)):
            return None
        name = repr(section.to_plain())
        if name not in self._devices:
            operator = self._build_operator(section, self.task_for(Purpose.ONLINE))
            assert isinstance(operator, DeviceOperator)
            self._devices[name] = operator
        return self._devices[name]

    def _build_operator(self, section: PluginSection, task: Task) -> Operator:
        """One that wraps another names that one in its config, as `operator`."""
        handles: dict[str, Any] = {"task": task, "robot": self.robot.spec}
        if isinstance(section.config, WrapsOperator) and section.config.operator is not None:
            inner = PluginSection.parse("operator", section.config.operator)
            handles["inner"] = self._build_operator(inner, task)
        operator: Operator = section.build(**handles)
        if isinstance(operator, DeviceOperator) and isinstance(self.clock, SimulatedClock):
            operator.keep_pace(1.0 / self.robot.spec.control_hz)
        return operator

    def desk(self, box: Mailbox, section: PluginSection) -> ConsoleControl:
        """A place for a person, whose emergency stop the filter knows; where time is simulated, it keeps pace."""
        self.robot.refuse_while(lambda: EMERGENCY if box.emergency else None)
        pace_s = 1.0 / self.robot.spec.control_hz if isinstance(self.clock, SimulatedClock) else None
        speed = section.config.speed if isinstance(section.config, ConfiguresSpeed) else 1.0
        return ConsoleControl(box, self.robot.spec, pace_s=pace_s, speed=speed)

    def close(self) -> None:
        self.robot.stop()
        for device in self._devices.values():
            device.close()
        if isinstance(self._raw, Closes):
            self._raw.close()


def demonstrates(section: PluginSection) -> bool:
    """Whether an operator is a person's hands, who can show a task, and not a script or nobody."""
    operator = resolve("operator", section.type)
    return isinstance(operator, Demonstrates) and operator.demonstrates


def build_workcell(
    *,
    task: PluginSection | None,
    robot: PluginSection,
    safety: SafetyConfig,
    hides_success: bool = False,
    name: str | None = None,
) -> Workcell:
    """Make robot and task, and let them check each other. `name`: see SafeRobot."""
    job: Any = task.build() if task else None
    raw: Any = robot.build(task=job)
    job = job or raw.task
    clock: Clock
    if isinstance(raw, SimulatedRobot):
        realtime = isinstance(robot.config, ConfiguresRealtime) and robot.config.realtime
        simulated = SimulatedClock(realtime=realtime)
        simulated.on_advance(raw.advance)
        clock = simulated
    else:
        clock = RealClock()
    safe = SafeRobot(raw, safety, clock, name=name)
    match(safe.spec, task=job.spec)
    return Workcell(task=job, robot=safe, clock=clock, _raw=raw, hides_success=hides_success)
