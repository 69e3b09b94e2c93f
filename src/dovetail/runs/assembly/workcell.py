"""A workcell: robot, task and clock behind the safety filter. Control processes use it, so it does not import torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from dovetail.actor.control import HUMAN_AXES
from dovetail.config.plugins import resolve
from dovetail.config.schema import PluginSection
from dovetail.core.abilities import (
    Closes,
    ConfiguresLeader,
    ConfiguresRealtime,
    Demonstrates,
    KeepsPace,
    NeedsVerdict,
    PlansReset,
    Probes,
    WatchesStop,
    WrapsOperators,
)
from dovetail.core.action_parts import drives_in_parts
from dovetail.core.clock import RealClock, SimulatedClock
from dovetail.core.contracts import Clock, Operator, Robot, SimulatedRobot, Task
from dovetail.core.errors import RobotError, RobotFault, UsageError, stop_failure
from dovetail.core.specs import match
from dovetail.core.types import Array, Purpose
from dovetail.human.browser import ConsoleControl, OperatorWithConsole
from dovetail.human.device import OperatorWithStop, VerdictsOnly
from dovetail.human.mailbox import Mailbox
from dovetail.human.none import NoOperator
from dovetail.human.scripted import Demonstrator
from dovetail.live.emergency import emergency_reason, report_device_stop
from dovetail.live.run_stop import RunStop
from dovetail.robots.cameras import RobotWithCameras
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.runs.assembly.hidden_success import HiddenSuccess
from dovetail.runs.assembly.leaders import build_leader
from dovetail.runs.assembly.operators import console_config, drives_part, inner_operators
from dovetail.runs.assembly.stop_devices import StopDevices

__all__ = ["Workcell", "build_driver", "build_workcell", "demonstrates"]

_NO_CAMERAS: Mapping[str, PluginSection] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Workcell:
    """Robot, task and clock, and the operators that may take over."""

    task: Task
    robot: SafeRobot
    clock: Clock
    _raw: Robot
    hides_success: bool = False  # from online episodes
    records_axes: bool = False  # which axes a person drives
    early_devices: StopDevices | None = None  # open already
    _devices: dict[str, Operator] = field(default_factory=dict)  # each is opened once for all purposes

    def task_for(self, purpose: Purpose) -> Task:
        """The task for a purpose: online episodes may hide its success."""
        return HiddenSuccess(self.task) if self.hides_success and purpose is Purpose.ONLINE else self.task

    @property
    def needs_verdict(self) -> bool:
        """Whether the task leaves success to a person or a labeler."""
        return isinstance(self.task, NeedsVerdict) and self.task.needs_verdict

    @property
    def driver(self) -> Robot:
        """The robot without the safety filter. Only `stop()` and its abilities may be used."""
        return self._raw

    @property
    def probe(self) -> Callable[[], Mapping[str, Array]]:
        """Extra columns to record, such as a simulator's state."""
        probe: Callable[[], Mapping[str, Array]] = self._raw.probe if isinstance(self._raw, Probes) else dict
        if not self.records_axes:
            return probe
        no_axes = np.zeros(self.robot.spec.action.shape, np.bool_)
        return lambda: {**probe(), HUMAN_AXES: no_axes}

    def operator(
        self, purpose: Purpose, section: PluginSection, *, demo_noise: float, console: ConsoleControl | None = None
    ) -> Operator:
        """The operator for a purpose. A person or the task's expert demonstrates. In an evaluation no operator takes over,
        but a person judges it if the task does not.

        The console's operator, if given, has precedence.
        """
        by_person, may_judge = demonstrates(section), purpose is Purpose.EVAL and self.needs_verdict
        operator: Operator
        if purpose is Purpose.DEMO and not by_person:
            operator = self._stoppable(Demonstrator(task=self.task, noise=demo_noise), section)
        elif may_judge and by_person:
            operator = VerdictsOnly(self._device(section) or self._build_operator(section, self.task))
        elif purpose is Purpose.EVAL:
            operator = self._stoppable(NoOperator(), section)
        else:
            operator = self._device(section) or self._build_operator(section, self.task_for(purpose))
        if console is None:
            return operator
        return OperatorWithConsole(
            operator,
            console,
            may_drive=purpose is not Purpose.EVAL,
            may_judge=may_judge,
            demonstrates=purpose is Purpose.DEMO and by_person,
        )

    def watch_device(self, section: PluginSection, stop: RunStop) -> None:
        """Read the configured input device from now on, if there is one. Its emergency stop stops all arms of the run, also
        between episodes and while the control loop hangs."""
        device = self._device(section)
        if isinstance(device, WatchesStop):
            device.watch(lambda name: report_device_stop(stop, name))

    def _stoppable(self, operator: Operator, section: PluginSection) -> Operator:
        device = self._device(section)
        return operator if device is None else OperatorWithStop(operator, device)

    def _device(self, section: PluginSection) -> Operator | None:
        """The configured operator, if it is a device."""
        if not isinstance(resolve("operator", section.type), WatchesStop):
            return None
        name = repr(section.to_plain())
        if name not in self._devices:
            self._devices[name] = self._build_operator(section, self.task_for(Purpose.ONLINE))
        return self._devices[name]

    def _build_operator(self, section: PluginSection, task: Task) -> Operator:
        """Build an operator, and those inside it if its config names some."""
        handles: dict[str, Any] = {"task": task, "robot": self.robot.spec}
        inner = [self._build_operator(one, task) for one in inner_operators(section)]
        if isinstance(section.config, WrapsOperators):
            handles["inner"] = inner
        elif inner:
            handles["inner"] = inner[0]
        if isinstance(section.config, ConfiguresLeader):
            handles["leader"] = build_leader(section.config.leader, clock=self.clock)
        if self.early_devices is not None and (device := self.early_devices.take(section)) is not None:
            handles["device"] = device
        operator: Operator = section.build(**handles)
        if isinstance(operator, KeepsPace) and isinstance(self.clock, SimulatedClock):
            operator.keep_pace(1.0 / self.robot.spec.control_hz)
        return operator

    def console_control(
        self, box: Mailbox, section: PluginSection, *, stop: RunStop | None = None
    ) -> ConsoleControl:
        """The console's control, with the emergency stop in the safety filter. Simulated time runs at real speed for it."""
        self.robot.refuse_while(lambda: emergency_reason(box, stop))
        pace_s = 1.0 / self.robot.spec.control_hz if isinstance(self.clock, SimulatedClock) else None
        return ConsoleControl(box, self.robot.spec, pace_s=pace_s, config=console_config(section))

    def close(self, *, stop: bool = True) -> None:
        """`stop`: False if this process has never moved the arm. Another one may move it now.

        Raises RobotFault if the stop fails, unless a failure of the robot is on its way already: that is the cause.
        """
        is_lost = self.robot.fault is not None or isinstance(sys.exception(), RobotError)
        try:
            if stop:
                self.robot.stop()
        except Exception as error:  # any driver
            if not is_lost:
                raise RobotFault(f"robot '{self.robot.spec.name}': {stop_failure(error)}") from error
        finally:
            for device in self._devices.values():
                if isinstance(device, Closes):
                    device.close()
            if self.early_devices is not None:
                self.early_devices.close()
            if isinstance(self._raw, Closes):
                self._raw.close()


def demonstrates(section: PluginSection) -> bool:
    """Whether a person demonstrates with this operator."""
    operator = resolve("operator", section.type)
    return isinstance(operator, Demonstrates) and operator.demonstrates


def build_workcell(
    *,
    task: PluginSection | None,
    robot: PluginSection,
    safety: SafetyConfig,
    hides_success: bool = False,
    cameras: Mapping[str, PluginSection] = _NO_CAMERAS,
    name: str | None = None,
    operator: PluginSection | None = None,
    early_devices: StopDevices | None = None,
    proposal_steps: int = 0,
    embedding_size: int = 0,
) -> Workcell:
    """Build robot, cameras and task, and check that they fit. `name`, `proposal_steps` and `embedding_size`: see SafeRobot.
    `operator` decides what is recorded.
    The operator uses its `early_devices`; the workcell closes them."""
    raw, job = build_driver(task=task, robot=robot, cameras=cameras)
    clock: Clock
    if isinstance(raw, SimulatedRobot):
        simulated = SimulatedClock(realtime=_is_realtime(robot))
        simulated.on_advance(raw.advance)
        clock = simulated
    else:
        clock = RealClock()
    safe = SafeRobot(raw, safety, clock, name=name, proposal_steps=proposal_steps, embedding_size=embedding_size)
    match(safe.spec, task=job.spec)
    if isinstance(job, PlansReset):
        job.reset_steps(safe.spec, rng=np.random.default_rng(0))  # refuses a robot that cannot execute them
    return Workcell(
        task=job,
        robot=safe,
        clock=clock,
        _raw=raw,
        hides_success=hides_success,
        records_axes=operator is not None and (drives_part(operator) or drives_in_parts(safe.spec.parts)),
        early_devices=early_devices,
    )


def build_driver(
    *, task: PluginSection | None, robot: PluginSection, cameras: Mapping[str, PluginSection] = _NO_CAMERAS
) -> tuple[Robot, Task]:
    """Build a robot without the safety filter, and its task. Their constructors do no I/O.

    A process that only stops the robot needs no cameras.
    """
    job: Any = task.build() if task else None
    raw: Any = robot.build(task=job)
    if cameras and isinstance(raw, SimulatedRobot) and not _is_realtime(robot):
        raise UsageError(
            f"cameras ({', '.join(cameras)}) show real time, but robot '{robot.type}' is simulated and runs at its own "
            "speed. Set robot.realtime=true, or use robot.images for simulated cameras"
        )
    built = {name: section.build(name=name) for name, section in cameras.items()}
    return RobotWithCameras.around(raw, built), job or raw.task


def _is_realtime(robot: PluginSection) -> bool:
    """Whether a simulated robot runs at the speed of the real clock."""
    return isinstance(robot.config, ConfiguresRealtime) and robot.config.realtime
