"""The machine and the commit that a measurement belongs to."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from dovetail import __version__

__all__ = ["commit", "machine_facts"]


def commit() -> str | None:
    """The commit of the source tree, with `+` appended if there are changes; None outside a git checkout."""
    here = Path(__file__).parent
    try:
        name = _git("rev-parse", "--short=12", "HEAD", cwd=here)
        return name + ("+" if _git("status", "--porcelain", "--untracked-files=no", cwd=here) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True, timeout=10)
    return done.stdout.strip()


def machine_facts() -> dict[str, Any]:
    return {
        "dovetail": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),  # other processes slow a measurement down
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
