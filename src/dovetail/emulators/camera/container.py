"""JPEG pictures with time stamps in a NUT container, written while they come."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Self

import av

__all__ = ["ContainerWriter"]

_TIME_BASE = Fraction(1, 1_000_000)


class ContainerWriter:
    """Calls `write(bytes)` with each part of the container."""

    def __init__(self, write: Callable[[bytes], object], *, width: int, height: int) -> None:
        self._container = av.open(_Output(write), "w", format="nut", options={"flush_packets": "1"})
        self._stream = self._container.add_stream("mjpeg", rate=30)
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuvj422p"
        self._stream.time_base = _TIME_BASE
        self._container.start_encoding()
        self._last = -1

    def write(self, jpeg: bytes, stamp_ns: int) -> None:
        packet = av.Packet(jpeg)
        packet.stream, packet.time_base = self._stream, _TIME_BASE
        self._last = max(stamp_ns // 1000, self._last + 1)  # a container's time never goes back: it stands still
        packet.pts = packet.dts = self._last
        packet.is_keyframe = True
        self._container.mux(packet)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._container.close()
        except OSError:  # the client is gone
            return


class _Output:
    """A file that cannot seek."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def write(self, data: bytes) -> int:
        self._write(bytes(data))
        return len(data)
