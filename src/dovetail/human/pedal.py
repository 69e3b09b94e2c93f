"""A pedal, or any other key, as the takeover switch of another operator.

    operator: {type: pedal, key: KEY_B, operator: {type: spacemouse}}

While it is pressed, the other operator drives. While it is released, the policy drives. If it is unplugged while it is
pressed, the arm holds until it is pressed again. With `stop_key`, a second pedal of the same device is an emergency stop.
Use a pedal with a cable: a pedal that is held sends nothing, so a wireless one that is out of range is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.abilities import ChecksDevice, Closes, DrivesAxes, Pauses, Resumes, WatchesStop
from dovetail.core.contracts import Operator, Task
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Event, HumanInput, Observation
from dovetail.human._evdev import InputDevice, Kernel, key_code
from dovetail.human.axes import AxisMapping
from dovetail.human.device import Device, DeviceOperator, DeviceReader, Reading

__all__ = ["PedalConfig", "PedalDevice", "PedalOperator"]


class PedalConfig(Config):
    """A pedal that enables another operator."""

    path: str | None = None
    """Device, such as /dev/input/by-id/...-event-kbd. Null: the first one with this key."""
    key: str = "KEY_B"
    """Key that it sends, by name or number."""
    stop_key: str | None = None
    """Key of the pedal that is the emergency stop, by name or number. Null: none."""
    operator: dict[str, Any] = Field(default_factory=lambda: {"type": "scripted"})
    """Operator that drives while the pedal is pressed, as an operator section."""


class PedalDevice:
    def __init__(self, config: PedalConfig, *, kernel: Kernel | None = None, operator: str = "pedal") -> None:
        self._code = key_code(config.key, operator=operator)
        self._stop = None if config.stop_key is None else key_code(config.stop_key, operator=operator)
        stop_keys = set() if self._stop is None else {self._stop}
        self._device = InputDevice(
            config.path, wanted={self._code, *stop_keys}, operator=operator, stop_keys=stop_keys, kernel=kernel
        )

    def open(self) -> None:
        self._device.open()

    def read(self) -> Reading | None:
        pressed_keys = self._device.update()
        if pressed_keys is None:
            return None
        held, event = self._code in self._device.pressed, Event.EMERGENCY if self._stop in pressed_keys else None
        return Reading(held=held, axes=np.zeros(7, np.float32), event=event)

    def close(self) -> None:
        self._device.close()


class PedalOperator(DeviceOperator):
    Config: ClassVar[type[PedalConfig]] = PedalConfig
    name = "pedal"
    demonstrates: ClassVar[bool] = False  # the other operator may be a script

    def __init__(
        self,
        config: PedalConfig,
        *,
        robot: RobotSpec,
        inner: Operator,
        task: Task | None = None,
        device: Device | DeviceReader | None = None,
    ) -> None:
        mapping = AxisMapping(robot)  # stands still until the other operator drives
        if mapping.refusal is not None:
            raise UsageError(
                f"operator 'pedal' cannot enable another operator: robot '{robot.name}' {mapping.refusal}"
            )
        super().__init__(device or self.make_device(config), robot=robot, mapping=mapping)
        self._inner = inner

    @classmethod
    def make_device(cls, config: PedalConfig) -> Device:
        return PedalDevice(config, kernel=cls.kernel())

    @property
    def drives(self) -> Array | None:
        return self._inner.drives if isinstance(self._inner, DrivesAxes) else None

    def watch(self, on_emergency: Callable[[str], None]) -> None:
        super().watch(on_emergency)
        if isinstance(self._inner, WatchesStop):
            self._inner.watch(on_emergency)

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        super().reset(rng=rng, robot_minutes=robot_minutes)
        self._inner.reset(rng=rng, robot_minutes=robot_minutes)

    def pause(self) -> None:
        super().pause()
        if isinstance(self._inner, Pauses):
            self._inner.pause()

    def resume(self) -> None:
        super().resume()
        if isinstance(self._inner, Resumes):
            self._inner.resume()

    def check_device(self) -> None:
        super().check_device()
        if isinstance(self._inner, ChecksDevice):
            self._inner.check_device()

    def close(self) -> None:
        super().close()
        if isinstance(self._inner, Closes):
            self._inner.close()

    def poll(self, observation: Observation) -> HumanInput:
        pedal, inner = super().poll(observation), self._inner.poll(observation)
        if inner.event is Event.EMERGENCY:  # even if the pedal is lost
            return HumanInput(event=inner.event)
        if pedal.action is None:
            if isinstance(self._inner, DrivesAxes):
                self._inner.release_pose()  # it does not drive now, even if its own switch is held
            return pedal if pedal.event is not None else HumanInput(event=inner.event)
        # pressed: the other operator drives; without its action the arm stands still
        driving = pedal if inner.action is None else inner
        if inner.action is not None:
            self.release_pose()  # standing still begins where the other operator leaves the arm
        return HumanInput(action=driving.action, event=inner.event, axes=self.drives, keeps=driving.keeps)
