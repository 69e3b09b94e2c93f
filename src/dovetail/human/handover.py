"""Who has the arm: the dead-man logic of every way to drive it.

held, and fresh             the person drives
let go, by whoever drove    the policy goes on
lost while held             the arm HOLDS, until somebody takes over again or says start: never the policy by itself
another hand meanwhile      is not heard until the driver lets go, or is lost
"""

from __future__ import annotations

import time

from dovetail.core.clock import NS_PER_S
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human.axes import Axes
from dovetail.human.mailbox import Control, Hand

__all__ = ["Handover"]


class Handover:
    """`decide` once a tick. Without a `pace_s`, the clock is real; with it, time is simulated, and a tick with a person
    in it takes so long by the clock on the wall: nobody can drive what races ahead."""

    def __init__(self, robot: RobotSpec, *, pace_s: float | None = None, speed: float = 1.0) -> None:
        self._axes = Axes(robot, speed=speed)
        self._pace_ns = None if pace_s is None else round(pace_s * NS_PER_S)
        self._paced_ns = 0
        self._last: Hand | None = None  # of who drives
        self._forgiven = (0, 0)  # the message whose loss is over with, because somebody said start
        self._ignored = 0  # the session that was driving when somebody said pause: it lets go first
        self._always_paced = False
        self.control = Control.POLICY

    def keep_pace(self, pace_s: float) -> None:
        self._pace_ns = round(pace_s * NS_PER_S)

    @property
    def driver(self) -> int:
        return self._last.session if self._last is not None and self.control is Control.HUMAN else 0

    def begin(self, *, demonstrates: bool = False) -> None:
        """A new episode. One that a person `demonstrates` waits for them."""
        self._axes.begin()
        self._always_paced = demonstrates
        if demonstrates:
            self.pause()

    def pause(self) -> None:
        self._ignored = self.driver
        self.control = Control.PAUSED

    def resume(self, hand: Hand | None) -> None:
        """Somebody said start."""
        self.control, self._ignored = Control.POLICY, 0
        if hand is not None:
            self._forgiven = (hand.session, hand.sequence)

    def decide(
        self, hand: Hand | None, event: Event | None, observation: Observation, *, may_drive: bool = True
    ) -> HumanInput | None:
        """What the person does; None: nothing, so that whoever else is configured decides."""
        self._axes.look(observation)
        if event is Event.PAUSE:
            self.pause()
        elif event is Event.START:
            self.resume(hand)
        if not may_drive:
            self.control = Control.POLICY if self.control is Control.HUMAN else self.control
        elif hand is not None:
            self._heed(hand, time.monotonic_ns())
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

    def _heed(self, hand: Hand, now_ns: int) -> None:
        if hand.session == self._ignored and hand.held:
            return
        self._ignored = 0
        drives = self.control is Control.HUMAN
        assert self._last is not None or not drives
        if drives and self._last is not None and hand.session != self._last.session:
            if not self._last.is_fresh(now_ns):
                self.control = Control.HOLDING
        elif hand.held and hand.is_fresh(now_ns):
            self.control, self._last = Control.HUMAN, hand
        elif drives and not hand.held and hand.good:
            self.control = Control.POLICY
        elif hand.held and self.control is not Control.PAUSED and self._is_news(hand):
            self.control = Control.HOLDING  # expired, or nonsense

    def _is_news(self, hand: Hand) -> bool:
        return (hand.session, hand.sequence) != self._forgiven

    def _pace(self) -> None:
        if self._pace_ns is None or (self.control is Control.POLICY and not self._always_paced):
            return
        now_ns, due_ns = time.monotonic_ns(), self._paced_ns + self._pace_ns
        if now_ns < due_ns:
            time.sleep((due_ns - now_ns) / NS_PER_S)
        self._paced_ns = max(now_ns, due_ns)
