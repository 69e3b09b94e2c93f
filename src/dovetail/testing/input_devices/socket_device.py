"""A Unix socket that stands for an input device, with a file for its state."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["PLUGINS", "SocketDevice", "connect", "mask", "state_file"]

PLUGINS = "dovetail.testing.input_devices"  # where a config finds the operators of these devices
_STATE = ".state"


class SocketDevice:
    """A socket with a state file. Its readers see an end of file once the device is unplugged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket: socket.socket | None = None
        self._readers: list[socket.socket] = []
        self._late: set[socket.socket] = set()  # readers whose queue was full
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.plug_in()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unplug()

    def plug_in(self) -> None:
        """Create the device."""
        self._write_state()
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with _address(self.path) as address:
            made.bind(address)
        made.listen(128)
        self._socket = made

    def unplug(self) -> None:
        """Remove the device. Its readers fail at their next read."""
        with self._lock:
            if self._socket is not None:
                for path in (self.path, state_file(self.path)):
                    path.unlink(missing_ok=True)
                for one in (self._socket, *self._readers):
                    one.close()
                self._socket = None
                self._readers.clear()
                self._late.clear()

    def send(self, data: bytes) -> None:
        """Send to each process that has opened the device by now. One that does not read loses it."""
        with self._lock:
            if self._socket is None:
                raise OSError(errno.ENODEV, "the emulated device is unplugged")
            self._accept(self._socket)
            for reader in list(self._readers):
                try:
                    if reader in self._late and (note := self._after_loss()):
                        reader.send(note)
                    self._late.discard(reader)
                    reader.send(data)
                except BlockingIOError:
                    self._late.add(reader)
                except OSError:  # it has closed the device
                    self._readers.remove(reader)
                    self._late.discard(reader)
                    reader.close()

    def reader_pids(self) -> set[int]:
        """Processes that have the device open."""
        with self._lock:
            if self._socket is not None:
                self._accept(self._socket)
            return {_peer_pid(reader) for reader in self._readers if _is_connected(reader)}

    def num_readers(self) -> int:
        """How often the device is open."""
        with self._lock:
            if self._socket is not None:
                self._accept(self._socket)
            return sum(_is_connected(reader) for reader in self._readers)

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                reader, _ = listening.accept()
                reader.setblocking(False)
                self._readers.append(reader)

    def _after_loss(self) -> bytes:
        """What a reader gets instead of the data that it has lost."""
        return b""

    def _state(self) -> Mapping[str, Any]:
        raise NotImplementedError

    def _write_state(self) -> None:
        file = state_file(self.path)
        file.with_suffix(".new").write_text(json.dumps(self._state()))
        file.with_suffix(".new").replace(file)


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Address of a socket, which must be shorter than many paths are."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> int:
    """Open the device. Reads of the descriptor do not block."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as one,
        _address(path) as address,
    ):
        one.connect(address)
        return one.detach()


def _peer_pid(connection: socket.socket) -> int:
    pid: int = struct.unpack("@3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _is_connected(connection: socket.socket) -> bool:
    """A reader sends nothing, so that data means the end of its connection."""
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def state_file(path: Path) -> Path:
    return path.with_name(path.name + _STATE)


def mask(codes: Sequence[int], size: int) -> bytes:
    return sum(1 << code for code in codes).to_bytes(size, "little")
