"""Keeps a node of Ray's running on this machine: `python -m dovetail.runtime.ray.cluster.node_keeper FOLDER`, see joining.py.

A node that ends, because the head sent it away or is gone, is started anew until it is in the cluster again. SIGTERM ends
the keeper, and all that it has started. It does not import Ray.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dovetail.core.disk import write_atomic
from dovetail.runtime.ray.cluster.process_marks import MARK, await_end, end_all

__all__ = ["PLAN", "STATE", "main"]

PLAN, STATE = "plan.json", "state.json"
_STARTED = "Ray runtime started"
_LOOK_S = 0.2
_STOP_S = 15.0
_GRACE_S = 5.0
_PAUSES_S = (1.0, 2.0, 5.0)  # before it is started anew; then always the last
_PR_SET_PDEATHSIG = 1


class _Keeper:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan = json.loads((folder / PLAN).read_text())
        self._leaving = False
        signal.signal(signal.SIGTERM, self._leave)

    def _leave(self, *_: object) -> None:
        self._leaving = True

    def run(self) -> int:
        num_lost = 0
        joined_once = False
        while not self._leaving:
            self._tell("joining" if not joined_once else "lost")
            said, joined = self._node()
            joined_once |= joined
            if self._leaving:
                break
            if not joined_once:
                self._tell("failed", problem=said)
                return 1
            num_lost = 0 if joined else num_lost + 1
            self._tell("lost", problem=said)
            self._pause(_PAUSES_S[min(num_lost, len(_PAUSES_S) - 1)])
        return 0

    def _node(self) -> tuple[str, bool]:
        """One life of the node: what it said last, and whether it was in the cluster."""
        log = self._folder / "node.log"
        with log.open("wb") as output:
            node = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *self._plan["command"]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment(),
                preexec_fn=_die_with_parent,
            )
        joined = False
        while node.poll() is None and not self._leaving:
            if not joined and _STARTED in log.read_text(errors="replace"):
                joined = True
                self._tell("joined")
            time.sleep(_LOOK_S)
        self._end(node)
        return _last_words(log.read_text(errors="replace")), joined

    def _end(self, node: subprocess.Popen[bytes]) -> None:
        """Ray ends its own; whoever is left after that has no say."""
        if node.poll() is None:
            node.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(_STOP_S)
        ours = frozenset({os.getpid()})
        if not await_end(self._folder, seconds=_GRACE_S, but=ours):
            end_all(self._folder, but=ours)
        node.wait()

    def _environment(self) -> dict[str, str]:
        given: dict[str, str | None] = self._plan["environment"]
        # nobody is told to move elsewhere: roles are asked to end by the run that they belong to
        ours = {**os.environ, MARK: str(self._folder), "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0", **given}
        return {name: value for name, value in ours.items() if value is not None}

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._leaving and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def _tell(self, state: str, *, problem: str = "") -> None:
        facts: dict[str, Any] = {key: self._plan[key] for key in ("machine", "meeting")}
        facts |= {"keeper": os.getpid(), "state": state, "problem": problem}
        write_atomic(self._folder / STATE, json.dumps(facts).encode())


def _die_with_parent() -> None:
    """A keeper that is killed takes its node along, which then ends its own."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _last_words(text: str) -> str:
    """The line that says most about why it ended."""
    ended = re.search(r"(\w+) \[exit code=(-?\d+)\]", text)
    if ended:
        return f"{ended[1]} ended with {ended[2]}: its link was cut, the head is gone, or it was killed"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "ERR" in line]
    return (telling or lines or ["it said nothing"])[-1].rpartition(" -- ")[2][:300]


def main(folder: str) -> int:
    return _Keeper(Path(folder)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
