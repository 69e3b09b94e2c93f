"""The console beside a run: a process of its own, so that a web server never shares an interpreter with the learner.

It ends with the run, however that ends: its standard input is a pipe from the run, and it listens for the end of that. Its
own death harms nobody, and is told.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from dovetail.cli._terminal import say

__all__ = ["ConsoleProcess"]

_END_S = 2.0


class ConsoleProcess:
    """`with ConsoleProcess(folder, port=None):` what it says, such as its address, is said here too."""

    def __init__(self, folder: Path, *, port: int | None) -> None:
        self._folder = folder
        self._port = () if port is None else ("--port", str(port))
        self._ending = False

    def __enter__(self) -> ConsoleProcess:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, "console", str(self._folder), *self._port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,  # Ctrl-C is for the run, which ends this
        )
        self._reader = threading.Thread(target=self._listen, name="console", daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_END_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stdout is not None
        last = ""
        with self._process.stdout as lines:
            for line in lines:
                last = line.strip() or last
                if line.startswith("console at "):
                    say(line.rstrip())
        status = self._process.wait()
        if not self._ending:
            why = f": {last}" if last else ""
            say(
                f"the console has ended (exit status {status}){why}. The run goes on; open it again with: "
                f"dovetail console {self._folder}"
            )


def main() -> None:
    """In that process: end with whoever started it, and be the command line until then."""

    def listen() -> None:
        os.read(0, 1)  # nothing is ever written there
        os._exit(0)

    threading.Thread(target=listen, name="run", daemon=True).start()
    from dovetail.cli.main import entry

    entry()


if __name__ == "__main__":
    main()
