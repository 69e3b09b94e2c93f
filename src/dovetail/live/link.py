"""Shared memory through which consoles see a run, and through which one of them sends messages to the robot.

    RUN/live.json    the process of the run's first arm (id, start time, boot) and its descriptors of
      board          observations and actions of the control loop, tick by tick; read-only
      status         the rest, at most ten times per second: phase, episode, fault, figures
      mailbox        messages to the robot; one console writes them
    RUN/robots/NAME/live.json    the same for each further arm of a run on Ray, if it is on this machine
    RUN/stop.json    the emergency stop of all arms of the run, see `run_stop`

Another process of the same user attaches through /proc/PID/fd, see `view`. The memory ends with the run's process. A
`live.json` that a killed run left is recognized by its process id, start time and boot.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from dovetail.actor.board import Board, BoardLayout
from dovetail.core.clock import NS_PER_S, boot_id
from dovetail.core.disk import write_atomic
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Episode, Event, Purpose
from dovetail.human.axes import num_drive_axes
from dovetail.human.mailbox import Mailbox
from dovetail.live.mailbox_stop import MailboxStop
from dovetail.live.run_stop import RunStop
from dovetail.processes.identity import process_started
from dovetail.processes.shared_memory import SharedJson, anonymous_memory, map_memory

__all__ = ["LIVE_JSON", "LiveLink", "run_argument", "stop_help"]

LIVE_JSON = "live.json"
VERSION = 3
_WRITE_S = 0.1
_ATTENDED_NS = 3 * NS_PER_S  # a console reports its presence at least once per second
_POLL_S = 0.02
_ESSENTIAL = ("run", "phase", "episode", "fault")
_MAX_TEXT = 2000  # characters of a fault: it must fit into the status together with the rest


class LiveLink:
    """The run's side. After `open()`, consoles can attach.

    `stop` is the emergency stop of the whole run; without it, the link makes its own. `arm` is the arm's name in it.
    `waits`: after a fault the run waits for an acknowledgement even if no console is open. `announce` prints a line in the
    run's own terminal, and `acknowledge_key` is the key that acknowledges there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        robot: RobotSpec,
        stop: RunStop | None = None,
        arm: str = "robot",
        waits: bool = False,
        announce: Callable[[str], None] = lambda line: None,
        acknowledge_key: str | None = None,
    ) -> None:
        self._folder, self._shared_stop, self._arm = folder.absolute(), stop, arm
        self._path = folder.absolute() / LIVE_JSON
        self._robot = robot
        self._waits, self._announce, self._acknowledge_key = waits, announce, acknowledge_key
        self._driven_parts: tuple[str, ...] = ()
        self._cartesian_parts: tuple[str, ...] = ()
        self._mailbox: Mailbox | None = None
        self._stop: RunStop | None = None
        self._mailbox_stop: MailboxStop | None = None
        self._board: dict[str, Any] | None = None
        self._shown: Board | None = None
        self._num_boards = 0  # a new board may have the same layout and descriptor
        self._descriptors: dict[str, int] = {}
        self._status: dict[str, Any] = {}
        self._was_asked = False  # a person, in this episode
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        num_axes = num_drive_axes(self._robot)
        num_bytes = Mailbox.num_bytes(num_axes)
        self._descriptors["mailbox"] = anonymous_memory(num_bytes, name="dovetail-mailbox")
        self._descriptors["status"] = anonymous_memory(SharedJson.NUM_BYTES, name="dovetail-status")
        self._mailbox = Mailbox(num_axes, map_memory(self._descriptors["mailbox"], num_bytes))
        self._shared_status = SharedJson(map_memory(self._descriptors["status"], SharedJson.NUM_BYTES))
        if self._shared_stop is None:
            self._stop = RunStop.create(self._folder, arm=self._arm)
        else:
            self._stop = RunStop.from_descriptor(self._shared_stop.descriptor, arm=self._arm)
        self._stop.join(self._arm)
        self._mailbox_stop = MailboxStop(self._mailbox, self._stop, source=f"console or keyboard of {self._arm}")
        self._write_file()
        self._thread = threading.Thread(target=self._write_status, name="live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._mailbox_stop is not None and self._stop is not None:
            self._mailbox_stop.close()
            self._stop.close()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    @property
    def is_open(self) -> bool:
        return self._mailbox is not None

    @property
    def mailbox(self) -> Mailbox:
        assert self._mailbox is not None, "call open() first"
        return self._mailbox

    @property
    def mailbox_descriptor(self) -> int:
        return self._descriptors["mailbox"]

    @property
    def stop(self) -> RunStop:
        """The emergency stop of the run, as it concerns this arm. Its `descriptor` is for the arm's processes."""
        assert self._stop is not None, "call open() first"
        return self._stop

    # ---- what consoles see

    def show_drive(self, *, driven_parts: Collection[str], cartesian_parts: Collection[str]) -> None:
        """What the console drives: these parts of the robot, or all, and those by inverse kinematics."""
        self._driven_parts, self._cartesian_parts = tuple(driven_parts), tuple(cartesian_parts)
        self._write_file()

    def share_board(self, layout: BoardLayout) -> memoryview:
        """Memory for a board that consoles can read."""
        descriptor = anonymous_memory(layout.num_bytes)
        memory = map_memory(descriptor, layout.num_bytes)
        self.show_board(descriptor, layout)
        os.close(descriptor)
        return memory

    def show_board(self, descriptor: int, layout: BoardLayout) -> None:
        """The control loop uses this board from now on."""
        if "board" in self._descriptors:
            os.close(self._descriptors["board"])
        self._descriptors["board"] = os.dup(descriptor)
        self._board = layout.to_json()
        self._shown = Board(layout, map_memory(self._descriptors["board"], layout.num_bytes))
        self._num_boards += 1
        self._write_file()

    def update(self, **values: Any) -> None:
        """Set plain values of the status. Consoles see them within 0.1 s."""
        self._status = {**self._status, **values}  # a new dict, because another thread writes it to shared memory

    def _write_file(self) -> None:
        values = {
            "version": VERSION,
            "pid": os.getpid(),
            "started": process_started(os.getpid()),
            "boot_id": boot_id(),
            "arm": self._arm,
            "robot": self._robot.to_json(),
            "descriptors": self._descriptors,
            "board": self._board,
            "num_boards": self._num_boards,
            "driven_parts": self._driven_parts,
            "cartesian_parts": self._cartesian_parts,
        }
        write_atomic(self._path, json.dumps(values).encode())

    def _write_status(self) -> None:
        written: Mapping[str, Any] | None = None
        asked = ""
        while not self._ended.wait(_WRITE_S):
            asked = self._announce_request(asked)
            status = self._status
            if status is not written:
                self._write_cut(status)
                written = status

    def _announce_request(self, asked: str) -> str:
        """Print what the control loop asks a person to do, once. The console reads it from the board."""
        shown = self._shown
        request = shown.person_request if shown is not None else ""
        if request and request != asked:
            self._was_asked = True
            self._announce(
                f"{self._arm}: {request} (with the operator's keys, or in the console: "
                f"dovetail console {run_argument(self._folder)})"
            )
        return request

    def announce_end(self, episode: Episode) -> None:
        """Print the result of an episode that a person started: no other line in the terminal shows its end."""
        demonstrated = self._acknowledge_key is not None and episode.purpose is Purpose.DEMO
        if self._was_asked or demonstrated:  # a quick answer to a request is not seen
            seconds = len(episode) / episode.robot.control_hz
            self._announce(f"{self._arm}: {episode.outcome} after {seconds:.1f} s")
        self._was_asked = False

    def _write_cut(self, status: Mapping[str, Any]) -> None:
        """Write as much of the status as fits. An error here must not end the thread: a console would show an old state."""
        essential = {name: _cut(status[name]) for name in _ESSENTIAL if name in status}
        for values in ({**status, **essential}, essential):
            try:
                self._shared_status.write(values)
                return
            except (ValueError, TypeError, RecursionError):  # too long, or not JSON
                continue
        fault = status.get("fault")
        self._shared_status.write({"fault": _cut(str(fault))} if fault else {})

    # ---- what consoles send

    @property
    def attended(self) -> bool:
        """Whether a console is open."""
        seen_ns = self.mailbox.writer_ns
        return seen_ns > 0 and time.monotonic_ns() - seen_ns < _ATTENDED_NS

    @property
    def stop_requested(self) -> bool:
        """Whether a console has asked the run to end."""
        return self.mailbox.newest(Event.STOP) > 0

    @property
    def fault(self) -> str | None:
        """The fault that waits for an acknowledgement."""
        fault: str | None = self._status.get("fault")
        return fault

    @property
    def waits(self) -> bool:
        return self._waits or self.attended

    def wait_after_faults(self, *, acknowledge_key: str) -> None:
        """A person is at the terminal who can acknowledge a fault, although no console is open."""
        self._waits, self._acknowledge_key = True, acknowledge_key

    def was_stopped(self, since: int) -> bool:
        """Whether an emergency stop was pressed for this arm after `since`, a `stop.position`."""
        return self.mailbox.emergency or self.stop.last_press(self._arm) >= since

    def acknowledge(self) -> None:
        """Acknowledge the fault, and release this arm from emergency stops so far."""
        self.stop.acknowledge(arm=self._arm)

    def wait_for_acknowledgement(self, fault: str, *, since: int, should_stop: Callable[[], bool]) -> bool:
        """Wait until a person has acknowledged the fault; False if the run is to end instead. The arm does not move.

        Any source of acknowledgements counts: the console, the keyboard, `dovetail acknowledge`. `since` is `stop.position`
        as the episode began: an acknowledgement after an emergency stop in the episode counts, even if it came before the
        fault.
        """
        stop, arm = self.stop, self._arm
        first = stop.position
        if stop.last_press(arm) >= since:
            first = stop.last_press(arm)
        here = f"with key {self._acknowledge_key}, " if self._acknowledge_key else ""
        self._announce(
            f"stopped: {fault}. Acknowledge it {here}in the console or with "
            f"`dovetail acknowledge {run_argument(self._folder)}` to continue, or press Ctrl-C to end the run"
        )
        self.update(fault=fault)
        try:
            while stop.emergency or self.mailbox.emergency or stop.last_acknowledgement(arm) < first:
                if should_stop():
                    return False
                time.sleep(_POLL_S)
        finally:
            self.update(fault=None)
        self._announce("acknowledged, continuing")
        return True

    def announce_stop(self) -> None:
        """Print how to stop the arm. For robots on the real clock, before they move."""
        self._announce(stop_help(self._folder))


def stop_help(folder: Path) -> str:
    return (
        f"STOP all arms: Ctrl-C here, `dovetail stop {run_argument(folder)}` in any terminal, STOP in the console, or the "
        "stop button of an operator's device"
    )


def run_argument(folder: Path) -> str:
    """How commands name the run."""
    return folder.name if folder.absolute().parent == Path("runs").absolute() else str(folder)


def _cut(value: Any) -> Any:
    return value[:_MAX_TEXT] + " ..." if isinstance(value, str) and len(value) > _MAX_TEXT else value
