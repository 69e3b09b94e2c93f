"""Ray's own node dies: its processes end, but those that can stop an arm live until they have stopped it."""

from __future__ import annotations

import os
import signal
import time

import pytest

from dovetail.core.clock import NS_PER_S
from support.stop_world import stop_world
from support.waiting import wait_until

pytestmark = pytest.mark.extended


def test_arms_are_stopped_when_the_node_of_ray_is_killed(tmp_path):
    """By default Ray kills all children of a process that ends, and so control and guard at once."""
    with stop_world(tmp_path, arms=("left", "right")) as run:
        run.start_moving("actor.layout=processes")
        (node,) = (pid for pid, title in run.run.alive().items() if "raylet/raylet" in title)
        os.kill(node, signal.SIGKILL)
        for arm in run.arms:
            wait_until(
                lambda arm=arm: time.monotonic_ns() - run.notes(arm)[-1].time_ns > 3 * NS_PER_S,
                timeout_s=60.0,
                what=f"no command reaches {arm}",
            )
            assert run.notes(arm)[-1].what == "stop", arm
