"""Find all processes of a Ray node by a mark in their environment, also those that have detached themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["MARK", "kill_marked", "marked_processes", "wait_for_end"]

MARK = "DOVETAIL_CLUSTER_NODE"  # its value is the node's folder
_POLL_S = 0.1
_STOP_S = 5.0  # time for an arm's processes to stop it and to write the last steps


def marked_processes(folder: Path) -> set[int]:
    """Ids of processes with the mark of this folder."""
    mark = f"{MARK}={folder}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # another user's, or ended meanwhile
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    return found


def wait_for_end(folder: Path, *, seconds: float, keep: frozenset[int] = frozenset()) -> bool:
    """Wait, and return whether all but `keep` have ended by themselves within this time."""
    deadline = time.monotonic() + seconds
    while marked_processes(folder) - keep:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def kill_marked(folder: Path, *, keep: frozenset[int] = frozenset()) -> None:
    """Kill an arm's own processes last: they stop the arm after their supervisor has ended."""
    _kill(pid for pid in marked_processes(folder) - keep if not _moves_an_arm(pid))
    wait_for_end(folder, seconds=_STOP_S, keep=keep)
    _kill(marked_processes(folder) - keep)


def _moves_an_arm(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"dovetail.robot_host.process_main" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
