"""Entry point of the bridge: `main()` is called under LeRobot's interpreter with its settings in the environment.

The process leaves the process group of the one that started it, so that it outlives a control process that is killed, and
holds the arm. stdin is /dev/null: nothing can ask a question. The parent gets one line on a pipe when the socket listens.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import signal
import socket
import sys
import time
from typing import Any

__all__ = ["main"]

VARIABLE = "DOVETAIL_BRIDGE"
_LOCK_S = 2.0


def main() -> None:
    given = json.loads(os.environ.pop(VARIABLE))
    if os.fork():  # the parent of this process need not wait for the bridge's end
        os._exit(0)
    os.setsid()
    _leave_real_time()
    ready = os.fdopen(given["ready_fd"], "w")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        locks = [_lock(given["folder"], path) for path in _device_files(given["settings"]["config"])]
        from .server import Server  # after the fork: numpy starts threads

        listener = _listen(given["socket"])
    except Exception as error:
        ready.write(json.dumps({"error": " ".join(str(error).split())}) + "\n")
        ready.close()
        raise
    server = Server(listener, token=given["token"], settings=given["settings"])
    signal.signal(signal.SIGTERM, lambda *_: server.close())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the run, which then stops the arm
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ready.write(json.dumps({"pid": os.getpid()}) + "\n")
    ready.close()
    server.serve()
    with contextlib.suppress(OSError):
        os.unlink(given["socket"])
    logging.info("the bridge ends")
    sys.stdout.flush()
    sys.stderr.flush()
    del locks
    os._exit(0)  # a hanging call of the device must not keep the process


def _leave_real_time() -> None:
    """The control process may start this one. With its real-time priority, a device that waits without a pause would block a
    core. Threads that use a device which sleeps take a priority of their own (`priority`)."""
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _listen(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # of a bridge that was killed; the starter holds the lock of this folder
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(16)
    return listener


def _device_files(config: Any) -> list[str]:
    """The device files that a config names, such as the port of a bus."""
    if isinstance(config, dict):
        return [path for value in config.values() for path in _device_files(value)]
    path = os.path.realpath(config) if isinstance(config, str) else ""  # follows links to a port
    return [path] if path.startswith("/dev/") else []


def _lock(folder: str, path: str) -> int:
    """Two bridges with different settings must not use one serial port."""
    name = hashlib.sha256(path.encode()).hexdigest()[:16]
    lock = os.open(
        os.path.join(os.path.dirname(folder), f"device-{name}.lock"),
        os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
        0o600,
    )
    deadline_s = time.monotonic() + _LOCK_S
    while not _try_lock(lock):
        if time.monotonic() < deadline_s:  # a bridge that is ending
            time.sleep(0.05)
            continue
        pid = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        raise RuntimeError(
            f"{path} is used by another LeRobot bridge, process {pid}. End that run first"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
