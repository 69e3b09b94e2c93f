"""A kind of input device and the person who uses it, for tests that drive."""

from __future__ import annotations

import time
from pathlib import Path

from dovetail.human.browser import BrowserConfig, BrowserOperator, ConsoleControl, OperatorWithConsole
from dovetail.human.gamepad import ABS_Y, GamepadConfig
from dovetail.human.keyboard import KeyboardConfig, KeyboardOperator
from dovetail.human.mailbox import Mailbox, MailboxWriter
from dovetail.human.none import NoOperator
from dovetail.human.pedal import PedalConfig
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from dovetail.testing.input_devices import (
    EmulatedGamepad,
    EmulatedGamepadOperator,
    EmulatedPedal,
    EmulatedPedalOperator,
    EmulatedSpaceMouse,
    EmulatedSpaceMouseOperator,
)
from support.waiting import wait_until

SPEC = FakeArm(FakeArmConfig()).spec


def settle(operator):
    """Wait until the operator's thread has read the device again, or has lost it."""
    reader = operator._reader
    if not reader.is_open:
        return
    num_losses, start_ns = reader.num_losses, time.monotonic_ns()
    for _ in range(2):  # the first reading may have begun before
        before = reader.newest()
        wait_until(lambda before=before: reader.newest() is not before or reader.num_losses != num_losses)
        if reader.num_losses != num_losses:
            return
    assert time.monotonic_ns() > start_ns


class Hands:
    """`make` builds the operator; `hold`, `let_go` and `lose` return once it has seen them."""

    operators: list

    def __init__(self, folder: Path) -> None:
        self.operators = []

    def make(self, task=None):
        self.operators.append(self.build())
        return self.operators[-1]

    def settle(self):
        for operator in self.operators:
            settle(operator)

    def close(self):
        for operator in self.operators:
            operator.close()
        self.device.unplug()


class Pad(Hands):
    """A hand that does not tremble: the arm holds after a silence of 1 s, not of a quarter second."""

    def __init__(self, folder: Path, **settings) -> None:
        super().__init__(folder)
        self.settings = {"max_silence_s": 1.0, **settings}
        self.device = EmulatedGamepad(folder / "pad")
        self.device.plug_in()

    def build(self):
        return EmulatedGamepadOperator(GamepadConfig(path=str(self.device.path), **self.settings), robot=SPEC)

    def hold(self):
        self.device.hold()
        self.device.push(ABS_Y, -1.0)
        self.settle()

    def let_go(self):
        self.device.let_go()
        self.settle()

    def lose(self):
        self.device.unplug()
        self.settle()


class Mouse(Hands):
    def __init__(self, folder: Path, **settings) -> None:
        super().__init__(folder)
        self.settings = settings
        self.device = EmulatedSpaceMouse(folder / "mouse")
        self.device.plug_in()

    robot = SPEC

    def build(self):
        config = EmulatedSpaceMouseOperator.Config(path=str(self.device.path), **self.settings)
        return EmulatedSpaceMouseOperator(config, robot=self.robot)

    def arm(self):
        """Rest until a push takes over."""
        for operator in self.operators:
            wait_until(lambda operator=operator: operator._reader._device._may_take_over)

    def hold(self):
        self.arm()
        self.device.push(back=-1.0)
        self.settle()

    def let_go(self):
        self.device.rest()
        self.device.buttons(0, 1)
        self.settle()
        self.device.buttons()
        self.settle()

    def lose(self):
        self.device.unplug()
        self.settle()


class Foot(Hands):
    inner = staticmethod(NoOperator)

    def __init__(self, folder: Path, **settings) -> None:
        super().__init__(folder)
        self.settings = settings
        self.device = EmulatedPedal(folder / "pedal")
        self.device.plug_in()

    def build(self):
        config = PedalConfig(path=str(self.device.path), **self.settings)
        return EmulatedPedalOperator(config, robot=SPEC, inner=self.inner())

    def hold(self):
        self.device.hold()
        self.settle()

    def let_go(self):
        self.device.let_go()
        self.settle()

    def lose(self):
        self.device.unplug()
        self.settle()


class Page(Hands):
    """The browser and the terminal's keys, which share one path."""

    inner = staticmethod(lambda: BrowserOperator(BrowserConfig()))

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.box = Mailbox(7)
        self.writer, self.sequence = MailboxWriter(self.box), 0

    def make(self, task=None):
        return OperatorWithConsole(self.inner(), ConsoleControl(self.box, SPEC))

    def drive(self, held, **settings):
        self.sequence += 1
        self.writer.drive(session=1, sequence=self.sequence, held=held, axes=[0, 0, 1, 0, 0, 0, 0], **settings)

    def hold(self):
        self.drive(True, expires_s=2.0)

    def let_go(self):
        self.drive(False)

    def lose(self):
        self.drive(True, time_ns=time.monotonic_ns() - 10**9)  # the last message is one second old

    def close(self):
        pass


class Typist(Page):
    inner = staticmethod(lambda: KeyboardOperator(KeyboardConfig(), robot=SPEC))
