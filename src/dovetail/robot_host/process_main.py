"""The processes of a robot's machine, each `python -m dovetail.robot_host.process_main ROLE DESCRIPTORS`: see `host`.

A role takes its orders from the supervisor's channel, ends when that closes, and reports in one line what it dies of.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import mmap
import os
import select
import signal
import sys
import threading
import time
import traceback
from typing import Any

from dovetail.actor.board import Board, BoardLayout
from dovetail.core.errors import one_line
from dovetail.processes.channel import Channel, Gone

__all__ = ["Role", "main"]

# all pages now: the first touch of one within a tick would be the kernel's to serve
_MAPPED = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
ROLES = {
    "control": "dovetail.robot_host.control_process",  # imported alone: the control process never sees torch
    "inference": "dovetail.robot_host.inference_process",
    "recorder": "dovetail.robot_host.recorder_process",
}
_SURVIVES_S = {"recorder": 10.0}  # a slow disk
_SURVIVE_S = 2.0  # who hangs, in a driver or in a policy, is gone so long after the supervisor


class Role:
    """What every role is given: its channel, the descriptors meant for it, its orders and the shared board."""

    def __init__(self, channel: Channel, descriptors: dict[str, int]) -> None:
        self.descriptors = descriptors
        self.channel = channel
        orders = channel.receive()
        assert orders is not None
        self.orders: dict[str, Any] = orders
        layout = BoardLayout.from_json(orders["layout"])
        self.board = Board(layout, memoryview(mmap.mmap(descriptors["memory"], layout.num_bytes, flags=_MAPPED)))
        os.close(descriptors["memory"])  # the mapping stays

    def ready(self) -> None:
        gc.collect()
        gc.freeze()  # what was built to stay is not looked through again
        self.channel.send({"ready": True})


def main() -> int:
    name, descriptors = sys.argv[1], json.loads(sys.argv[2])
    # Ctrl-C, or a SIGTERM to all processes of a service, reach everybody at once: the supervisor decides, and who has
    # lost it ends
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    channel = Channel.of(descriptors["channel"])
    _outlive_nobody(channel, by_s=_SURVIVES_S.get(name, _SURVIVE_S))
    try:
        importlib.import_module(ROLES[name]).run(Role(channel, descriptors))
    except Gone:
        return 0  # nobody is left to work for
    except Exception as error:  # a process border: whoever watches is told, and the role is gone
        if os.environ.get("DOVETAIL_DEBUG"):
            traceback.print_exc()
        with contextlib.suppress(Gone):
            channel.send({"error": one_line(error)})
        return 1
    return 0


def _outlive_nobody(channel: Channel, *, by_s: float) -> None:
    """End this process a while after the supervisor's, whatever it hangs in."""
    poll = select.poll()
    poll.register(channel.fileno(), 0)  # hears only that the other end was closed

    def watch() -> None:
        poll.poll()
        time.sleep(by_s)
        os._exit(1)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        code
    )  # all is closed; to tear torch down piece by piece takes a second, in which a death goes unnoticed
