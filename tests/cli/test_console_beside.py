"""The console beside a run: it ends with the run, however that ends, and its own end harms nobody."""

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
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(_console_process, "say", lines.append)
    return lines


def test_its_address_is_told_and_it_ends_with_the_run(finished, said):
    with ConsoleProcess(finished, port=None) as console:
        eventually(lambda: any(line.startswith("console at http://127.0.0.1:") for line in said))
        pid = console.pid
        assert not is_gone(pid)
    assert is_gone(pid)
    assert len(said) == 1  # an end that was meant is not told


def test_its_death_is_told_and_harms_nobody(finished, said):
    with ConsoleProcess(finished, port=None) as console:
        eventually(lambda: said)
        os.kill(console.pid, signal.SIGKILL)
        told = eventually(lambda: said[1:])
    assert "The run goes on" in told[0]
    assert "dovetail console" in told[0]


def test_a_run_that_is_killed_takes_its_console_along(finished):
    run = subprocess.Popen([sys.executable, "-c", RUN, str(finished)], stdout=subprocess.PIPE, text=True)
    pid = int(run.stdout.readline())
    run.kill()
    run.wait()
    run.stdout.close()
    eventually(lambda: is_gone(pid))


def test_keys_need_a_terminal_and_leave_the_console_alone(cli, toy):
    for more, reason in (((), "needs a terminal"), (("--console",), "leave one of them out")):
        result = cli("run", toy, "operator={type: keyboard}", "--quiet", *more)
        assert result.code == UsageError.exit_code
        assert reason in result.line
        assert not Path("runs").exists() or not list(Path("runs").iterdir())
