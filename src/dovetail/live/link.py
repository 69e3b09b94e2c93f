"""The link of a running run to the outside: what others may see of it, and where they may say something.

    RUN/live.json    who runs (process, start, boot), and the descriptors under which that process holds
      board          what the control loop sees and does, tick by tick: read only
      bulletin       the rest, ten times a second at most: phase, episode, fault, figures
      mailbox        what a person says to the robot: written by one console

Another process of the same user attaches through /proc/PID/fd: see `live_view`. Nothing is left when the run's process
ends, however it ends; a `live.json` that a killed one left is told by its process id, start time and boot.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.actor.board import BoardLayout
from dovetail.core.clock import NS_PER_S, boot_id
from dovetail.core.disk import write_atomic
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Event
from dovetail.human.mailbox import Mailbox
from dovetail.processes.shared_memory import Bulletin, mapped, nameless_memory

__all__ = ["LIVE_JSON", "LiveLink", "process_started"]

LIVE_JSON = "live.json"
VERSION = 1
_WRITE_S = 0.1
_ATTENDED_NS = 3 * NS_PER_S  # a console says that it is there at least once a second
_LOOK_S = 0.02
_MOST_OF_ALL = ("run", "phase", "episode", "fault")


def process_started(pid: int) -> int | None:
    """When a process started, in ticks since boot: with its id, it names a process for good. None: there is none."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if after_name[0] in "ZX" else int(after_name[19])


class LiveLink:
    """The run's side. `open()` shows it; whoever acts then shares its board, and tells what is going on.

    `waits`: after a fault the run waits for somebody to acknowledge it, whether or not somebody is there at the moment.
    `announce` says a line to whoever sits at the run's own terminal.
    """

    def __init__(
        self,
        folder: Path,
        *,
        robot: RobotSpec,
        waits: bool = False,
        announce: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._path = folder.absolute() / LIVE_JSON
        self._robot = robot
        self._waits, self._announce = waits, announce
        self._mailbox: Mailbox | None = None
        self._board: dict[str, Any] | None = None
        self._num_boards = 0  # a new one may look like the old: same layout, same descriptor
        self._descriptors: dict[str, int] = {}
        self._facts: dict[str, Any] = {}
        self._ended = threading.Event()
        self._seen_to = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        num_axes = self._robot.action.shape[0]
        num_bytes = Mailbox.num_bytes(num_axes)
        self._descriptors["mailbox"] = nameless_memory(num_bytes, name="dovetail-mailbox")
        self._descriptors["bulletin"] = nameless_memory(Bulletin.NUM_BYTES, name="dovetail-bulletin")
        self._mailbox = Mailbox(num_axes, mapped(self._descriptors["mailbox"], num_bytes))
        self._bulletin = Bulletin(mapped(self._descriptors["bulletin"], Bulletin.NUM_BYTES))
        self._show()
        self._thread = threading.Thread(target=self._write, name="live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    @property
    def is_open(self) -> bool:
        return self._mailbox is not None

    @property
    def mailbox(self) -> Mailbox:
        assert self._mailbox is not None, "open() comes first"
        return self._mailbox

    @property
    def mailbox_descriptor(self) -> int:
        return self._descriptors["mailbox"]

    # ---- what is shown

    def share_board(self, layout: BoardLayout) -> memoryview:
        """Memory for a board that others may see."""
        descriptor = nameless_memory(layout.num_bytes)
        memory = mapped(descriptor, layout.num_bytes)
        self.show_board(descriptor, layout)
        os.close(descriptor)
        return memory

    def show_board(self, descriptor: int, layout: BoardLayout) -> None:
        """From now on this board is the one that is acted on."""
        if "board" in self._descriptors:
            os.close(self._descriptors["board"])
        self._descriptors["board"] = os.dup(descriptor)
        self._board = layout.to_json()
        self._num_boards += 1
        self._show()

    def tell(self, **facts: Any) -> None:
        """Plain values, for whoever watches; the newest of each name is shown, a moment later."""
        self._facts = {**self._facts, **facts}  # never changed in place: another thread writes it down

    def _show(self) -> None:
        facts = {
            "version": VERSION,
            "pid": os.getpid(),
            "started": process_started(os.getpid()),
            "boot_id": boot_id(),
            "robot": self._robot.to_json(),
            "descriptors": self._descriptors,
            "board": self._board,
            "num_boards": self._num_boards,
        }
        write_atomic(self._path, json.dumps(facts).encode())

    def _write(self) -> None:
        written: Mapping[str, Any] | None = None
        while not self._ended.wait(_WRITE_S):
            facts = self._facts
            if facts is not written:
                try:
                    self._bulletin.write(facts)
                except ValueError:  # too much of it: what a person must know goes first
                    self._bulletin.write({name: facts[name] for name in _MOST_OF_ALL if name in facts})
                written = facts

    # ---- what is heard

    @property
    def attended(self) -> bool:
        """Whether a console is there."""
        heard_ns = self.mailbox.writer_ns
        return heard_ns > 0 and time.monotonic_ns() - heard_ns < _ATTENDED_NS

    @property
    def stop_asked(self) -> bool:
        """Whether somebody wants the run to end."""
        return self.mailbox.newest(Event.STOP) > 0

    @property
    def fault(self) -> str | None:
        """What is waited for somebody to acknowledge."""
        fault: str | None = self._facts.get("fault")
        return fault

    @property
    def waits(self) -> bool:
        return self._waits or self.attended

    def acknowledge(self) -> None:
        """Somebody has seen to it, and says so elsewhere than in a console; an emergency stop is taken back where it was."""
        self._seen_to.set()

    def await_acknowledgement(self, fault: str, *, should_stop: Callable[[], bool]) -> bool:
        """The arm stands still until a person has seen the fault; False if the run is to end instead."""
        emergency = self.mailbox.newest(Event.EMERGENCY)
        # said before the fault was shown, an acknowledgement is of something else; unless it answers an emergency stop.
        # One by somebody who is not the writer has no number of its own: the next thing that is said has the same
        first = emergency if self.mailbox.emergency else self.mailbox.num_said + 1
        self._announce(f"stopped: {fault}. It waits for an acknowledgement in the console (Ctrl-C ends the run)")
        self._seen_to.clear()
        self.tell(fault=fault)
        try:
            while self.mailbox.emergency or not (
                self._seen_to.is_set() or self.mailbox.newest(Event.ACKNOWLEDGE) >= first
            ):
                if should_stop():
                    return False
                time.sleep(_LOOK_S)
        finally:
            self.tell(fault=None)
        self._announce("acknowledged: going on")
        return True
