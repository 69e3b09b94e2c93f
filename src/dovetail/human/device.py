"""A person's device at the robot's own machine, as an operator: opened with the first episode, read once a tick.

A device says how it is held and moved, in one order for all: x, y, z, rx, ry, rz, gripper, each in [-1, 1]. What follows
from that, and what a lost device means, is the same dead-man logic as for the browser.
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
from dovetail.human.mailbox import EXPIRY_S, Hand

__all__ = ["AXES", "Device", "DeviceOperator", "Reading", "WithStop", "load_library", "onto_robot"]

AXES = ("dx", "dy", "dz", "drx", "dry", "drz", "gripper")
_MOST_WAITING = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a device says now. `event` is said once."""

    held: bool
    axes: Array  # float32 [7], in the order of AXES
    event: Event | None = None


class Device(Protocol):
    def open(self) -> None:
        """Raises UsageError, in one line, where it is not there, or what it needs is not installed."""

    def read(self) -> Reading | None:
        """Never waits. None: it is gone."""

    def close(self) -> None: ...


class DeviceOperator:
    """See the Operator contract. Each kind of device brings its own reading of it."""

    demonstrates: ClassVar[bool] = True
    name: ClassVar[str]

    def __init__(self, device: Device, *, robot: RobotSpec, speed: float = 1.0) -> None:
        self._device = device
        self._places = onto_robot(robot, name=self.name)
        self._num_axes = robot.action.shape[0]
        self._handover = Handover(robot, speed=speed)
        self._is_open = False
        self._sequence = 0
        self._hand: Hand | None = None
        self._emergency = False  # pressed before the episode began

    def keep_pace(self, pace_s: float) -> None:
        """Time is simulated: see Handover."""
        self._handover.keep_pace(pace_s)

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        if not self._is_open:
            self._device.open()
            self._is_open = True
        for _ in range(_MOST_WAITING):  # said between episodes, of none of them
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
        """Somebody said start elsewhere: a loss of this device is over with."""
        self._handover.resume(self._hand)

    def poll(self, observation: Observation) -> HumanInput:
        reading = self._device.read()
        event = None
        self._sequence += 1
        if reading is not None:
            self._hand, event = self._as_hand(reading), reading.event
        elif self._hand is not None and self._hand.good:
            self._hand = Hand(
                session=1, sequence=self._sequence, held=self._hand.held, axes=self._hand.axes, good=False
            )
        if self._emergency:
            event, self._emergency = Event.EMERGENCY, False
        return self._handover.decide(self._hand, event, observation) or HumanInput()

    def close(self) -> None:
        if self._is_open:
            self._device.close()
            self._is_open = False

    def _as_hand(self, reading: Reading) -> Hand:
        axes = np.zeros(self._num_axes, np.float32)
        axes[list(self._places)] = np.asarray(reading.axes, np.float32)[list(self._places.values())]
        return Hand(
            session=1,
            sequence=self._sequence,
            held=reading.held,
            axes=axes,
            time_ns=time.monotonic_ns(),
            expires_ns=round(EXPIRY_S * NS_PER_S),
            good=bool((np.abs(axes) <= 1.0).all()),
        )


class WithStop:
    """Whoever acts, where nobody's hands do; of a device in somebody's reach, the emergency stop alone is heard."""

    def __init__(self, inner: Operator, device: DeviceOperator) -> None:
        self._inner, self._device = inner, device
        self._is_there = False

    @property
    def name(self) -> str:
        return self._inner.name

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        self._inner.reset(rng=rng, robot_minutes=robot_minutes)
        try:
            self._device.reset(rng=rng, robot_minutes=robot_minutes)
            self._is_there = True
        except UsageError:  # not plugged in: what is evaluated needs nobody's hands
            self._is_there = False

    def poll(self, observation: Observation) -> HumanInput:
        if self._is_there and self._device.poll(observation).event is Event.EMERGENCY:
            return HumanInput(event=Event.EMERGENCY)
        return self._inner.poll(observation)


def onto_robot(robot: RobotSpec, *, name: str) -> dict[int, int]:
    """Which axis of the robot's action is which of ours. Joints are not driven by hand."""
    arm = [axis for axes in cartesian_axes(robot) for axis in axes]
    if not arm:
        raise UsageError(
            f"operator '{name}' drives arms in Cartesian space, but robot '{robot.name}' takes {robot.action_kind} "
            f"actions: set robot.action=ee_delta, or another operator"
        )
    grippers = np.flatnonzero(gripper_axes(robot.action, robot.action_kind)).tolist()
    return {axis: at for at, axis in enumerate(arm)} | dict.fromkeys(grippers, AXES.index("gripper"))


def load_library(module: str, *, package: str, operator: str) -> Any:
    """A vendor's library, when it is needed and not before."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"operator '{operator}' needs {package}: pip install {package}") from error
