"""Who controls the arm: the dead-man logic for all input devices.

held, and fresh             the operator drives
released by the driver      the policy continues
lost while held             the arm HOLDS until an operator takes over or signals start; the policy never continues alone
a second device             is ignored until the driver releases or is lost
"""

from __future__ import annotations

import time

from dovetail.core.clock import NS_PER_S
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human.axes import AxisMapping
from dovetail.human.mailbox import Control, DriveCommand

__all__ = ["Handover"]


class Handover:
    """Call `decide` once per tick. With `pace_s`, time is simulated, and a tick with a person takes that much real time, so
    that a person can drive."""

    def __init__(self, robot: RobotSpec, *, pace_s: float | None = None, speed: float = 1.0) -> None:
        self._axes = AxisMapping(robot, speed=speed)
        self._pace_ns = None if pace_s is None else round(pace_s * NS_PER_S)
        self._paced_ns = 0
        self._last: DriveCommand | None = None  # of the driver
        self._cleared = (0, 0)  # session and sequence of a lost command that a start has cleared
        self._ignored = 0  # session that drove when the pause came: it must release first
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

    def pause(self) -> None:
        self._ignored = self.driver
        self.control = Control.PAUSED

    def resume(self, command: DriveCommand | None) -> None:
        """Continue after a start signal."""
        self.control, self._ignored = Control.POLICY, 0
        if command is not None:
            self._cleared = (command.session, command.sequence)

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
        if not may_drive:
            self.control = Control.POLICY if self.control is Control.HUMAN else self.control
        elif command is not None:
            self._update_control(command, time.monotonic_ns())
        self._pace()
        if event is not None and event not in (Event.PAUSE, Event.START):
            return HumanInput(event=event)
        if self.control is Control.HUMAN:
            assert self._last is not None
            return HumanInput(action=self._axes.action(self._last.axes, observation), event=event)
        self._axes.release()
        if self.control is not Control.POLICY:
            return HumanInput(event=Event.PAUSE)
        return HumanInput(event=event) if event is not None else None

    def _update_control(self, command: DriveCommand, now_ns: int) -> None:
        if command.session == self._ignored and command.held:
            return
        self._ignored = 0
        drives = self.control is Control.HUMAN
        assert self._last is not None or not drives
        if drives and self._last is not None and command.session != self._last.session:
            if not self._last.is_fresh(now_ns):
                self.control = Control.HOLDING
        elif command.held and command.is_fresh(now_ns):
            self.control, self._last = Control.HUMAN, command
        elif drives and not command.held and command.is_valid:
            self.control = Control.POLICY
        elif command.held and self.control is not Control.PAUSED and self._is_uncleared(command):
            self.control = Control.HOLDING  # expired or invalid

    def _is_uncleared(self, command: DriveCommand) -> bool:
        return (command.session, command.sequence) != self._cleared

    def _pace(self) -> None:
        if self._pace_ns is None or (self.control is Control.POLICY and not self._always_paced):
            return
        now_ns, due_ns = time.monotonic_ns(), self._paced_ns + self._pace_ns
        if now_ns < due_ns:
            time.sleep((due_ns - now_ns) / NS_PER_S)
        self._paced_ns = max(now_ns, due_ns)
