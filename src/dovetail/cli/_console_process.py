"""Run the console in another process, so that the web server does not share an interpreter with the learner.

Its standard input is a pipe from the run, which closes when the run ends in any way; then the console ends. If the console
ends first, the run continues and prints a line.
"""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import TracebackType

from dovetail.cli._terminal import say
from dovetail.processes.child import ChildProcess, exit_with_parent

__all__ = ["ConsoleProcess"]

_STOP_S = 2.0


class ConsoleProcess:
    """`with ConsoleProcess(folder, port=None):` prints the console's address."""

    def __init__(self, folder: Path, *, port: int | None) -> None:
        self._folder = folder
        self._port = () if port is None else ("--port", str(port))
        self._ending = False

    def __enter__(self) -> ConsoleProcess:
        self._process = ChildProcess(
            "the console",
            __name__,
            ["console", str(self._folder), *self._port],
            stdin_pipe=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, name="console", daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        self._process.close(timeout_s=_STOP_S)
        self._reader.join(_STOP_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.popen.stdout is not None
        last = ""
        with self._process.popen.stdout as lines:
            for line in lines:
                last = line.strip() or last
                if line.startswith("console at "):
                    say(line.rstrip())
        self._process.popen.wait()
        if not self._ending:
            if not self._process.was_killed:
                self._process.error = last or None
            reopen = f"dovetail console {self._folder}"
            say(f"{self._process.exit_reason()}. The run continues; open the console again with: {reopen}")


def main() -> None:
    """The console process: the command line, until the run ends."""
    exit_with_parent()
    from dovetail.cli.main import entry

    entry()


if __name__ == "__main__":
    main()
