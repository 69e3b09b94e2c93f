"""One of a robot host's processes, as its supervisor sees it: asked, waited for, and mourned in one line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.core.errors import FailureError
from dovetail.processes.channel import Channel, Gone

__all__ = ["STOP_S", "RoleProcess"]

STOP_S = 0.5  # nobody is waited for any longer once the run is to end
_LOOK_S = 0.02


class RoleProcess:
    """Runs `python -m dovetail.robot_host.process_main NAME`, which alone is given the descriptors."""

    def __init__(
        self, name: str, descriptors: Mapping[str, int], *, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.name = name
        self.is_ready = False
        self._should_stop = should_stop
        self._error: str | None = None  # what it died of, as it said itself
        self._num_owed = 0  # replies that nobody waits for any more
        self.channel, theirs = Channel.pair()
        given = {**descriptors, "channel": theirs.fileno()}
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "dovetail.robot_host.process_main", name, json.dumps(given)],
                pass_fds=tuple(given.values()),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                # a group of its own: what a terminal sends to ours (Ctrl-C, Ctrl-Z) must not reach the control loop
                process_group=0,
            )
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def is_dead(self) -> bool:
        return self.popen.poll() is not None

    @property
    def was_killed(self) -> bool:
        """By somebody else: it had nothing to say itself. A crash, of a driver say, is its own doing."""
        return self.popen.poll() in (-signal.SIGKILL, -signal.SIGTERM) and self._error is None

    def tell(self, message: Mapping[str, Any]) -> None:
        """What it does not reply to. The dead are told nothing: whoever waits for them will see."""
        with contextlib.suppress(Gone):
            self.channel.send(message)

    def ask(self, message: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Send, and wait for the reply. Raises FailureError, with a reason, where there will be none."""
        self.tell(message)
        self._num_owed += 1
        until_s = time.monotonic() + timeout_s
        stop_s: float | None = None
        while self._num_owed:
            now_s = time.monotonic()
            if stop_s is None and self._should_stop():
                stop_s = now_s + STOP_S
            if now_s > (until_s if stop_s is None else min(until_s, stop_s)):
                raise FailureError(f"the {self.name} process does not reply")
            reply = self.next(timeout_s=_LOOK_S)
            if reply is not None:
                self._num_owed -= 1
        assert reply is not None
        return reply

    def next(self, *, timeout_s: float) -> dict[str, Any] | None:
        """What it says next, if it does in time. Raises FailureError if it is dying or dead."""
        try:
            said = self.channel.receive(timeout_s=timeout_s)
        except Gone:
            raise FailureError(self.obituary()) from None
        if said is not None and "error" in said:
            self._error = said["error"]
            raise FailureError(self.obituary())
        return said

    def obituary(self) -> str:
        """What it died of, in one line."""
        with contextlib.suppress(Gone, OSError):
            while (last := self.channel.receive(timeout_s=0.0)) is not None:
                self._error = last.get("error", self._error)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(STOP_S)  # its descriptors close a moment before it is gone
        code, died = self.popen.poll(), f"the {self.name} process has died"
        if self._error:
            return f"{died}: {self._error}"
        if code is None:
            return f"the {self.name} process has fallen silent"
        if code < 0:
            return f"{died}: killed by {signal.Signals(-code).name}"
        return f"{died} (exit status {code})"

    def kill(self, why: str) -> None:
        self._error = self._error or why
        self.popen.kill()
        self.popen.wait()

    def end(self, *, until_s: float) -> bool:
        """Wait for it to end by itself, or kill it; returns whether it did end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(max(0.0, until_s - time.monotonic()))
        ended = self.popen.poll() is not None
        if not ended:
            self.kill("it did not end when told to")
        self.channel.close()
        return ended
