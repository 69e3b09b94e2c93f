"""Other local users can read nothing: neither tokens nor live data, in files, arguments or output."""

import os
import stat
from pathlib import Path

import httpx
import pytest

from dovetail.console.run_files import ConsoleLock
from dovetail.core.errors import RunFolderError, StoreError, UsageError
from dovetail.policies.remote.handshake import make_token, read_token
from support.console_process import end_console, start_console
from support.live_arm import live_arm


def others_may(path):
    """What users other than the owner may do, as a mode."""
    return stat.S_IMODE(path.stat().st_mode) & 0o077


def test_run_folder_and_its_live_files_are_private(tmp_path):
    old = os.umask(0)
    try:
        with live_arm(tmp_path / "one") as arm:
            assert others_may(arm.run) == 0  # so nobody else reaches the files in it
            assert others_may(arm.run / "stop.json") == 0
            lock = ConsoleLock(arm.run)
            lock.acquire()
            assert others_may(arm.run / ".console.lock") == 0
            assert others_may(make_token(arm.run / "serve.token")) == 0
    finally:
        os.umask(old)


def test_token_is_in_no_argument_and_in_no_file_of_the_run(console):
    httpx.get(console.address_with_token)
    arguments = Path(f"/proc/{console.process.pid}/cmdline").read_bytes()
    assert console.token.encode() not in arguments
    for path in console.run.rglob("*"):
        if path.is_file():
            assert console.token.encode() not in path.read_bytes(), path


def test_output_has_the_token_once(tmp_path, recorded):
    opened = start_console(recorded(tmp_path))
    httpx.get(opened.address_with_token)
    httpx.get(f"{opened.address}nowhere?token={opened.token}", headers=opened.headers)
    opened.process.send_signal(2)
    rest = opened.process.stdout.read()
    end_console(opened)
    assert opened.token not in rest  # only the line with the address had it


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644])
def test_token_file_that_others_can_read_is_refused(tmp_path, mode):
    file = tmp_path / "token"
    file.write_text("a" * 40)
    file.chmod(mode)
    with pytest.raises(UsageError, match="chmod 600"):
        read_token(file)


def test_huge_token_file_is_refused(tmp_path):
    file = tmp_path / "token"
    file.touch(0o600)
    os.truncate(file, 1 << 40)  # sparse
    with pytest.raises(UsageError, match="more than 4096"):
        read_token(file)


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo"])
def test_console_lock_changes_no_file_outside_the_run(tmp_path, kind):
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.write_text("precious")
    lock = run / ".console.lock"
    if kind == "symlink":
        lock.symlink_to(outside)
    elif kind == "hard link":
        lock.hardlink_to(outside)
    else:
        os.mkfifo(lock)
    with pytest.raises((RunFolderError, StoreError)):
        ConsoleLock(run).acquire()
    assert outside.read_text() == "precious"
