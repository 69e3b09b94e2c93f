"""Writing so that a crash leaves the old file or the new one, never half of it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["fsync_folder", "write_atomic"]


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable: without this, a committed rename can vanish with the power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside, flush to disk, rename over, and make the name durable too."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    fsync_folder(path.parent)
