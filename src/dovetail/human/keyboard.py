"""The terminal's keys: a key that moves takes over, and the arm moves while it repeats. The rest is said by letters.

A terminal tells that a key is pressed, and never that it is let go. So who has taken over keeps the arm, standing still,
until Enter gives it back; and a terminal that goes away makes the arm hold. Keys are read in the run's own process, which
has the terminal, and go to the control loop through the mailbox, as from the browser.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import termios
import threading
import time
import tty
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.contracts import Task
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Event, HumanInput, Observation
from dovetail.human.device import onto_robot
from dovetail.human.mailbox import Mailbox, MailboxWriter

__all__ = ["HELP", "KeyboardConfig", "KeyboardOperator", "Keys", "TerminalKeys"]

HELP = (
    "drive with w s a d r f (move), i k j l u o (turn), space (gripper); Enter gives it back. "
    "t start, p pause, y success, n failure, x discard, z reset, c acknowledge, Esc EMERGENCY STOP"
)
MOVES = {
    "w": (0, 1.0), "s": (0, -1.0), "a": (1, 1.0), "d": (1, -1.0), "r": (2, 1.0), "f": (2, -1.0),
    "u": (3, 1.0), "o": (3, -1.0), "i": (4, 1.0), "k": (4, -1.0), "j": (5, 1.0), "l": (5, -1.0),
}  # fmt: skip
EVENTS = {
    "t": Event.START,
    "p": Event.PAUSE,
    "y": Event.SUCCESS,
    "n": Event.FAILURE,
    "x": Event.DISCARD,
    "z": Event.RESET,
    "c": Event.ACKNOWLEDGE,
    "\x1b": Event.EMERGENCY,
}
_SEQUENCE = re.compile(r"\x1b(\[[0-9;]*.|O.)")  # an arrow or function key: many bytes that are no Esc
_FIRST_S = 0.55  # a key repeats so long after it was pressed, at most
_NEXT_S = 0.15  # and so soon again
_SEND_S = 0.05
_SESSION = 1


class KeyboardConfig(Config):
    speed: float = Field(default=0.5, gt=0.0, le=1.0)
    """Share of the robot's own limits that a key moves it with."""


class KeyboardOperator:
    """Nobody, but for who sits at the run's terminal. Demonstrations are theirs to give."""

    Config: ClassVar[type[KeyboardConfig]] = KeyboardConfig
    name = "keyboard"
    demonstrates: ClassVar[bool] = True

    def __init__(self, config: KeyboardConfig, *, robot: RobotSpec, task: Task | None = None) -> None:
        onto_robot(robot, name=self.name)  # one that cannot be driven so is refused

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        pass

    def poll(self, observation: Observation) -> HumanInput:
        return HumanInput()


class Keys:
    """From keys and the times they came at to whether the arm is held, and how it moves: x, y, z, rx, ry, rz, gripper."""

    def __init__(self) -> None:
        self.held = False
        self._grip = 0.0  # as it is, until somebody presses space
        self._until_s: dict[str, float] = {}
        self._last_s: dict[str, float] = {}

    def press(self, key: str, now_s: float) -> Event | None:
        key = key.lower()
        if key in MOVES:
            repeats = now_s - self._last_s.get(key, -1e9) < _FIRST_S
            self._last_s[key] = now_s
            self._until_s[key] = now_s + (_NEXT_S if repeats else _FIRST_S)
            self.held = True
        elif key == " ":
            self._grip = 1.0 if self._grip < 0.0 else -1.0
            self.held = True
        elif key in ("\r", "\n"):
            self.held, self._grip = False, 0.0
            self._until_s.clear()
        return EVENTS.get(key)

    def axes(self, now_s: float) -> Array:
        axes = np.zeros(7, np.float32)
        for key, until_s in self._until_s.items():
            axis, way = MOVES[key]
            axes[axis] += way * (now_s < until_s)
        axes[6] = self._grip
        return axes


class TerminalKeys:
    """`with TerminalKeys(find_mailbox, robot=...)`: reads the terminal and writes the mailbox, once there is one."""

    def __init__(self, mailbox: Callable[[], tuple[Mailbox, RobotSpec] | None], *, descriptor: int = 0) -> None:
        self._mailbox = mailbox
        self._descriptor = descriptor
        self._ended = threading.Event()
        if not os.isatty(self._descriptor):
            raise UsageError(
                "operator 'keyboard' needs a terminal to read keys from: run it in one, or use browser"
            )

    def __enter__(self) -> TerminalKeys:
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)  # keys come one by one; Ctrl-C still is what it is
        self._thread = threading.Thread(target=self._listen, name="keyboard", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def _listen(self) -> None:
        keys, writer, places, sequence = Keys(), None, {}, 0
        said: list[Event] = []
        while not self._ended.is_set():
            for key in self._pressed():
                if key is None:
                    return  # the terminal is gone: what was said expires, and the arm holds
                event = keys.press(key, time.monotonic())
                said += [event] if event else []
            if writer is None and (found := self._mailbox()) is not None:
                writer, places = MailboxWriter(found[0]), onto_robot(found[1], name="keyboard")
            if writer is None:
                said.clear()
                continue
            sequence += 1
            ours = keys.axes(time.monotonic())
            axes = np.zeros(writer.box.num_axes, np.float32)
            axes[list(places)] = ours[list(places.values())]
            while said:  # first: an emergency stop is heard though a console has the mailbox
                with contextlib.suppress(UsageError):  # it does, or the ring is full: nothing is said later
                    writer.post(said.pop(0), session=_SESSION)
            with contextlib.suppress(UsageError):
                writer.drive(session=_SESSION, sequence=sequence, held=keys.held, axes=axes)

    def _pressed(self) -> list[str | None]:
        """Keys that came within a moment; a None once the terminal is gone."""
        ready, _, _ = select.select([self._descriptor], [], [], _SEND_S)
        if not ready:
            return []
        try:
            data = os.read(self._descriptor, 64)
        except OSError:
            return [None]
        return list(_SEQUENCE.sub("", data.decode(errors="ignore"))) if data else [None]
