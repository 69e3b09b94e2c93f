"""A robot that takes as long to build as a test wants."""

from __future__ import annotations

import time
from pathlib import Path

from dovetail.testing.socket_arm import SocketArm

__all__ = ["SlowArm"]


class SlowArm(SocketArm):
    """Its constructor waits while a file `BLOCK_FILE.slow` exists."""

    def __init__(self, config, *, task=None):
        while Path(f"{config.block_file}.slow").exists():
            time.sleep(0.005)
        super().__init__(config, task=task)
