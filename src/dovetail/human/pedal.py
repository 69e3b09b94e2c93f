"""A pedal, or any other key, as the take-over switch of another operator: while it is pressed, that one has the arm.

    operator: {type: pedal, key: KEY_B, operator: {type: spacemouse}}

Released, the policy has it, whatever the other one does. A pedal that is unplugged while it is pressed makes the arm hold.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.contracts import Operator, Task
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human._evdev import InputDevice, key_code
from dovetail.human.device import Device, DeviceOperator, Reading

__all__ = ["PedalConfig", "PedalDevice", "PedalOperator"]


class PedalConfig(Config):
    path: str | None = None
    """The device, such as /dev/input/by-id/...-event-kbd; none: the first that has this key."""
    key: str = "KEY_B"
    """What it sends, by evdev's name or number."""
    operator: dict[str, Any] = Field(default_factory=lambda: {"type": "scripted"})
    """Who then has the arm, as an operator section."""


class PedalDevice:
    def __init__(self, config: PedalConfig) -> None:
        self._config = config
        self._device: InputDevice | None = None
        self._code = 0

    def open(self) -> None:
        self._code = key_code(self._config.key, operator="pedal")
        self._device = InputDevice(self._config.path, wanted=self._code, operator="pedal")
        self._device.open()

    def read(self) -> Reading | None:
        assert self._device is not None, "open() comes first"
        if self._device.update() is None:
            return None
        return Reading(held=self._code in self._device.pressed, axes=np.zeros(7, np.float32))

    def close(self) -> None:
        if self._device is not None:
            self._device.close()


class PedalOperator(DeviceOperator):
    Config: ClassVar[type[PedalConfig]] = PedalConfig
    name = "pedal"
    demonstrates: ClassVar[bool] = False  # the other one may be nobody's hands

    def __init__(
        self,
        config: PedalConfig,
        *,
        robot: RobotSpec,
        inner: Operator,
        task: Task | None = None,
        device: Device | None = None,
    ) -> None:
        super().__init__(device or PedalDevice(config), robot=robot)
        self._inner = inner

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        super().reset(rng=rng, robot_minutes=robot_minutes)
        self._inner.reset(rng=rng, robot_minutes=robot_minutes)

    def resume(self) -> None:
        super().resume()
        resume = getattr(self._inner, "resume", None)
        if resume is not None:
            resume()

    def close(self) -> None:
        super().close()
        close = getattr(self._inner, "close", None)
        if close is not None:
            close()

    def poll(self, observation: Observation) -> HumanInput:
        pedal, inner = super().poll(observation), self._inner.poll(observation)
        if inner.event is Event.EMERGENCY:  # whatever has become of the pedal
            return HumanInput(event=inner.event)
        if pedal.action is None:
            return pedal if pedal.event is not None else HumanInput(event=inner.event)
        # pressed: the arm is the other one's, and stands still where that one does nothing
        return HumanInput(action=pedal.action if inner.action is None else inner.action, event=inner.event)
