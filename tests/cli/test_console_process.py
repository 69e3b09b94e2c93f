"""The console process of a run: it ends with the run, and its own end does not stop the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.cli import _console_process
from dovetail.cli._console_process import ConsoleProcess
from dovetail.core.errors import UsageError

RUN = """
import sys, time
from pathlib import Path
from dovetail.cli._console_process import ConsoleProcess
with ConsoleProcess(Path(sys.argv[1]), port=None) as console:
    print(console.pid, flush=True)
    time.sleep(60)
"""


def eventually(what, *, within_s=30.0):
    until_s = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return found


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def printed(monkeypatch):
    lines = []
    monkeypatch.setattr(_console_process, "say", lines.append)
    return lines


@pytest.mark.extended
def test_address_is_printed_and_console_ends_with_the_run(finished, printed):
    with ConsoleProcess(finished, port=None) as console:
        eventually(lambda: any(line.startswith("console at http://127.0.0.1:") for line in printed))
        pid = console.pid
        assert not is_gone(pid)
    assert is_gone(pid)
    assert len(printed) == 1  # a normal end prints nothing


@pytest.mark.extended
def test_killed_console_is_reported_and_the_run_continues(finished, printed):
    with ConsoleProcess(finished, port=None) as console:
        eventually(lambda: printed)
        os.kill(console.pid, signal.SIGKILL)
        lines = eventually(lambda: printed[1:])
    assert "The run continues" in lines[0]
    assert "dovetail console" in lines[0]


def test_console_ends_when_the_run_is_killed(finished):
    run = subprocess.Popen([sys.executable, "-c", RUN, str(finished)], stdout=subprocess.PIPE, text=True)
    pid = int(run.stdout.readline())
    run.kill()
    run.wait()
    run.stdout.close()
    eventually(lambda: is_gone(pid))


@pytest.mark.parametrize(
    "operator", ["{type: keyboard}", "{type: several, operators: [{type: keyboard, part: arm}]}"]
)
def test_keyboard_needs_a_terminal_and_excludes_the_console(cli, toy, operator):
    for more, reason in (((), "needs a terminal"), (("--console",), "use only one of them")):
        result = cli("run", toy, f"operator={operator}", "--quiet", *more)
        assert result.code == UsageError.exit_code
        assert reason in result.line
        assert not Path("runs").exists() or not list(Path("runs").iterdir())
