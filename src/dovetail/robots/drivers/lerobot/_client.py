"""Start a bridge process, or find the one that runs, and talk to it over its socket.

All processes of a run use one folder, which only this user can read: the socket, the token, a lock and the log. The first
client starts the bridge. It outlives the client, because it must hold the arm if the client is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

from dovetail.core.disk import is_private_folder, user_folder
from dovetail.core.errors import RobotError, one_line, shown
from dovetail.core.types import Array
from dovetail.robots.drivers.lerobot.dovetail_bridge.wire import Message, WireError, receive, send
from dovetail.robots.drivers.lerobot.settings import BridgeConfig

__all__ = ["BridgeLink", "BridgeProcess", "NoBridge", "is_time"]

_HERE = Path(__file__).parent
_PROTOCOL = 2
_READY_S = 30.0  # python and numpy on a busy machine; LeRobot is imported later
_HELLO_S = 5.0
_STOP_HELLO_S = 1.0
_LOG_TAIL = 400
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_CODE = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; sys.path.append({here!r}); "
    "from dovetail_bridge.main import main; main()"
)


class NoBridge(RobotError):
    """No bridge runs. `crashed`: one was killed and left its socket behind."""

    def __init__(self, text: str, *, crashed: bool) -> None:
        super().__init__(text)
        self.crashed = crashed


class LinkLost(RobotError):
    """The connection ended."""


class BridgeProcess:
    """The bridge of one device: where its socket is, and how to start it. The constructor does no I/O."""

    def __init__(self, config: BridgeConfig, settings: dict[str, Any]) -> None:
        self._config = config
        self._settings = settings
        self._folder = user_folder() / f"lerobot-{config.bridge_id(settings)}"

    @property
    def socket_path(self) -> Path:
        return self._folder / "socket"

    @property
    def what(self) -> str:
        return f"the LeRobot process of '{self._settings['device']}'"

    def connect(self, role: str, *, start: bool) -> BridgeLink:
        """Connect to the bridge. With `start`, start it if none runs; else raise NoBridge."""
        with contextlib.suppress(NoBridge):
            return self._connect(role)
        if not start:
            return self._connect(role)
        _make_folder(self._folder.parent)
        _make_folder(self._folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(self._folder / "lock", flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process of the run may be starting it
            with contextlib.suppress(NoBridge):
                return self._connect(role)
            self._start()
            return self._connect(role)
        finally:
            os.close(lock)

    def _connect(self, role: str) -> BridgeLink:
        hello_s = _STOP_HELLO_S if role == "stop" else _HELLO_S
        for folder in (self._folder.parent, self._folder):
            if folder.exists() and not is_private_folder(folder):  # in /tmp, another user may have made it
                raise RobotError(f"{folder} should be a folder that only you can read. Remove it")
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(hello_s)
            link.connect(str(self.socket_path))
            _check_peer(link)
            token = (self._folder / "token").read_text()
        except (FileNotFoundError, ConnectionRefusedError) as error:
            link.close()
            crashed = isinstance(error, ConnectionRefusedError)
            raise NoBridge(
                f"{self.what} {'has crashed' if crashed else 'does not run'}", crashed=crashed
            ) from error
        except OSError as error:
            link.close()
            raise RobotError(f"{self.what} does not accept connections: {one_line(error)}") from error
        found = BridgeLink(link, what=self.what, log=self.log_tail)
        hello = Message("hello", {"token": token, "role": role, "protocol": _PROTOCOL})
        try:
            pid = found.request(hello, timeout_s=hello_s).fields.get("pid")
        except LinkLost as error:  # it is just ending
            raise NoBridge(f"{self.what} has crashed", crashed=True) from error
        except RobotError:
            found.close()
            raise
        found.pid = pid if isinstance(pid, int) else 0
        return found

    def _start(self) -> None:
        token = secrets.token_hex(32)
        _write_private(self._folder / "token", token)
        read_fd, write_fd = os.pipe()
        given = {
            "token": token,
            "folder": str(self._folder),
            "socket": str(self.socket_path),
            "settings": self._settings,
            "ready_fd": write_fd,
        }
        # our own variables of Python would break another interpreter
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        env |= {
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            "DOVETAIL_BRIDGE": json.dumps(given),
            **self._config.env,
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(self._folder / "log", flags, 0o600)
        try:
            command = [os.path.expanduser(self._config.python), "-c", _CODE.format(here=str(_HERE))]
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, pass_fds=[write_fd]
                )
            finally:
                os.close(write_fd)
                os.close(log)
            line = _read_line(read_fd, _READY_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)  # it forks, and its first process ends at once
            if process.poll() is None:
                process.kill()
                process.wait()
        except OSError as error:
            raise RobotError(
                f"cannot start {self.what} with python '{self._config.python}': {one_line(error)}"
            ) from error
        finally:
            os.close(read_fd)
        try:
            answer = json.loads(line)
        except ValueError:
            raise RobotError(f"{self.what} did not start within {_READY_S:g} s.{self.log_tail()}") from None
        if "error" in answer:
            raise RobotError(f"{self.what} did not start: {answer['error']}")

    def log_tail(self) -> str:
        """The end of the bridge's log, for an error message."""
        try:
            text = (self._folder / "log").read_text(errors="replace")[-_LOG_TAIL:]
        except OSError:
            return ""
        return f" The end of {self._folder / 'log'}: {' '.join(text.split())}" if text.strip() else ""


class BridgeLink:
    """One connection to a bridge. Any problem closes it and is a RobotError."""

    def __init__(self, link: socket.socket, *, what: str, log: Callable[[], str]) -> None:
        self._link = link
        self._what = what
        self._log = log
        self.pid = 0

    def request(
        self,
        message: Message,
        *,
        timeout_s: float,
        buffer_for: Callable[[str, tuple[int, ...], str], Array | None] | None = None,
    ) -> Message:
        """Send a message and wait for its answer. An answer with an error leaves the connection open."""
        deadline_s = time.monotonic() + timeout_s
        try:
            self._link.settimeout(timeout_s)
            send(self._link, message)
            answer = receive(self._link, deadline_s=deadline_s, buffer_for=buffer_for)
        except TimeoutError:
            self.close()
            raise RobotError(f"{self._what} has not answered '{message.type}' for {timeout_s:g} s") from None
        except (OSError, WireError) as error:
            self.close()
            raise LinkLost(f"{self._what} is lost: {shown(one_line(error), max_chars=300)}") from error
        if answer is None:
            self.close()
            raise LinkLost(f"{self._what} has closed the connection.{self._log()}")
        if answer.type == "error":
            text = answer.fields.get("error")
            raise RobotError(shown(text, max_chars=1000) if isinstance(text, str) else f"{self._what} failed")
        if answer.type != "ok":
            self.close()
            raise RobotError(f"{self._what} answered '{message.type}' with '{shown(answer.type, max_chars=40)}'")
        return answer

    @property
    def is_open(self) -> bool:
        return self._link.fileno() >= 0

    def close(self) -> None:
        self._link.close()


def is_time(value: Any) -> TypeGuard[int]:
    """Whether a field of an answer is a time in ns. Python's integers have no limit, but the arithmetic with them has."""
    return type(value) is int and 0 <= value < 1 << 62


def _make_folder(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not is_private_folder(folder):
        raise RobotError(f"{folder} should be a folder that only you can read. Remove it")


def _check_peer(link: socket.socket) -> None:
    """The bridge must be a process of this user: its answer to a STOP counts."""
    raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(raw)[1] != os.getuid():
        raise PermissionError("it belongs to another user")


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "w") as stream:
        stream.write(text)


def _read_line(file: int, timeout_s: float) -> str:
    """One line of a pipe. Empty: nothing came, or the other end was closed."""
    text, deadline_s = b"", time.monotonic() + timeout_s
    while not text.endswith(b"\n"):
        readable, _, _ = select.select([file], [], [], max(deadline_s - time.monotonic(), 0.0))
        new = os.read(file, 4096) if readable else b""
        if not new:
            break
        text += new
    return text.decode(errors="replace")
