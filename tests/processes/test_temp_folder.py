"""Temporary folders of killed processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dovetail.processes import temp_folder
from dovetail.processes.temp_folder import LockedTempFolder, remove_stale

PREFIX = "dovetail-test-"
OWNER = f"""
import time; from dovetail.processes.temp_folder import LockedTempFolder
folder = LockedTempFolder("{PREFIX}"); (folder.path / "inside").mkdir(); print(folder.path, flush=True); time.sleep(60)
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start_owner(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env={**os.environ, "TMPDIR": str(parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_next_start_removes_the_folder_of_a_killed_process_and_no_other(parent: Path) -> None:
    killed, stale = start_owner(parent)
    alive, used = start_owner(parent)
    assert stale.is_dir() and used.is_dir()  # the second start left the first alone
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    folder = LockedTempFolder(PREFIX)
    assert set(parent.iterdir()) == {used, folder.path}
    assert (used / "inside").is_dir()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.close()
    alive.kill()
    alive.wait()
    remove_stale(PREFIX)
    assert list(parent.iterdir()) == []


def test_links_folders_without_lock_and_open_folders_stay(
    parent: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / ".lock").touch()
    (parent / f"{PREFIX}link").symlink_to(elsewhere)
    (parent / f"{PREFIX}new").mkdir(mode=0o700)  # its lock is not made yet
    (parent / f"{PREFIX}public").mkdir()
    (parent / f"{PREFIX}public").chmod(0o777)  # others can write here
    (parent / f"{PREFIX}public/.lock").touch()
    (parent / f"{PREFIX}pipe").mkdir(mode=0o700)
    (parent / f"{PREFIX}pipe/.lock").symlink_to(elsewhere / ".lock")
    (parent / f"{PREFIX}file").touch()
    before = sorted(parent.iterdir())
    remove_stale(PREFIX)
    assert sorted(parent.iterdir()) == before
    assert (elsewhere / ".lock").exists()


def test_links_inside_a_stale_folder_are_removed_and_not_followed(
    parent: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").touch()
    stale = parent / f"{PREFIX}stale"
    stale.mkdir(mode=0o700)
    (stale / ".lock").touch()
    (stale / "link").symlink_to(elsewhere)
    remove_stale(PREFIX)
    assert not stale.exists()
    assert (elsewhere / "kept").exists()


def test_folder_that_is_removed_before_it_is_locked_is_made_again(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take a new folder for a stale one in the moment before it is locked."""
    lock, made = temp_folder.fcntl.flock, []

    def remove_first(descriptor: int, operation: int) -> None:
        made.append(descriptor)
        if len(made) == 1:
            remove_stale(PREFIX)
        lock(descriptor, operation)

    monkeypatch.setattr(temp_folder.fcntl, "flock", remove_first)
    folder = LockedTempFolder(PREFIX)
    monkeypatch.undo()
    assert folder.path.is_dir() and (folder.path / ".lock").is_file()
    folder.close()
    assert not folder.path.exists()
