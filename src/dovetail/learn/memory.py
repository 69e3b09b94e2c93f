"""Keep freed memory in the process, for the next update.

Each update frees its buffers and the next one allocates them again. By default the C library returns large blocks to the
system each time, and the system clears their pages each time. With images, that costs more than the arithmetic.
"""

from __future__ import annotations

import ctypes
import ctypes.util

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt
_MAX_BYTES = 1 << 30


def keep_freed_memory() -> bool:
    """Set it for the whole process. Return False if the C library does not support it."""
    try:
        mallopt = ctypes.CDLL(ctypes.util.find_library("c")).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MAX_BYTES) and mallopt(_TRIM_THRESHOLD, _MAX_BYTES))
