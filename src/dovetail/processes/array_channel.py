"""Arrays between two processes: a JSON object and safetensors over a socket pair. Received data is never executed."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dovetail.core.errors import StoreError
from dovetail.core.tensor_files import parse_tensors, tensor_blocks
from dovetail.core.types import Array
from dovetail.processes.channel import ChannelClosed, SocketEnd, parse_message
from dovetail.processes.wakeup import wait_for

__all__ = ["ArrayChannel"]

_LENGTHS = struct.Struct("!IQ")
_PIECE = 64 << 20  # bytes
_NO_ARRAYS: Mapping[str, Array] = MappingProxyType({})


class ArrayChannel(SocketEnd):
    """`send` blocks until the other process receives. One thread may send while another receives."""

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, Array] = _NO_ARRAYS) -> None:
        text = json.dumps(message).encode()
        blocks = tensor_blocks(arrays)
        try:
            self._socket.sendall(_LENGTHS.pack(len(text), sum(map(len, blocks))) + text)
            for block in blocks:
                self._socket.sendall(block)
        except OSError as error:
            raise ChannelClosed from error

    def has_data(self) -> bool:
        """Whether `receive` has something to read, or the other end is closed. Does not block."""
        return wait_for(self._socket.fileno(), timeout_s=0.0)

    def receive(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Wait for the next message. Raises ChannelClosed when none will come."""
        text_size, data_size = _LENGTHS.unpack(self._read(_LENGTHS.size))
        message = parse_message(self._read(text_size))
        try:
            return message, parse_tensors(self._read(data_size), name="a message")
        except StoreError as error:  # not a message of ours
            raise ChannelClosed from error

    def _read(self, num_bytes: int) -> bytearray:
        """Read so many bytes. Memory is allocated in pieces, as the data arrives."""
        data = bytearray()
        while len(data) < num_bytes:
            piece = bytearray(min(_PIECE, num_bytes - len(data)))
            self._fill(memoryview(piece))
            data = data + piece if data else piece
        return data

    def _fill(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            try:
                got = self._socket.recv_into(view[done:])
            except OSError as error:
                raise ChannelClosed from error
            if not got:
                raise ChannelClosed
            done += got
