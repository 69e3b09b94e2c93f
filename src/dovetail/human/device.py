"""Operators with an input device at the robot's machine. The device is opened with the first episode and read each tick.

A device reports whether it is held and its axes x, y, z, rx, ry, rz, gripper, each in [-1, 1]. `Handover` has the dead-man
logic for devices and browser.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from dovetail.core.achieved import gripper_axes
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Operator
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Event, HumanInput, Observation
from dovetail.human.axes import cartesian_axes
from dovetail.human.handover import Handover
from dovetail.human.mailbox import EXPIRY_S, DriveCommand

__all__ = ["AXES", "Device", "DeviceOperator", "OperatorWithStop", "Reading", "load_library", "map_axes"]

AXES = ("dx", "dy", "dz", "drx", "dry", "drz", "gripper")
_MAX_EVENTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """State of a device. Each event is reported once."""

    held: bool
    axes: Array  # float32 [7], in the order of AXES
    event: Event | None = None


class Device(Protocol):
    def open(self) -> None:
        """Raises UsageError if the device or its library is missing."""

    def read(self) -> Reading | None:
        """Return the state without blocking. None if the device is gone."""

    def close(self) -> None: ...


class DeviceOperator:
    """See the Operator contract. Subclasses choose the device."""

    demonstrates: ClassVar[bool] = True
    name: ClassVar[str]

    def __init__(self, device: Device, *, robot: RobotSpec, speed: float = 1.0) -> None:
        self._device = device
        self._axis_map = map_axes(robot, name=self.name)
        self._num_axes = robot.action.shape[0]
        self._handover = Handover(robot, speed=speed)
        self._is_open = False
        self._sequence = 0
        self._command: DriveCommand | None = None
        self._emergency = False  # pressed before the episode began

    def keep_pace(self, pace_s: float) -> None:
        """For simulated time: see Handover."""
        self._handover.keep_pace(pace_s)

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        if not self._is_open:
            self._device.open()
            self._is_open = True
        for _ in range(_MAX_EVENTS):  # events between episodes
            reading = self._device.read()
            if reading is None or reading.event is None:
                break
            self._emergency |= reading.event is Event.EMERGENCY
            if reading.event is Event.PAUSE:
                self._handover.pause()
            elif reading.event is Event.START:
                self.resume()
        self._handover.begin()

    def resume(self) -> None:
        """Clear a loss of this device after a start from elsewhere."""
        self._handover.resume(self._command)

    def poll(self, observation: Observation) -> HumanInput:
        reading = self._device.read()
        event = None
        self._sequence += 1
        if reading is not None:
            self._command, event = self._to_command(reading), reading.event
        elif self._command is not None and self._command.is_valid:
            self._command = DriveCommand(
                session=1,
                sequence=self._sequence,
                held=self._command.held,
                axes=self._command.axes,
                is_valid=False,
            )
        if self._emergency:
            event, self._emergency = Event.EMERGENCY, False
        return self._handover.decide(self._command, event, observation) or HumanInput()

    def close(self) -> None:
        if self._is_open:
            self._device.close()
            self._is_open = False

    def _to_command(self, reading: Reading) -> DriveCommand:
        axes = np.zeros(self._num_axes, np.float32)
        axes[list(self._axis_map)] = np.asarray(reading.axes, np.float32)[list(self._axis_map.values())]
        return DriveCommand(
            session=1,
            sequence=self._sequence,
            held=reading.held,
            axes=axes,
            time_ns=time.monotonic_ns(),
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


def map_axes(robot: RobotSpec, *, name: str) -> dict[int, int]:
    """Map the robot's action axes to device axes. Raises UsageError for robots without Cartesian actions."""
    arm = [axis for axes in cartesian_axes(robot) for axis in axes]
    if not arm:
        raise UsageError(
            f"operator '{name}' drives arms in Cartesian space, but robot '{robot.name}' takes {robot.action_kind} "
            f"actions. Set robot.action=ee_delta or use another operator"
        )
    grippers = np.flatnonzero(gripper_axes(robot.action, robot.action_kind)).tolist()
    return {axis: at for at, axis in enumerate(arm)} | dict.fromkeys(grippers, AXES.index("gripper"))


def load_library(module: str, *, package: str, operator: str) -> Any:
    """Import a vendor's library when it is needed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"operator '{operator}' needs {package}. Install it with: pip install {package}"
        ) from error
