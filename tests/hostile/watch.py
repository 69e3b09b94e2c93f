"""Notices every access to the files of a folder, through inotify, and every connection to an address.

Access times would not do: few systems keep them.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import struct
from pathlib import Path

_ACCESS, _MODIFY, _ATTRIB, _CLOSE_WRITE, _OPEN = 0x1, 0x2, 0x4, 0x8, 0x20
_MOVED, _CREATE, _DELETE = 0xC0, 0x100, 0x200
_ALL = _ACCESS | _MODIFY | _ATTRIB | _CLOSE_WRITE | _OPEN | _MOVED | _CREATE | _DELETE
_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Watches folders, not what is in their subfolders. Access through a hard link elsewhere is not seen."""

    def __init__(self, *folders: Path) -> None:
        self._descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._descriptor >= 0, "this test needs inotify"
        for folder in folders:
            assert _libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _ALL) >= 0

    def events(self) -> list[str]:
        found = []
        while True:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return found
            while data:
                _, mask, _, length = struct.unpack_from("iIII", data)
                found.append(f"{mask:x} {data[16 : 16 + length].rstrip(bytes(1)).decode()}")
                data = data[16 + length :]

    def close(self) -> None:
        os.close(self._descriptor)


class Listener:
    """An address that no command may connect to."""

    def __init__(self) -> None:
        self._sock = socket.create_server(("127.0.0.1", 0), backlog=16)
        self._sock.setblocking(False)

    @property
    def address(self) -> str:
        host, port = self._sock.getsockname()
        return f"{host}:{port}"

    def connected(self) -> bool:
        """Whether someone has connected since the last call."""
        try:
            self._sock.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@functools.cache
def forbidden() -> Listener:
    """The address in hostile configs."""
    return Listener()
