"""An operator at the console: drives the arm while the dead-man key is held, gives verdicts, pauses and stops."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dovetail.core.abilities import Demonstrates, Pauses, Resumes, SharesRobot
from dovetail.core.contracts import Operator, Task
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Event, HumanInput, Observation
from dovetail.human.axes import AxisMapping
from dovetail.human.drive_settings import DriveConfig
from dovetail.human.handover import Handover
from dovetail.human.mailbox import Control, DriveCommand, Mailbox, MailboxReader
from dovetail.human.selections import driven_parts

__all__ = ["BrowserConfig", "BrowserOperator", "ConsoleControl", "OperatorWithConsole", "console_mapping"]


_VERDICTS = (Event.SUCCESS, Event.FAILURE, Event.DISCARD, Event.RESET)


class BrowserConfig(DriveConfig):
    """Operator at the console."""


class BrowserOperator:
    """The operator at the console, who also gives the demonstrations. The console starts with the run."""

    Config: ClassVar[type[BrowserConfig]] = BrowserConfig
    name = "browser"
    demonstrates: ClassVar[bool] = True
    driven_from_console: ClassVar[bool] = True

    def __init__(self, config: BrowserConfig, *, task: Task | None = None, robot: RobotSpec | None = None) -> None:
        self.speed = config.speed
        self._mapping = None if robot is None else console_mapping(robot, config, name=self.name)
        if robot is not None and self._mapping is not None and self._mapping.refusal is not None:
            raise UsageError(
                f"operator 'browser' cannot drive robot '{robot.name}', which {self._mapping.refusal}. "
                "Use another operator"
            )

    @property
    def drives(self) -> Array | None:
        """Mask [A] of the axes that the console drives; None: all."""
        return None if self._mapping is None else self._mapping.driven

    def release_pose(self) -> None:
        """The console's input arrives through the mailbox, whose reader knows the pose."""

    def check_device(self) -> None:
        """Read the geometry of the arm, if there is one. Raises UsageError if it is missing."""
        if self._mapping is not None:
            self._mapping.load()

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        pass

    def poll(self, observation: Observation) -> HumanInput:
        return HumanInput()


def console_mapping(robot: RobotSpec, config: DriveConfig, *, name: str) -> AxisMapping:
    """What the console or the terminal drives."""
    parts = driven_parts(robot, config.part, name=name)
    return AxisMapping(robot, speed=config.speed, parts=parts, kinematics=config.known_arms)


class ConsoleControl:
    """The console's input in the control process."""

    def __init__(
        self, box: Mailbox, robot: RobotSpec, *, pace_s: float | None = None, config: DriveConfig | None = None
    ) -> None:
        self.box = box
        self.reader = MailboxReader(box)
        mapping = console_mapping(robot, config or DriveConfig(), name="browser")
        self.drives = mapping.driven  # mask [A]; None: the whole robot
        self.handover = Handover(robot, pace_s=pace_s, mapping=mapping)
        if (command := self.reader.command()) is not None:
            self.handover.ignore_press(command)  # made before this process began, perhaps for one that has died


class OperatorWithConsole:
    """Adds the console to an operator. Input from the console has priority, unless it is one of several operators and drives
    only its own part.

    Without `may_drive`, as in an evaluation, the console can still pause, stop and acknowledge, and with `may_judge` also
    press success and failure. With `demonstrates`, the episode waits for the console to start.
    """

    def __init__(
        self,
        inner: Operator,
        console: ConsoleControl,
        *,
        may_drive: bool = True,
        may_judge: bool = False,
        demonstrates: bool = False,
    ) -> None:
        self._inner, self._console = inner, console
        self._may_drive, self._demonstrates = may_drive, demonstrates
        self._refused = () if may_drive else (Event.DISCARD, Event.RESET) if may_judge else _VERDICTS
        self._takes_part = may_drive or may_judge
        self._inner_is_person = isinstance(inner, Demonstrates) and inner.demonstrates
        self._sharing = inner if isinstance(inner, SharesRobot) and console.drives is not None else None
        self._waits = False  # any of several operators may begin the demonstration

    @property
    def name(self) -> str:
        """The inner operator's name, with `browser` once a console was connected."""
        if not self._console.box.writer_ns or not self._takes_part or self._inner_is_person:
            return self._inner.name
        return "browser" if self._inner.name == "none" else f"{self._inner.name}+browser"

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        console = self._console
        while (posted := console.reader.next_event()) is not None:  # events between episodes
            if posted.event is Event.PAUSE:
                console.handover.pause()
                self._pause_inner()
            elif posted.event is Event.START:
                console.handover.resume(console.reader.command())
                self._resume_inner()
        console.handover.begin(demonstrates=self._demonstrates)
        self._waits = self._demonstrates
        self._inner.reset(rng=rng, robot_minutes=robot_minutes)

    def poll(self, observation: Observation) -> HumanInput:
        console = self._console
        command, event = console.reader.command(), self._next_event()
        if event is Event.PAUSE:
            self._pause_inner()
        decided = console.handover.decide(command, event, observation, may_drive=self._may_drive)
        console.reader.report(
            console.handover.control,
            driver=console.handover.driver,
            last_sequence=command.sequence if command else 0,
        )
        if decided is not None and decided.event is Event.START:
            self._resume_inner()
        if decided is not None and decided.event not in (None, Event.PAUSE):
            return decided
        if decided is not None and decided.action is None and not self._inner_is_person:
            return decided
        inner = self._inner.poll(observation)
        if self._sharing is not None:
            return self._shared(self._sharing, decided, inner, command)
        if decided is None:
            return inner
        if decided.action is None:  # paused here, but the other device may take over
            if inner.action is None and inner.event in (None, Event.PAUSE):
                return decided
            if inner.action is not None or inner.event is Event.START:
                console.handover.resume(command)
            return inner
        if inner.action is not None:
            self._pause_inner()  # its switch must be pressed again after the console's release
        # keep a verdict of the inner operator, but not the pause of a lost device
        event = None if inner.event is Event.PAUSE else inner.event
        return HumanInput(action=decided.action, event=event, axes=decided.axes, keeps=decided.keeps)

    def _shared(
        self, sharing: SharesRobot, decided: HumanInput | None, inner: HumanInput, command: DriveCommand | None
    ) -> HumanInput:
        """The console's part and those of the other operators, by the rules of `human.several`."""
        handover = self._console.handover
        self._waits &= handover.control is Control.PAUSED
        if decided is None or inner.event is Event.EMERGENCY:
            return inner
        if decided.action is None:  # paused, or the person at the console is lost
            if inner.event is Event.START or (self._waits and inner.action is not None):
                handover.resume(command)
                return inner
            sharing.interrupt()
            return HumanInput(event=inner.event or Event.PAUSE)
        if inner.event is Event.PAUSE:  # another operator is lost or has paused: this switch must be pressed again
            handover.pause()
            handover.resume(command)
            return inner
        assert decided.axes is not None
        assert decided.keeps is not None
        if inner.action is None:
            return HumanInput(action=decided.action, event=inner.event, axes=decided.axes, keeps=decided.keeps)
        assert inner.axes is not None
        return HumanInput(
            action=np.where(decided.axes, decided.action, inner.action),
            event=inner.event,
            axes=decided.axes | inner.axes,
            keeps=decided.keeps | (False if inner.keeps is None else inner.keeps),
        )

    def _pause_inner(self) -> None:
        if self._sharing is None and isinstance(self._inner, Pauses):
            self._inner.pause()

    def _resume_inner(self) -> None:
        """A lost or paused device holds the arm, too."""
        if isinstance(self._inner, Resumes):
            self._inner.resume()

    def _next_event(self) -> Event | None:
        while (posted := self._console.reader.next_event()) is not None:
            if posted.event is Event.EMERGENCY and not self._console.box.emergency:
                continue  # acknowledged since
            if posted.event in self._refused:
                continue  # the task decides evaluations
            return posted.event
        return None
