"""The terminal as an operator: a motion key takes over, and the arm moves while the key repeats. Letters send events.

A terminal reports pressed keys but not released ones. So a press moves the arm for 0.25 s, and for as long as the terminal
repeats the key. After a takeover the arm holds still until Enter gives it back to the policy. If the terminal closes, the
arm holds. The run's process reads the keys and sends them to the control loop through the mailbox, like the browser.

Tab chooses the next arm or base. For an arm with joint actions, digits, comma and period choose the joint that w and s move;
0 is Cartesian, if its geometry is known.
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

from dovetail.core.contracts import Task
from dovetail.core.errors import UsageError
from dovetail.core.problem_report import ProblemReport
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Event, HumanInput, Observation
from dovetail.human.browser import console_mapping
from dovetail.human.drive_settings import DriveConfig
from dovetail.human.mailbox import EXPIRY_S, Control, Mailbox, MailboxWriter
from dovetail.human.selections import AXES, Chooser, selections

__all__ = [
    "ACKNOWLEDGE_KEY",
    "JUDGING_HELP",
    "KeyParser",
    "KeyboardConfig",
    "KeyboardOperator",
    "Keys",
    "TerminalKeys",
    "key_help",
]

ACKNOWLEDGE_KEY = "c"
JUDGING_HELP = (
    "t start, y success, n failure, p pause, c acknowledge, Esc EMERGENCY STOP. An evaluation allows no takeover"
)
ESC = "\x1b"
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
    ACKNOWLEDGE_KEY: Event.ACKNOWLEDGE,
    ESC: Event.EMERGENCY,
}
_NEW_EPISODE = (Event.START, Event.SUCCESS, Event.FAILURE, Event.DISCARD, Event.RESET)
# Arrows, Home, End, Tab, Insert, Delete, pages and function keys, with or without Shift, Alt and Ctrl. Esc before anything
# else is an emergency stop, also in `Esc O P`, which F1 sends: a person may have typed it.
_SEQUENCE = re.compile(
    r"\x1b\[(?:[A-FHZ]|1;[2-8][A-DFHP-S]|(?:[1-8]|1[1-57-9]|2[01345689]|3[1-4])(?:;[2-8])?~|\[[A-E])"
)
_BEGINNING = re.compile(r"\x1b(?:\[(?:\[|1;[2-8]?|[1-8]|[12][0-9]|3[1-4]|(?:[2-8]|[12][0-9]|3[1-4]);[2-8]?)?)?")
_REST_S = 0.02  # longest time until the rest of a sequence arrives
_REPEAT_S = 0.7  # longest delay before a key repeats
_NEXT_S = 0.15  # longest time between repetitions
_SEND_S = 0.05
_SESSION = 1
_LOST = (
    "keyboard: no key arrived in time, and the arm holds. Release all keys for a second and press one again; "
    "t continues without you"
)


def key_help(robot: RobotSpec, config: DriveConfig) -> str:
    """The keys that drive this robot."""
    options = selections(robot, config, name="keyboard")
    drive = ["hold w or s to move a joint"] if any(option.joint for option in options) else []
    if any(not option.joint for option in options):
        drive.insert(0, "hold w s a d r f to move, i k j l u o to rotate")
    choose = []
    if num_joints := max(option.joint for option in options):
        whole = {option.part for option in options if not option.joint}
        both = any(option.part in whole for option in options if option.joint)
        digits = "1" if num_joints == 1 else f"1 to {min(num_joints, 9)}"
        choose.append(f"{digits}, comma and period choose the joint" + ("; 0 all of the arm" if both else ""))
    parts = list(dict.fromkeys(option.part for option in options))
    if len(parts) > 1:
        choose.append(f"Tab chooses {' or '.join(parts)}")
    gripper = AXES.index("gripper")
    if any(gripper in option.axes.values() for option in options):
        choose.append("space closes and opens the gripper")
    return (
        f"{', '.join(drive)}; {'; '.join([*choose, 'Enter returns control to the policy'])}. "
        "t start, p pause, y success, n failure, x discard, z reset, c acknowledge, Esc EMERGENCY STOP"
    )


class KeyboardConfig(DriveConfig):
    """The run's terminal."""

    BASIC: ClassVar[Collection[str]] = ("speed",)

    speed: float = Field(default=0.5, gt=0.0, le=1.0)
    """Speed while a key is pressed, relative to the robot's limits."""


class KeyboardOperator:
    """The operator at the run's terminal, who also gives the demonstrations. `TerminalKeys` reads the keys."""

    Config: ClassVar[type[KeyboardConfig]] = KeyboardConfig
    name = "keyboard"
    demonstrates: ClassVar[bool] = True

    def __init__(self, config: KeyboardConfig, *, robot: RobotSpec, task: Task | None = None) -> None:
        selections(robot, config, name=self.name)  # raises for an unsuitable robot
        self._mapping = console_mapping(robot, config, name=self.name)

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        pass

    def poll(self, observation: Observation) -> HumanInput:
        return HumanInput()

    @property
    def drives(self) -> Array | None:
        """Mask [A] of the axes that the keys drive; None: all."""
        return self._mapping.driven

    def release_pose(self) -> None:
        """The keys arrive through the mailbox, whose reader knows the pose."""

    def check_device(self) -> None:
        """Read the geometry of the arm, if there is one. Raises UsageError if it is missing."""
        self._mapping.load()


class KeyParser:
    """Splits what a terminal sends into keys. An Esc that belongs to no complete known sequence is the key Esc."""

    def __init__(self) -> None:
        self._pending = ""

    @property
    def is_waiting(self) -> bool:
        """Whether a sequence has begun: call `flush` unless its rest arrives soon."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[str]:
        """The keys so far. Sequences of other keys are dropped."""
        text, self._pending = self._pending + data.decode("latin-1"), ""
        keys: list[str] = []
        while text:
            if found := _SEQUENCE.match(text):
                text = text[found.end() :]
            elif text[0] == ESC and _BEGINNING.fullmatch(text):
                self._pending, text = text, ""
            else:
                keys.append(text[0])
                text = text[1:]
        return keys

    def flush(self) -> list[str]:
        """The keys of a sequence whose rest has not arrived."""
        text, self._pending = self._pending, ""
        return list(text)


class Keys:
    """Converts key presses and their times to `held` and the axes x, y, z, rx, ry, rz, gripper."""

    def __init__(self) -> None:
        self.held = False
        self.num_presses = 0  # of keys that move the arm, without repetitions
        self._grip = 0.0  # unchanged until space is pressed
        self._last_grip = 1.0  # so that the first press closes
        self._until_s: dict[str, float] = {}
        self._last_s: dict[str, float] = {}

    def press(self, key: str, now_s: float) -> Event | None:
        key = key.lower()
        if key in MOVES:
            repeats = now_s - self._last_s.get(key, -1e9) < _REPEAT_S
            self._last_s[key] = now_s
            self._until_s[key] = now_s + (_NEXT_S if repeats else EXPIRY_S)
            self.num_presses += not (repeats and self.held)
            self.held = True
        elif key == " ":
            self._grip = self._last_grip = -self._last_grip
            self.num_presses += 1
            self.held = True
        elif key in ("\r", "\n"):
            self.held = False
            self.rest()
        event = EVENTS.get(key)
        if event in _NEW_EPISODE:
            self.rest()
        return event

    def rest(self, *, same_gripper: bool = False) -> None:
        """Stop all motion, for example before the keys move something else. The gripper keeps its state. The next press of
        space closes it, unless it is the `same_gripper` and is closed."""
        self._until_s.clear()
        self._last_s.clear()  # another key ends the repetition of the first
        self._grip = 0.0
        if not same_gripper:
            self._last_grip = 1.0

    def axes(self, now_s: float) -> Array:
        axes = np.zeros(len(AXES), np.float32)
        for key, until_s in self._until_s.items():
            axis, way = MOVES[key]
            axes[axis] += way * (now_s < until_s)
        axes[6] = self._grip
        return axes


class TerminalKeys:
    """Context manager that reads the terminal and writes to the mailbox, once there is one. It may change.

    Esc calls `on_emergency` at once, also before there is a mailbox.
    """

    def __init__(
        self,
        mailbox: Callable[[], tuple[Mailbox, RobotSpec] | None],
        *,
        config: DriveConfig | None = None,
        descriptor: int = 0,
        on_emergency: Callable[[], object] = lambda: None,
        announce: Callable[[str], object] = lambda line: None,
    ) -> None:
        """`announce` is called with a line that says what the keys move, or why they do not."""
        self._mailbox, self._on_emergency, self._announce = mailbox, on_emergency, announce
        self._config = config or DriveConfig()
        self._parser, self._keys = KeyParser(), Keys()
        self._writer: MailboxWriter | None = None
        self._chooser: Chooser | None = None
        self._sequence = self._num_presses = 0
        self._events: list[Event] = []
        self._emergency = False  # pressed, and not yet passed on
        self._is_lost = False
        self._report = ProblemReport("the thread that reads the keyboard")
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
        while not self._ended.is_set():
            try:
                pressed = self._pressed()
                if pressed is None:
                    return  # the terminal is gone: the last command expires and the arm holds
                for key in pressed:
                    self._choose(key)
                    event = self._keys.press(key, time.monotonic())
                    self._emergency |= event is Event.EMERGENCY
                    self._events += [event] if event else []
                self._pass_on_emergency()
                self._send()
                self._announce_loss()
            except Exception as error:  # a thread that ends would hear no later Esc
                self._report(error)
                self._ended.wait(_SEND_S)

    def _choose(self, key: str) -> None:
        """Choose what the motion keys move."""
        if (chooser := self._chooser) is None:
            return
        before = chooser.chosen
        if key == "\t":
            chooser.move_part(1)
        elif key in (",", "."):
            chooser.move(1 if key == "." else -1)
        elif key.isdecimal() and not chooser.choose(int(key)):
            self._keys.rest(same_gripper=True)  # the person expects another joint to move
            self._announce(f"keyboard: no joint {key}: {chooser.describe()}")
        if chooser.chosen is not before:
            self._keys.rest(same_gripper=chooser.chosen.part == before.part)
            self._announce(f"keyboard: {chooser.chosen.label}")

    def _pass_on_emergency(self) -> None:
        if self._emergency:
            try:
                self._on_emergency()
                self._emergency = False
            except Exception as error:  # the mailbox still gets it, and the next round tries again
                self._report(error)

    def _send(self) -> None:
        found = self._mailbox()
        if found is not None and (
            self._writer is None or self._writer.box is not found[0]
        ):  # an arm, or the next one
            self._chooser = Chooser(selections(found[1], self._config, name="keyboard"))
            self._writer = MailboxWriter(found[0])
        if self._writer is None:
            self._events.clear()
            return
        self._sequence += 1
        keys, axes = self._keys, np.zeros(self._writer.box.num_axes, np.float32)
        assert self._chooser is not None
        chosen = self._chooser.chosen.axes
        axes[list(chosen)] = keys.axes(time.monotonic())[list(chosen.values())]
        while self._events:  # first: an emergency stop works even if a console has the mailbox
            with contextlib.suppress(UsageError):  # a console has the mailbox, or it is full
                self._writer.post(self._events.pop(0), session=_SESSION)
        with contextlib.suppress(UsageError):
            new_press = keys.num_presses != self._num_presses
            self._writer.drive(
                session=_SESSION, sequence=self._sequence, held=keys.held, axes=axes, new_press=new_press
            )
            self._num_presses = keys.num_presses

    def _announce_loss(self) -> None:
        """Keys that repeat are no new press, so a person who only holds one would wait for ever."""
        lost = self._writer is not None and self._writer.box.control is Control.HOLDING
        if lost and not self._is_lost:
            self._announce(_LOST)
        self._is_lost = lost

    def _pressed(self) -> list[str] | None:
        """Keys that were pressed; None once the terminal is gone."""
        timeout_s = _REST_S if self._parser.is_waiting else _SEND_S
        try:
            ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
            data = os.read(self._descriptor, 4096) if ready else None
        except OSError:
            return None
        if data is None:
            return self._parser.flush()
        return self._parser.feed(data) if data else None
