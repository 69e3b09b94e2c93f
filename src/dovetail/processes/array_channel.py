"""Arrays between two processes: a JSON object and safetensors over a socket pair. Received data is never executed."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import safetensors.numpy

from dovetail.core.types import Array
from dovetail.processes.channel import ChannelClosed, SocketEnd
from dovetail.processes.wakeup import wait_for

__all__ = ["ArrayChannel"]

_LENGTHS = struct.Struct("!IQ")
_NO_ARRAYS: Mapping[str, Array] = MappingProxyType({})


class ArrayChannel(SocketEnd):
    """`send` blocks until the other process receives. One thread may send while another receives."""

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, Array] = _NO_ARRAYS) -> None:
        text = json.dumps(message).encode()
        # safetensors writes memory as it is, so it must be contiguous
        data = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
        try:
            self._socket.sendall(_LENGTHS.pack(len(text), len(data)) + text)
            self._socket.sendall(data)
        except OSError as error:
            raise ChannelClosed from error

    def has_data(self) -> bool:
        """Whether `receive` has something to read, or the other end is closed. Does not block."""
        return wait_for(self._socket.fileno(), timeout_s=0.0)

    def receive(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Wait for the next message. Raises ChannelClosed when none will come."""
        text_size, data_size = _LENGTHS.unpack(self._read(_LENGTHS.size))
        message: dict[str, Any] = json.loads(bytes(self._read(text_size)))
        arrays = safetensors.numpy.load(bytes(self._read(data_size)))
        return message, {name: np.array(array) for name, array in arrays.items()}  # copies: those are read-only

    def _read(self, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        view, done = memoryview(data), 0
        while done < num_bytes:
            try:
                got = self._socket.recv_into(view[done:])
            except OSError as error:
                raise ChannelClosed from error
            if not got:
                raise ChannelClosed
            done += got
        return data
