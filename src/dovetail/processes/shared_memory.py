"""Memory without a name that several processes map, and a block of JSON in it that one of them writes."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.core.seqlock import Seqlock
from dovetail.core.types import Array

__all__ = ["Bulletin", "attach", "mapped", "nameless_memory"]


def nameless_memory(num_bytes: int, *, name: str = "dovetail-board") -> int:
    """A descriptor of zeros that several processes can map, and that no file system shows."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile(prefix=f"{name}-") as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor


def mapped(descriptor: int, num_bytes: int, *, write: bool = True) -> memoryview:
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    return memoryview(mmap.mmap(descriptor, num_bytes, access=access))


def attach(pid: int, descriptor: int, num_bytes: int, *, write: bool = False) -> memoryview:
    """Map what another process of the same user holds. Raises OSError if it does not, or if it is smaller."""
    ours = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR if write else os.O_RDONLY)
    try:
        if os.fstat(ours).st_size < num_bytes:
            raise OSError(f"descriptor {descriptor} of process {pid} is not what it was")
        return mapped(ours, num_bytes, write=write)
    except ValueError as error:
        raise OSError(str(error)) from error
    finally:
        os.close(ours)


class Bulletin:
    """A small mapping of plain values, the newest as a whole. One writes, anybody reads."""

    NUM_BYTES = 32768

    def __init__(self, memory: memoryview) -> None:
        data = np.frombuffer(memory, np.uint8, count=self.NUM_BYTES)
        fields: dict[str, Array] = {"length": data[16:24].view(np.int64), "text": data[24:]}
        self._lock = Seqlock(data[:8].view(np.uint64), data[8:12].view(np.uint32), fields)
        self._room = self.NUM_BYTES - 24
        self._version = 0
        self._last: dict[str, Any] = {}

    def write(self, facts: Mapping[str, Any]) -> None:
        text = json.dumps(facts).encode()
        if len(text) > self._room:
            raise ValueError(f"a bulletin of {len(text)} bytes: {self._room} at most")
        self._lock.write({"length": len(text), "text": np.frombuffer(text.ljust(self._room, b"\0"), np.uint8)})

    def read(self) -> dict[str, Any]:
        found = self._lock.read(newer_than=self._version)
        if found is not None:
            self._version, values = found
            self._last = json.loads(values["text"][: int(values["length"][0])].tobytes())
        return self._last
