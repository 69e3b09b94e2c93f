"""`dovetail console RUN` in a process, started as a user does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page

from support import TESTS

__all__ = ["OpenConsole", "end_console", "start_console"]

_READY = re.compile(r"console at (http://\S+/)\?token=(\S+)\n")


@dataclass(frozen=True)
class OpenConsole:
    """A console that accepts requests."""

    address: str  # http://127.0.0.1:PORT/
    token: str
    process: subprocess.Popen[str]
    run: Path

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1].strip("/"))

    @property
    def address_with_token(self) -> str:
        return f"{self.address}?token={self.token}"

    @property
    def headers(self) -> dict[str, str]:
        """For clients that are not browsers."""
        return {"Authorization": f"Bearer {self.token}"}

    def enter(self, page: Page, path: str = "/") -> Page:
        """Open a page with the token and wait until its scripts have started."""
        page.goto(self.address_with_token)
        if path != "/":
            page.goto(self.address.rstrip("/") + path)
        page.wait_for_selector("body[data-ready]")
        return page


def start_console(
    run: Path, *arguments: str, env: Mapping[str, str] | None = None, trouble: str | None = None
) -> OpenConsole:
    """`trouble`: see `support.troubled_console`."""
    program = ["dovetail.cli"] if trouble is None else ["support.troubled_console", trouble]
    command = [sys.executable, "-m", *program, "console", str(run), "--no-open", *arguments]
    settings = {"OMP_NUM_THREADS": "1", **({} if trouble is None else {"PYTHONPATH": str(TESTS)}), **(env or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings})
    assert process.stdout is not None
    for line in process.stdout:
        if ready := _READY.fullmatch(line):
            return OpenConsole(address=ready[1], token=ready[2], process=process, run=run)
    raise AssertionError(f"the console ended with {process.wait()} before it was ready")


def end_console(console: OpenConsole) -> int:
    if console.process.poll() is None:
        console.process.send_signal(signal.SIGINT)
    try:
        return console.process.wait(15)
    finally:
        console.process.kill()
        assert console.process.stdout is not None
        console.process.stdout.close()
