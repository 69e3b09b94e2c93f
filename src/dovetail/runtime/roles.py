"""The processes of a robot's machine, each `python -m dovetail.runtime.roles ROLE DESCRIPTORS`: see `host`.

A role takes its orders from the supervisor's channel, ends when that closes, and reports in one line what it dies of.
"""

from __future__ import annotations

import gc
import importlib
import json
import mmap
import os
import signal
import sys
from typing import Any

from dovetail.actor.board import Board, BoardLayout
from dovetail.runtime._channel import Channel, Gone

__all__ = ["Role", "main"]

ROLES = {
    "control": "dovetail.runtime._role_control",  # imported alone: the control process never sees torch
    "inference": "dovetail.runtime._role_inference",
    "recorder": "dovetail.runtime._role_recorder",
}


class Role:
    """What every role is given: its channel, the descriptors meant for it, its orders and the shared board."""

    def __init__(self, descriptors: dict[str, int]) -> None:
        self.descriptors = descriptors
        self.channel = Channel.of(descriptors["channel"])
        orders = self.channel.receive()
        assert orders is not None
        self.orders: dict[str, Any] = orders
        layout = BoardLayout.from_json(orders["layout"])
        self.board = Board(layout, memoryview(mmap.mmap(descriptors["memory"], layout.num_bytes)))
        os.close(descriptors["memory"])  # the mapping stays

    def ready(self) -> None:
        gc.collect()
        gc.freeze()  # what was built to stay is not looked through again
        self.channel.send({"ready": True})


def main() -> int:
    name, descriptors = sys.argv[1], json.loads(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody at once: the supervisor decides
    channel = None
    try:
        role = Role(descriptors)
        channel = role.channel
        importlib.import_module(ROLES[name]).run(role)
    except Gone:
        return 0  # nobody is left to work for
    except Exception as error:  # a process border: whoever watches is told, and the role is gone
        if channel is not None:
            try:
                kind = type(error).__name__
                channel.send({"error": " ".join(str(error).split()) or kind, "kind": kind})
            except Gone:
                pass
        if os.environ.get("DOVETAIL_DEBUG"):
            raise
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
