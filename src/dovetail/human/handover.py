"""Who controls the arm: the dead-man logic for all input devices.

pressed, held and fresh     the operator drives
released by the driver      the policy continues
lost while held             the arm HOLDS until an operator presses the switch again or signals start
paused while held           the same
a second device             is ignored until the driver releases or is lost

Only a press, a release or an event changes who controls the arm. A press that was lost or paused is spent: it neither drives
again nor holds again, also when its messages arrive after all.
"""

from __future__ import annotations

import time
from typing import Protocol

from dovetail.core.clock import NS_PER_S
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Event, HumanInput, Observation
from dovetail.human.axes import AxisMapping
from dovetail.human.mailbox import Control, DriveCommand

__all__ = ["ActionMapping", "Handover"]


class ActionMapping(Protocol):
    """Converts the axes of a drive command to an action: see `AxisMapping`."""

    @property
    def refusal(self) -> str | None:
        """Why the robot cannot be driven; None if it can."""

    @property
    def driven(self) -> Array | None:
        """Mask [A] of the axes that the operator drives; None: all."""

    @property
    def keeps(self) -> Array | None:
        """Mask [A] of the axes that the operator has not commanded yet; None: no axis."""

    def begin(self) -> None: ...

    def observe(self, observation: Observation) -> None: ...

    def release(self) -> None: ...

    def action(self, axes: Array, observation: Observation) -> Array: ...


class Handover:
    """Call `decide` once per tick. With `pace_s`, time is simulated, and a tick with a person takes that much real time, so
    that a person can drive. `mapping` replaces the mapping of a robot's axes."""

    def __init__(
        self,
        robot: RobotSpec,
        *,
        pace_s: float | None = None,
        speed: float = 1.0,
        mapping: ActionMapping | None = None,
    ) -> None:
        self._axes: ActionMapping = mapping or AxisMapping(robot, speed=speed)
        self._pace_ns = None if pace_s is None else round(pace_s * NS_PER_S)
        self._paced_ns = 0
        self._last: DriveCommand | None = None  # of the driver
        self._spent: dict[int, int] = {}  # by session: the newest press that was lost or paused
        self._always_paced = False
        self.control = Control.POLICY

    def keep_pace(self, pace_s: float) -> None:
        self._pace_ns = round(pace_s * NS_PER_S)

    @property
    def driver(self) -> int:
        return self._last.session if self._last is not None and self.control is Control.HUMAN else 0

    def begin(self, *, demonstrates: bool = False) -> None:
        """Start a new episode. A demonstration waits for the operator."""
        self._axes.begin()
        self._always_paced = demonstrates
        if demonstrates:
            self.pause()

    def release_pose(self) -> None:
        """Another operator or the policy may have moved the arm: start from the measured pose again."""
        self._axes.release()

    def pause(self) -> None:
        if self._last is not None and self.control is Control.HUMAN:
            self._spend(self._last)
        self.control = Control.PAUSED

    def resume(self, command: DriveCommand | None) -> None:
        """Continue after a start signal. A person who drives continues to drive."""
        if self.control is Control.HUMAN:
            return
        self.control = Control.POLICY
        if command is not None and command.held and not command.is_fresh(time.monotonic_ns()):
            self._spend(command)

    def ignore_press(self, command: DriveCommand) -> None:
        """The switch was pressed before this began: the arm holds until it is pressed again or until a start signal."""
        if command.held:
            self._lose(command)

    def decide(
        self,
        command: DriveCommand | None,
        event: Event | None,
        observation: Observation,
        *,
        may_drive: bool = True,
    ) -> HumanInput | None:
        """The operator's input. None: nothing, so that another operator may decide."""
        self._axes.observe(observation)
        if event is Event.PAUSE:
            self.pause()
        elif event is Event.START:
            self.resume(command)
        now_ns = time.monotonic_ns()
        if not may_drive or self._axes.refusal is not None:
            if self.control is Control.HUMAN:
                self.pause()  # driving since the last episode: the policy must not start under the person's hand
        elif command is not None:
            self._update_control(command, now_ns)
        if self.control is Control.HUMAN and self._last is not None and not self._last.is_fresh(now_ns):
            self._lose(self._last)
        self._pace()
        if event is not None and event not in (Event.PAUSE, Event.START):
            return HumanInput(event=event)
        if self.control is Control.HUMAN:
            assert self._last is not None
            action = self._axes.action(self._last.axes, observation)
            return HumanInput(action=action, event=event, axes=self._axes.driven, keeps=self._axes.keeps)
        self._axes.release()
        if self.control is not Control.POLICY:
            return HumanInput(event=Event.PAUSE)
        return HumanInput(event=event) if event is not None else None

    def _update_control(self, command: DriveCommand, now_ns: int) -> None:
        is_driver = self._last is not None and command.session == self._last.session
        if self.control is Control.HUMAN and not is_driver:
            if command.held:
                self._spend(command)  # it must press again after the driver
            return
        if not command.held:
            if self.control is Control.HUMAN and command.is_valid:
                self.control = Control.POLICY  # released
        elif command.press <= self._spent.get(command.session, 0):
            return
        elif command.is_fresh(now_ns):
            self.control, self._last = Control.HUMAN, command
        else:
            self._lose(command)

    def _lose(self, command: DriveCommand) -> None:
        """Hold after a command that has expired or is invalid."""
        if self._last is not None and self.control is Control.HUMAN:
            self._spend(self._last)  # also if the command has an older number
        self._spend(command)
        if self.control is not Control.PAUSED:
            self.control = Control.HOLDING

    def _spend(self, command: DriveCommand) -> None:
        self._spent[command.session] = max(command.press, self._spent.get(command.session, 0))

    def _pace(self) -> None:
        if self._pace_ns is None or (self.control is Control.POLICY and not self._always_paced):
            return
        now_ns, due_ns = time.monotonic_ns(), self._paced_ns + self._pace_ns
        if now_ns < due_ns:
            time.sleep((due_ns - now_ns) / NS_PER_S)
        self._paced_ns = max(now_ns, due_ns)
