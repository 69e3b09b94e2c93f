"""Operators with an input device at the robot's machine. A thread reads the device (`human.device_reader`); the control loop
takes its newest reading each tick.

A device reports whether its switch is held and its axes, in the order of `axes.AXES`, each in [-1, 1]. It may leave out the
last ones. `Handover` has the dead-man logic for devices and browser.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Operator
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human.axes import AXES, map_axes
from dovetail.human.device_reader import Device, DeviceReader, Reading
from dovetail.human.handover import Handover
from dovetail.human.mailbox import EXPIRY_S, DriveCommand

__all__ = ["Device", "DeviceOperator", "OperatorWithStop", "Reading", "VerdictsOnly", "load_library"]

_SESSION = 1


class DeviceOperator:
    """See the Operator contract. Subclasses choose the device."""

    demonstrates: ClassVar[bool] = True
    name: ClassVar[str]

    def __init__(self, device: Device, *, robot: RobotSpec, speed: float = 1.0) -> None:
        self._reader = DeviceReader(device, name=self.name)
        self._axis_map = self._map_axes(robot)
        self._num_axes = robot.action.shape[0]
        self._handover = Handover(robot, speed=speed)
        self._sequence = 0
        self._num_losses = 0  # that this operator has seen
        self._command: DriveCommand | None = None
        self._emergency = False  # pressed before the episode began

    def keep_pace(self, pace_s: float) -> None:
        """For simulated time: see Handover."""
        self._handover.keep_pace(pace_s)

    def watch(self, on_emergency: Callable[[str], None]) -> None:
        """Read the device from now on. Its emergency stop calls `on_emergency` with the operator's name, at once and from
        another thread, and is no event of `poll`. It works between episodes and while the control loop hangs. The callback
        must stop the arm until a person acknowledges it. A missing device is opened once it is there; `reset` refuses it."""
        self._reader.on_emergency = lambda: on_emergency(self.name)
        self._reader.watch()

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._reader.open()
        while (event := self._reader.next_event()) is not None:  # events between episodes
            self._emergency |= event is Event.EMERGENCY
            if event is Event.PAUSE:
                self._handover.pause()
            elif event is Event.START:
                self.resume()
        self._handover.begin()

    def pause(self) -> None:
        """Hold after a pause from elsewhere."""
        self._handover.pause()

    def resume(self) -> None:
        """Clear a loss of this device after a start from elsewhere."""
        self._handover.resume(self._command)

    def poll(self, observation: Observation) -> HumanInput:
        event = self._reader.next_event()
        self._sequence += 1
        self._command = self._next_command()
        if self._emergency:
            event, self._emergency = Event.EMERGENCY, False
        return self._handover.decide(self._command, event, observation) or HumanInput()

    def check_device(self) -> None:
        """Open the device and close it again. Raises UsageError if it or its package is missing."""
        self._reader.open()
        self._reader.close()

    def close(self) -> None:
        self._reader.close()

    def _map_axes(self, robot: RobotSpec) -> dict[int, int]:
        """The device axis of each action axis that this device drives. Raises UsageError for an unsuitable robot."""
        return map_axes(robot, name=self.name)

    def _next_command(self) -> DriveCommand | None:
        newest, num_losses = self._reader.newest(), self._reader.num_losses
        if num_losses != self._num_losses or newest is None:
            # also if the device has returned since: its switch was not released
            self._num_losses = num_losses
            if self._command is None or not self._command.is_valid:
                return self._command
            return DriveCommand(
                session=_SESSION,
                sequence=self._sequence,
                held=self._command.held,
                axes=self._command.axes,
                press=self._command.press,
                is_valid=False,
            )
        reading, press = newest
        given, axes = np.zeros(len(AXES), np.float32), np.zeros(self._num_axes, np.float32)
        given[: len(reading.axes)] = reading.axes
        axes[list(self._axis_map)] = given[list(self._axis_map.values())]
        return DriveCommand(
            session=_SESSION,
            sequence=self._sequence,
            held=reading.held,
            axes=axes,
            press=press,
            time_ns=reading.time_ns,
            expires_ns=round(EXPIRY_S * NS_PER_S),
            is_valid=bool((np.abs(axes) <= 1.0).all()),
        )


class OperatorWithStop:
    """Adds only the emergency stop of a device to another operator."""

    def __init__(self, inner: Operator, device: DeviceOperator) -> None:
        self._inner, self._device = inner, device
        self._is_connected = False

    @property
    def name(self) -> str:
        return self._inner.name

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._inner.reset(rng=rng, robot_minutes=robot_minutes)
        try:
            self._device.reset(rng=rng, robot_minutes=robot_minutes)
            self._is_connected = True
        except UsageError:  # not plugged in: this operator does not need it
            self._is_connected = False

    def poll(self, observation: Observation) -> HumanInput:
        if self._is_connected and self._device.poll(observation).event is Event.EMERGENCY:
            return HumanInput(event=Event.EMERGENCY)
        return self._inner.poll(observation)


class VerdictsOnly:
    """An operator that starts and judges episodes but never drives: for evaluations of tasks that do not know success."""

    _PASSED = (Event.START, Event.SUCCESS, Event.FAILURE, Event.STOP, Event.ACKNOWLEDGE, Event.EMERGENCY)

    def __init__(self, inner: Operator) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._inner.reset(rng=rng, robot_minutes=robot_minutes)

    def poll(self, observation: Observation) -> HumanInput:
        event = self._inner.poll(observation).event
        return HumanInput(event=event if event in self._PASSED else None)


def load_library(module: str, *, package: str, operator: str) -> Any:
    """Import a vendor's library when it is needed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"operator '{operator}' needs {package}. Install it with: pip install {package}"
        ) from error
