"""Signals ask the arms to stop, whatever the main thread does. A lost terminal does not keep a run from saving its state."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.live.run_stop import RunStop
from support.waiting import wait_until

STUCK = """
import ctypes, sys
from pathlib import Path
from dovetail.cli._stop import StopFlag
from dovetail.live.run_stop import RunStop
with StopFlag() as flag, RunStop.create(Path(sys.argv[1])) as stop, flag.connected(stop):
    print("ready", flush=True)
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # never returns, and no signal ends it
"""
SAVES = """
import sys, time
from pathlib import Path
from dovetail.cli._stop import StopFlag
with StopFlag() as flag:
    print("ready", flush=True)
    while not flag():
        print("progress", flush=True)
        time.sleep(0.01)
    for _ in range(20):  # the run still prints while it saves its state
        print("saving", flush=True)
        sys.stderr.write("saving\\n")
        time.sleep(0.01)
    Path(sys.argv[1]).write_text("saved")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_signal_stops_the_arms_while_the_main_thread_is_stuck(tmp_path: Path, name: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", STUCK, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        with RunStop.attach(tmp_path) as stop:
            assert not stop.ending
            process.send_signal(signal.Signals[name])
            wait_until(lambda: stop.ending)
            assert stop.end_source == name
    finally:
        process.kill()
        process.communicate()


def test_lost_terminal_lets_the_run_save_its_state(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", SAVES, str(saved)])
    try:
        text = b""
        while b"progress" not in text:
            text += os.read(terminal, 1000)
    finally:
        os.close(terminal)  # the kernel sends SIGHUP
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert saved.read_text() == "saved"


def test_run_that_was_started_with_nohup_ignores_sighup(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SAVES, str(tmp_path / "saved")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.stdout is not None and process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    process.stdout.readline()
    assert process.poll() is None and not (tmp_path / "saved").exists()
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert (tmp_path / "saved").exists()


def test_second_ctrl_c_aborts_but_a_lost_terminal_does_not(tmp_path: Path) -> None:
    code = SAVES.replace("range(20)", "range(100)")
    for second, expected in ((signal.SIGINT, False), (signal.SIGHUP, True)):
        saved = tmp_path / second.name
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(saved)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        while process.stdout.readline() != "saving\n":
            pass
        process.send_signal(second)
        process.communicate()
        assert saved.exists() == expected
