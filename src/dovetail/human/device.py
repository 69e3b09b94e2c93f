"""Operators with an input device at the robot's machine. A thread reads the device (`human.device_reader`); the control loop
takes its newest reading each tick.

A device reports whether its switch is held and its axes, in the order of `selections.AXES`, each in [-1, 1]. It may leave
out the last ones. What they move is chosen at the device (`human.selections`). `Handover` has the dead-man logic for
devices and browser.
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
from dovetail.core.types import Array, Event, HumanInput, Observation
from dovetail.human._evdev import Kernel
from dovetail.human.axes import AxisMapping, num_drive_axes
from dovetail.human.device_reader import Device, DeviceReader, Reading
from dovetail.human.drive_settings import DriveConfig
from dovetail.human.handover import ActionMapping, Handover
from dovetail.human.mailbox import EXPIRY_S, DriveCommand
from dovetail.human.selections import AXES, Chooser, driven_parts, selections

__all__ = [
    "Device",
    "DeviceOperator",
    "DeviceReader",
    "OperatorWithStop",
    "Reading",
    "VerdictsOnly",
    "load_library",
]

_SESSION = 1


class DeviceOperator:
    """See the Operator contract. Subclasses choose the device."""

    demonstrates: ClassVar[bool] = True
    name: ClassVar[str]
    kernel: ClassVar[type[Kernel]] = Kernel  # access to evdev devices
    joints_at_once: ClassVar[int] = 1  # number of joints that the axes of the device move without a choice

    def __init__(
        self,
        device: Device | DeviceReader,
        *,
        robot: RobotSpec,
        config: DriveConfig | None = None,
        mapping: ActionMapping | None = None,
    ) -> None:
        """`device` may be open and read already. `mapping` replaces that of the robot's axes, for a device that does not
        choose what it moves."""
        config = config or DriveConfig()
        self._reader = device if isinstance(device, DeviceReader) else DeviceReader(device, name=self.name)
        self._num_axes = num_drive_axes(robot)
        self._chooser: Chooser | None = None
        if mapping is None:
            options = selections(robot, config, name=self.name, joints_at_once=self.joints_at_once)
            self._chooser = Chooser(options)
            parts = driven_parts(robot, config.part, name=self.name)
            mapping = AxisMapping(robot, speed=config.speed, parts=parts, kinematics=config.known_arms)
        self._mapping = mapping
        self._handover = Handover(robot, mapping=mapping)
        self._num_chosen = (0, 0)  # as far as this operator has seen
        self._sequence = 0
        self._num_losses = 0  # that this operator has seen
        self._command: DriveCommand | None = None
        self._emergency = False  # pressed before the episode began

    def keep_pace(self, pace_s: float) -> None:
        """Set the pace of simulated time: see Handover."""
        self._handover.keep_pace(pace_s)

    def watch(self, on_emergency: Callable[[str], None]) -> None:
        """Read the device from now on. Its emergency stop calls `on_emergency` with the operator's name, at once and from
        another thread, and is no event of `poll`. It works between episodes and while the control loop hangs. The callback
        must stop the arm until a person acknowledges it. `reset` refuses a missing device, which is opened when
        it is plugged in."""
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

    @property
    def drives(self) -> Array | None:
        """Mask [A] of the axes that this operator drives; None: all."""
        return self._mapping.driven

    @property
    def selection(self) -> str:
        """What the device moves, for people."""
        return "" if self._chooser is None else self._chooser.chosen.label

    def release_pose(self) -> None:
        """Something else moves the arm: start from the measured pose again."""
        self._handover.release_pose()

    def poll(self, observation: Observation) -> HumanInput:
        event = self._reader.next_event()
        self._sequence += 1
        self._command = self._next_command()
        if self._emergency:
            event, self._emergency = Event.EMERGENCY, False
        return self._handover.decide(self._command, event, observation) or HumanInput()

    def check_device(self) -> None:
        """Open the device and close it again. Raises UsageError if it or its package is missing."""
        if isinstance(self._mapping, AxisMapping):
            self._mapping.load()
        self._reader.open()
        self._reader.close()

    def close(self) -> None:
        self._reader.close()

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
        axes = self._axes_of(reading)
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

    def _axes_of(self, reading: Reading) -> Array:
        """The axes of a drive command."""
        given, axes = np.zeros(len(AXES), np.float32), np.zeros(self._num_axes, np.float32)
        given[: len(reading.axes)] = reading.axes
        if self._chooser is not None:
            self._chooser.move(reading.num_next - self._num_chosen[0])
            if reading.num_next_part != self._num_chosen[1]:
                self._chooser.move_part(reading.num_next_part - self._num_chosen[1])
            self._num_chosen = (reading.num_next, reading.num_next_part)
            chosen = self._chooser.chosen.axes
            axes[list(chosen)] = given[list(chosen.values())]
        return axes


class OperatorWithStop:
    """Adds only the emergency stop of a device to another operator."""

    def __init__(self, inner: Operator, device: Operator) -> None:
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
    """An operator that starts and judges episodes but never drives: for evaluations of tasks that do not detect success."""

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
