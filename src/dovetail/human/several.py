"""Several operators on one robot, each with its own part and its own dead-man switch: two people on two arms.

    operator:
      type: several
      operators:
        - {type: gamepad, part: left_arm, path: /dev/input/by-id/...}
        - {type: spacemouse, part: right_arm}

Or one person with a leader arm, and a gamepad for the mobile base. One of them may be the person at the console (`browser`)
or the terminal (`keyboard`): its input does not come from `poll`, but from `OperatorWithConsole`, which follows these rules.

Each drives its part. The policy keeps the others. If one operator is lost or pauses, the whole robot holds until that
operator presses the switch again or an operator signals start; the others must press theirs again, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.abilities import ChecksDevice, Closes, DrivesAxes, Pauses, Resumes, WatchesStop
from dovetail.core.contracts import Operator, Task
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Event, HumanInput, Observation

__all__ = ["SeveralConfig", "SeveralOperators"]


class SeveralConfig(Config):
    """Several operators, each with its part."""

    BASIC: ClassVar[Collection[str]] = ("operators",)

    operators: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=8)
    """The operators, each as an operator section with `part`."""


class SeveralOperators:
    """See the module."""

    Config: ClassVar[type[SeveralConfig]] = SeveralConfig
    demonstrates: ClassVar[bool] = True

    def __init__(
        self, config: SeveralConfig, *, robot: RobotSpec, inner: Sequence[Operator], task: Task | None = None
    ) -> None:
        self._inner = list(inner)
        taken = np.zeros(robot.action.shape, np.bool_)
        self._masks: list[Array] = []
        for operator in self._inner:
            if not isinstance(operator, DrivesAxes):
                raise UsageError(
                    f"operator 'several': operator '{operator.name}' cannot share a robot. Use a gamepad, spacemouse, "
                    "pedal, leader, keyboard or browser"
                )
            mask = operator.drives
            if mask is None:
                raise UsageError(
                    f"operator 'several': operator '{operator.name}' would drive the whole robot. Give it a `part`"
                )
            if (taken & mask).any():
                axis = robot.action.names[int(np.argmax(taken & mask))] if robot.action.names else "an axis"
                raise UsageError(
                    f"operator 'several': two operators drive {axis}. Give each operator another `part`"
                )
            taken |= mask
            self._masks.append(mask)
        self._taken = taken
        self._driving: list[int] = []  # in the last poll
        self._is_paused = False  # by something else, such as the console

    @property
    def name(self) -> str:
        return "+".join(operator.name for operator in self._inner)

    @property
    def drives(self) -> Array:
        """Mask of the axes that some operator may drive."""
        return self._taken

    def release_pose(self) -> None:
        for operator in self._inner:
            if isinstance(operator, DrivesAxes):
                operator.release_pose()

    def watch(self, on_emergency: Callable[[str], None]) -> None:
        for operator in self._inner:
            if isinstance(operator, WatchesStop):
                operator.watch(on_emergency)

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        for operator in self._inner:
            operator.reset(rng=rng, robot_minutes=robot_minutes)

    def pause(self) -> None:
        """Hold until one of the operators presses its switch again, or until `resume`."""
        self._is_paused = True
        for operator in self._inner:
            _spend_press(operator)

    def interrupt(self) -> None:
        """All who drive must press their switches again."""
        for number in self._driving:
            _spend_press(self._inner[number])

    def resume(self) -> None:
        self._is_paused = False
        for operator in self._inner:
            if isinstance(operator, Resumes):
                operator.resume()

    def check_device(self) -> None:
        for operator in self._inner:
            if isinstance(operator, ChecksDevice):
                operator.check_device()

    def close(self) -> None:
        for operator in self._inner:
            if isinstance(operator, Closes):
                operator.close()

    def poll(self, observation: Observation) -> HumanInput:
        polled = [operator.poll(observation) for operator in self._inner]
        events = [one.event for one in polled]
        if Event.EMERGENCY in events:
            return HumanInput(event=Event.EMERGENCY)
        if Event.START in events:
            self.resume()
            events = [None if event is Event.PAUSE else event for event in events]
        self._driving = driving = [number for number, one in enumerate(polled) if one.action is not None]
        if Event.PAUSE in events:
            self.interrupt()  # so that nothing moves when the other operator resumes
            others = [event for event in events if event not in (None, Event.PAUSE)]
            return HumanInput(event=others[0] if others else Event.PAUSE)
        self._is_paused &= not driving
        event = next((event for event in events if event is not None), None)
        if not driving:
            return HumanInput(event=event or (Event.PAUSE if self._is_paused else None))
        action, axes = np.zeros(self._taken.shape, np.float32), np.zeros(self._taken.shape, np.bool_)
        keeps = np.zeros(self._taken.shape, np.bool_)
        for number in driving:
            given, mask = polled[number], self._masks[number]
            assert given.action is not None
            action[mask] = given.action[mask]
            axes |= mask
            if given.keeps is not None:
                keeps |= given.keeps & mask
        return HumanInput(action=action, event=event, axes=axes, keeps=keeps)


def _spend_press(operator: Operator) -> None:
    """The switch of this operator must be pressed again."""
    if isinstance(operator, Pauses) and isinstance(operator, Resumes):
        operator.pause()
        operator.resume()
