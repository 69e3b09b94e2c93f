"""Entry point of the robot's processes: `python -m dovetail.robot_host.process_main NAME DESCRIPTORS`. See `host`.

Each process gets its settings through the supervisor's channel, and ends when that channel closes.
"""

from __future__ import annotations

import gc
import importlib
import json
import mmap
import os
import select
import sys
import threading
import time
from typing import Any

from dovetail.actor.board import Board, BoardLayout
from dovetail.processes.channel import Channel
from dovetail.processes.child import run_child

__all__ = ["ProcessContext", "main"]

# all pages now: otherwise the kernel maps a page at its first use, within a control tick
_MAP_FLAGS = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
MODULES = {
    "control": "dovetail.robot_host.control_process",  # imported alone: the control process does not load torch
    "inference": "dovetail.robot_host.inference_process",
    "recorder": "dovetail.robot_host.recorder_process",
    "guard": "dovetail.robot_host.guard_process",  # does not load torch either
}
# a process that hangs, in a driver or a policy, ends this long after the supervisor has ended
# a recorder may wait for a slow disk; the guard outlives the control process
_EXIT_S = {"control": 2.0, "inference": 2.0, "recorder": 10.0, "guard": 4.0}


class ProcessContext:
    """What each process gets from the supervisor: channel, inherited descriptors, settings and the shared board."""

    def __init__(self, channel: Channel, descriptors: dict[str, int]) -> None:
        self.descriptors = descriptors
        self.channel = channel
        settings = channel.receive()
        assert settings is not None
        self.settings: dict[str, Any] = settings
        layout = BoardLayout.from_json(settings["layout"])
        memory = mmap.mmap(descriptors["memory"], layout.num_bytes, flags=_MAP_FLAGS)
        self.board = Board(layout, memoryview(memory))
        os.close(descriptors["memory"])  # the mapping remains

    def report_ready(self) -> None:
        gc.collect()
        gc.freeze()  # later collections skip the objects that exist now
        self.channel.send({"ready": True})


def main() -> None:
    name, descriptors = sys.argv[1], json.loads(sys.argv[2])
    channel = Channel.from_descriptor(descriptors["channel"])
    _exit_after_supervisor(channel, after_s=_EXIT_S[name])
    run_child(channel, lambda: importlib.import_module(MODULES[name]).run(ProcessContext(channel, descriptors)))


def _exit_after_supervisor(channel: Channel, *, after_s: float) -> None:
    """End this process a while after the supervisor, even if it hangs."""
    poll = select.poll()
    poll.register(channel.fileno(), 0)  # no events: poll returns only when the other end closes

    def watch() -> None:
        poll.poll()
        time.sleep(after_s)
        os._exit(1)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()


if __name__ == "__main__":
    main()
