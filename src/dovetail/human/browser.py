"""A person at the console: drives the arm from a browser while the dead-man key is held, judges, pauses, stops."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.contracts import Operator, Task
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human.handover import Handover
from dovetail.human.mailbox import Mailbox, MailboxReader

__all__ = ["BrowserConfig", "BrowserOperator", "Desk", "WithMailbox"]


class BrowserConfig(Config):
    speed: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the robot's own limits that a full push of the stick moves it with."""


class BrowserOperator:
    """Nobody, but for who sits at the console: `--console` opens one. Demonstrations are theirs to give."""

    Config: ClassVar[type[BrowserConfig]] = BrowserConfig
    name = "browser"
    demonstrates: ClassVar[bool] = True

    def __init__(self, config: BrowserConfig, *, task: Task | None = None, robot: RobotSpec | None = None) -> None:
        self.speed = config.speed

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        pass

    def poll(self, observation: Observation) -> HumanInput:
        return HumanInput()


class Desk:
    """Where a person sits, as the control loop's process sees it: one, whoever else is configured to take over."""

    def __init__(self, box: Mailbox, robot: RobotSpec, *, pace_s: float | None = None, speed: float = 1.0) -> None:
        self.box = box
        self.reader = MailboxReader(box)
        self.handover = Handover(robot, pace_s=pace_s, speed=speed)


class WithMailbox:
    """An operator, and a person at the console who comes before it. While nobody is there, it is that operator.

    Where nobody `may_drive`, as in an evaluation, the person can still pause, stop and acknowledge. `demonstrates`: the
    episode is theirs, and waits for them.
    """

    def __init__(self, inner: Operator, desk: Desk, *, may_drive: bool = True, demonstrates: bool = False) -> None:
        self._inner, self._desk = inner, desk
        self._may_drive, self._demonstrates = may_drive, demonstrates
        self._has_hands: bool = getattr(inner, "demonstrates", False)  # a person's, and not a script's

    @property
    def name(self) -> str:
        """The operator's own; with the browser's, once somebody has been there."""
        if not self._desk.box.writer_ns or not self._may_drive or self._has_hands:
            return self._inner.name
        return "browser" if self._inner.name == "none" else f"{self._inner.name}+browser"

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        desk = self._desk
        while (posted := desk.reader.next_event()) is not None:  # said between episodes, of none of them
            if posted.event is Event.PAUSE:
                desk.handover.pause()
            elif posted.event is Event.START:
                desk.handover.resume(desk.reader.hand())
        desk.handover.begin(demonstrates=self._demonstrates)
        self._inner.reset(rng=rng, robot_minutes=robot_minutes)

    def poll(self, observation: Observation) -> HumanInput:
        desk = self._desk
        hand = desk.reader.hand()
        decided = desk.handover.decide(hand, self._next_event(), observation, may_drive=self._may_drive)
        desk.reader.tell(desk.handover.control, driver=desk.handover.driver, heard=hand.sequence if hand else 0)
        if decided is not None and decided.event is Event.START:
            resume = getattr(self._inner, "resume", None)  # a device that was lost holds the arm, too
            if resume is not None:
                resume()
        if decided is not None and decided.event not in (None, Event.PAUSE):
            return decided
        if decided is not None and decided.action is None and not self._has_hands:
            return decided
        inner = self._inner.poll(observation)
        if decided is None:
            return inner
        if decided.action is None:  # paused here, but whoever sits at the other device may take over
            if inner.action is None and inner.event in (None, Event.PAUSE):
                return decided
            if inner.action is not None or inner.event is Event.START:
                desk.handover.resume(hand)
            return inner
        # it may still see that the task is done; a device that was lost must not hold who drives from here
        return HumanInput(action=decided.action, event=None if inner.event is Event.PAUSE else inner.event)

    def _next_event(self) -> Event | None:
        while (posted := self._desk.reader.next_event()) is not None:
            if posted.event is Event.EMERGENCY and not self._desk.box.emergency:
                continue  # acknowledged since
            if not self._may_drive and posted.event in (Event.SUCCESS, Event.FAILURE, Event.DISCARD, Event.RESET):
                continue  # nobody judges an evaluation
            return posted.event
        return None
