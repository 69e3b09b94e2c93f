"""The terminal as an operator: a motion key takes over, and the arm moves while the key repeats. Letters send events.

A terminal reports pressed keys but not released ones. So after a takeover the arm holds still until Enter gives it back to
the policy. If the terminal closes, the arm holds. The run's process reads the keys and sends them to the control loop
through the mailbox, like the browser.
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
from collections.abc import Callable, Collection
from typing import ClassVar

import numpy as np
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.contracts import Task
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Event, HumanInput, Observation
from dovetail.human.device import map_axes
from dovetail.human.mailbox import Mailbox, MailboxWriter

__all__ = ["HELP", "KeyboardConfig", "KeyboardOperator", "Keys", "TerminalKeys"]

HELP = (
    "drive with w s a d r f (move), i k j l u o (rotate), space (gripper); Enter returns control to the policy. "
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
_SEQUENCE = re.compile(r"\x1b(\[[0-9;]*.|O.)")  # an arrow or function key, not Esc
_FIRST_S = 0.55  # longest delay before a key repeats
_NEXT_S = 0.15  # longest time between repetitions
_SEND_S = 0.05
_SESSION = 1


class KeyboardConfig(Config):
    """The run"s terminal."""

    BASIC: ClassVar[Collection[str]] = ("speed",)

    speed: float = Field(default=0.5, gt=0.0, le=1.0)
    """Speed while a key is pressed, relative to the robot's limits."""


class KeyboardOperator:
    """The operator at the run's terminal, who also gives the demonstrations. `TerminalKeys` reads the keys."""

    Config: ClassVar[type[KeyboardConfig]] = KeyboardConfig
    name = "keyboard"
    demonstrates: ClassVar[bool] = True

    def __init__(self, config: KeyboardConfig, *, robot: RobotSpec, task: Task | None = None) -> None:
        map_axes(robot, name=self.name)  # raises for an unsuitable robot

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        pass

    def poll(self, observation: Observation) -> HumanInput:
        return HumanInput()


class Keys:
    """Converts key presses and their times to `held` and the axes x, y, z, rx, ry, rz, gripper."""

    def __init__(self) -> None:
        self.held = False
        self._grip = 0.0  # unchanged until space is pressed
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
    """Context manager that reads the terminal and writes to the mailbox, once there is one."""

    def __init__(self, mailbox: Callable[[], tuple[Mailbox, RobotSpec] | None], *, descriptor: int = 0) -> None:
        self._mailbox = mailbox
        self._descriptor = descriptor
        self._ended = threading.Event()
        if not os.isatty(self._descriptor):
            raise UsageError("operator 'keyboard' needs a terminal. Run in a terminal, or use operator=browser")

    def __enter__(self) -> TerminalKeys:
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)  # read single keys; Ctrl-C still interrupts
        self._thread = threading.Thread(target=self._listen, name="keyboard", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def _listen(self) -> None:
        keys, writer, axis_map, sequence = Keys(), None, {}, 0
        events: list[Event] = []
        while not self._ended.is_set():
            for key in self._pressed():
                if key is None:
                    return  # the terminal is gone: the last command expires and the arm holds
                event = keys.press(key, time.monotonic())
                events += [event] if event else []
            if writer is None and (found := self._mailbox()) is not None:
                writer, axis_map = MailboxWriter(found[0]), map_axes(found[1], name="keyboard")
            if writer is None:
                events.clear()
                continue
            sequence += 1
            ours = keys.axes(time.monotonic())
            axes = np.zeros(writer.box.num_axes, np.float32)
            axes[list(axis_map)] = ours[list(axis_map.values())]
            while events:  # first: an emergency stop works even if a console has the mailbox
                with contextlib.suppress(UsageError):  # a console has the mailbox, or it is full
                    writer.post(events.pop(0), session=_SESSION)
            with contextlib.suppress(UsageError):
                writer.drive(session=_SESSION, sequence=sequence, held=keys.held, axes=axes)

    def _pressed(self) -> list[str | None]:
        """Keys that were pressed; None once the terminal is gone."""
        ready, _, _ = select.select([self._descriptor], [], [], _SEND_S)
        if not ready:
            return []
        try:
            data = os.read(self._descriptor, 64)
        except OSError:
            return [None]
        return list(_SEQUENCE.sub("", data.decode(errors="ignore"))) if data else [None]
