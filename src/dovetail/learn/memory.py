"""Memory that a process of ours has once had, it keeps.

An update frees what it computed in, and the next one asks for as much again. The C library gives large pieces back to the
system each time, and the system clears every page of them each time: with images that costs more than the arithmetic.
"""

from __future__ import annotations

import ctypes
import ctypes.util

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_MOST_BYTES = 1 << 30


def keep_freed_memory() -> bool:
    """For a whole process, so for a command to say. False where the C library knows no such thing: all goes on as before."""
    try:
        mallopt = ctypes.CDLL(ctypes.util.find_library("c")).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MOST_BYTES) and mallopt(_TRIM_THRESHOLD, _MOST_BYTES))
