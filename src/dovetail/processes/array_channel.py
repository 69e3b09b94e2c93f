"""Arrays between two processes: a line of JSON and safetensors over a socket pair. Nothing that came in is ever executed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from dovetail.core.errors import one_line
from dovetail.core.types import Array
from dovetail.processes.channel import Gone
from dovetail.processes.wakeup import wait_for

__all__ = ["Frames", "run_child"]

_LENGTHS = struct.Struct("!IQ")


class Frames:
    """One end. Sending waits until the other end takes it; one thread may send while another receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @staticmethod
    def pair() -> tuple[Frames, Frames]:
        ours, theirs = socket.socketpair()
        return Frames(ours), Frames(theirs)

    @staticmethod
    def of(descriptor: int) -> Frames:
        return Frames(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        words = json.dumps(facts).encode()
        # safetensors writes the memory as it lies
        numbers = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
        try:
            self._socket.sendall(_LENGTHS.pack(len(words), len(numbers)) + words)
            self._socket.sendall(numbers)
        except OSError as error:
            raise Gone from error

    def waits(self) -> bool:
        """Whether something has come, be it the end. Never waits."""
        return bool(wait_for(self._socket.fileno(), timeout_s=0.0))

    def receive(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The next one, whenever it comes. Raises Gone once none will."""
        num_words, num_numbers = _LENGTHS.unpack(self._take(_LENGTHS.size))
        facts: dict[str, Any] = json.loads(bytes(self._take(num_words)))
        found = safetensors.numpy.load(bytes(self._take(num_numbers)))
        return facts, {
            name: np.array(array) for name, array in found.items()
        }  # one's own: those cannot be written to

    def close(self) -> None:
        self._socket.close()

    def hang_up(self) -> None:
        """Let whoever receives here, in another thread, know that it is over."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end is gone already
            return

    def _take(self, num_bytes: int) -> bytearray:
        taken = bytearray(num_bytes)
        view, done = memoryview(taken), 0
        while done < num_bytes:
            try:
                got = self._socket.recv_into(view[done:])
            except OSError as error:
                raise Gone from error
            if not got:
                raise Gone
            done += got
        return taken


def run_child(work: Callable[[Frames], None]) -> int:
    """All of a process that works at the other end of the descriptor it was given; returns its exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever started it decides; who has lost them ends
        signal.signal(number, signal.SIG_IGN)
    frames = Frames.of(int(sys.argv[1]))
    try:
        work(frames)
    except Gone:
        return 0  # nobody is left to work for
    except Exception as error:  # a process border: whoever waits is told, and this one is gone
        if os.environ.get("DOVETAIL_DEBUG"):
            traceback.print_exc()
        with contextlib.suppress(Gone):
            frames.send({"error": one_line(error)}, {})
        return 1
    return 0
