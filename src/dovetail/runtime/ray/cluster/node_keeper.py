"""Keep a Ray node running on this machine: `python -m dovetail.runtime.ray.cluster.node_keeper FOLDER`, see joining.py.

If the node ends, because the head removed it or has ended, the keeper restarts it until it is in the cluster again. SIGTERM
ends the keeper and everything it has started. It does not import Ray.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from dovetail.core.disk import write_atomic
from dovetail.processes.child import ChildProcess
from dovetail.runtime.ray.cluster.process_marks import MARK, kill_marked, wait_for_end

__all__ = ["PLAN", "STATE", "main"]

PLAN, STATE = "plan.json", "state.json"
_STARTED = "Ray runtime started"
_POLL_S = 0.2
_STOP_S = 15.0
_GRACE_S = 5.0
_PAUSES_S = (1.0, 2.0, 5.0)  # before a restart; the last one repeats


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
            self._write_state("joining" if not joined_once else "lost")
            problem, joined = self._run_node()
            joined_once |= joined
            if self._leaving:
                break
            if not joined_once:
                self._write_state("failed", problem=problem)
                return 1
            num_lost = 0 if joined else num_lost + 1
            self._write_state("lost", problem=problem)
            self._pause(_PAUSES_S[min(num_lost, len(_PAUSES_S) - 1)])
        return 0

    def _run_node(self) -> tuple[str, bool]:
        """Run the node until it ends: the last line of its output, and whether it had joined the cluster."""
        log = self._folder / "node.log"
        with log.open("wb") as output:
            # without draining, which would move roles elsewhere: their run asks them to end
            environment = {MARK: str(self._folder), "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
            node = ChildProcess(
                "Ray's node",
                "ray.scripts.scripts",
                ["start", *self._plan["command"]],
                stdout=output,
                stderr=output,
                environment={**environment, **self._plan["environment"]},
                end_with_parent=True,
            )
        joined = False
        while not node.has_ended and not self._leaving:
            if not joined and _STARTED in log.read_text(errors="replace"):
                joined = True
                self._write_state("joined")
            time.sleep(_POLL_S)
        self._end(node)
        return _end_reason(log.read_text(errors="replace")), joined

    def _end(self, node: ChildProcess) -> None:
        """Let Ray end its processes, then kill those that remain."""
        if not node.has_ended:
            node.terminate()
            node.wait(_STOP_S)
        ours = frozenset({os.getpid()})
        if not wait_for_end(self._folder, seconds=_GRACE_S, keep=ours):
            kill_marked(self._folder, keep=ours)
        node.popen.wait()

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._leaving and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _write_state(self, state: str, *, problem: str = "") -> None:
        state_json: dict[str, Any] = {key: self._plan[key] for key in ("machine", "head_address")}
        state_json |= {"keeper": os.getpid(), "state": state, "problem": problem}
        write_atomic(self._folder / STATE, json.dumps(state_json).encode())


def _end_reason(text: str) -> str:
    """The line of the output that best explains why the node ended."""
    ended = re.search(r"(\w+) \[exit code=(-?\d+)\]", text)
    if ended:
        return f"{ended[1]} ended with {ended[2]}: the connection or the head was lost, or it was killed"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "ERR" in line]
    return (errors or lines or ["no output"])[-1].rpartition(" -- ")[2][:300]


def main(folder: str) -> int:
    return _Keeper(Path(folder)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
