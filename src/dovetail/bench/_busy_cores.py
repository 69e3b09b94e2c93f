"""Load for measurements: one process per core that computes, at normal priority."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["busy_cores"]

_COMPUTE = "import numpy as np\nx = np.ones((300, 300))\nwhile True:\n    x = np.tanh(x @ x)\n"


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy until the block ends."""
    num_cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    load = [subprocess.Popen([sys.executable, "-P", "-c", _COMPUTE], env=environment) for _ in range(num_cores)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
        for process in load:
            process.wait()
