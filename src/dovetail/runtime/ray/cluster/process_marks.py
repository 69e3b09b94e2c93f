"""Finding everything that was started for a node, by a mark in its environment: however it has been detached since."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["MARK", "await_end", "end_all", "marked"]

MARK = "DOVETAIL_CLUSTER_NODE"  # its value is the node's folder
_LOOK_S = 0.1
_STOP_S = 5.0  # that an arm's processes have to stop it, and to write what it did


def marked(folder: Path) -> set[int]:
    """Living processes that carry the mark."""
    mark = f"{MARK}={folder}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # another's, or gone by now; a dead one's is empty
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    return found


def await_end(folder: Path, *, seconds: float, but: frozenset[int] = frozenset()) -> bool:
    """Whether all of them have ended by themselves."""
    deadline = time.monotonic() + seconds
    while marked(folder) - but:
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def end_all(folder: Path, *, but: frozenset[int] = frozenset()) -> None:
    """An arm's own processes last: once nobody is above them they stop the arm, which one that is killed cannot."""
    _kill(pid for pid in marked(folder) - but if not _moves_an_arm(pid))
    await_end(folder, seconds=_STOP_S, but=but)
    _kill(marked(folder) - but)


def _moves_an_arm(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"dovetail.robot_host.process_main" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
