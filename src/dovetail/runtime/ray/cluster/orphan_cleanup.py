"""A temporary folder for a local Ray, and the process that cleans up after it: this module, with the folder as argument.

The standard input of the cleanup process closes when the driver ends in any way. The process then gives Ray's processes time
to end and to stop the arms, kills the rest and removes the folder. Without it some processes would stay for a minute, and
the folder forever. It does not import Ray.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dovetail.processes.child import ChildProcess
from dovetail.runtime.ray.cluster.process_marks import MARK, kill_marked, wait_for_end

__all__ = ["main", "temp_folder"]

_GRACE_S = 8.0
_CLEANUP_S = 60.0


@contextlib.contextmanager
def temp_folder() -> Iterator[Path]:
    """A new folder with a short path, because sockets have a path limit. Processes with its mark end with it."""
    path = Path(tempfile.mkdtemp(prefix="dvt-"))
    cleanup = ChildProcess(
        "the cleanup process",
        "dovetail.runtime.ray.cluster.orphan_cleanup",
        [str(path)],
        environment={MARK: None},
        stdin_pipe=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        new_session=True,  # it must survive the end of the terminal
    )
    try:
        yield path
    finally:
        cleanup.close(timeout_s=_CLEANUP_S)
        shutil.rmtree(path, ignore_errors=True)


def main(folder: Path) -> None:
    while os.read(0, 1024):
        pass
    if not wait_for_end(folder, seconds=_GRACE_S):
        kill_marked(folder)
        wait_for_end(folder, seconds=_GRACE_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
