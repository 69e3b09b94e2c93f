"""Anonymous memory that several processes map, and a JSON object in such memory that one of them writes."""

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

__all__ = ["SharedJson", "anonymous_memory", "attach_memory", "map_memory"]


def anonymous_memory(num_bytes: int, *, name: str = "dovetail-board") -> int:
    """Descriptor of zeroed memory that several processes can map. It has no file, so nothing remains after a kill."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile(prefix=f"{name}-") as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor


def map_memory(descriptor: int, num_bytes: int, *, write: bool = True) -> memoryview:
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    return memoryview(mmap.mmap(descriptor, num_bytes, access=access))


def attach_memory(pid: int, descriptor: int, num_bytes: int, *, write: bool = False) -> memoryview:
    """Map memory of another process of the same user. Raises OSError if it does not exist or is too small."""
    ours = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR if write else os.O_RDONLY)
    try:
        if os.fstat(ours).st_size < num_bytes:
            raise OSError(f"descriptor {descriptor} of process {pid} has fewer than {num_bytes} bytes")
        return map_memory(ours, num_bytes, write=write)
    except ValueError as error:
        raise OSError(str(error)) from error
    finally:
        os.close(ours)


class SharedJson:
    """A JSON object that one process replaces as a whole and others read."""

    NUM_BYTES = 32768

    def __init__(self, memory: memoryview) -> None:
        data = np.frombuffer(memory, np.uint8, count=self.NUM_BYTES)
        fields: dict[str, Array] = {"length": data[16:24].view(np.int64), "text": data[24:]}
        self._lock = Seqlock(data[:8].view(np.uint64), data[8:12].view(np.uint32), fields)
        self._max_bytes = self.NUM_BYTES - 24
        self._version = 0
        self._newest: dict[str, Any] = {}

    def write(self, values: Mapping[str, Any]) -> None:
        text = json.dumps(values).encode()
        if len(text) > self._max_bytes:
            raise ValueError(f"the JSON text has {len(text)} bytes, but the limit is {self._max_bytes}")
        padded = text.ljust(self._max_bytes, b"\0")
        self._lock.write({"length": len(text), "text": np.frombuffer(padded, np.uint8)})

    def read(self) -> dict[str, Any]:
        found = self._lock.read(newer_than=self._version)
        if found is not None:
            self._version, values = found
            self._newest = json.loads(values["text"][: int(values["length"][0])].tobytes())
        return self._newest
