"""Which process is meant: its id alone is not enough, because the kernel uses ids again."""

from __future__ import annotations

from pathlib import Path

__all__ = ["process_started"]


def process_started(pid: int) -> int | None:
    """Start time of a process in ticks since boot, None if it has ended. With the process id it is unique."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if after_name[0] in "ZX" else int(after_name[19])
