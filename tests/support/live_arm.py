"""A run that is active in this process: its arm confirms every stop, or does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dovetail.core.specs import RobotSpec
from dovetail.live.link import LiveLink
from dovetail.live.run_stop import RunStop
from support.made_runs import ROBOT, made_run

__all__ = ["LiveArm", "live_arm"]

_POLL_S = 0.005


class LiveArm:
    def __init__(self, run: Path, link: LiveLink) -> None:
        self.run, self.link = run, link
        self.confirms = True

    @property
    def stop(self) -> RunStop:
        return self.link.stop

    def poll(self) -> None:
        seen = self.stop.position
        if (
            self.confirms
            and self.stop.emergency
            and self.stop.confirmed_ns("robot", after=self.last_press) is None
        ):
            self.stop.confirm(seen)

    @property
    def last_press(self) -> int:
        return self.stop.last_press("robot")


@contextmanager
def live_arm(run: Path, *, robot: RobotSpec = ROBOT) -> Iterator[LiveArm]:
    """Makes the run folder, too."""
    link = LiveLink(made_run(run).path, robot=robot)
    link.open()
    arm, ended = LiveArm(run, link), threading.Event()

    def poll() -> None:
        while not ended.wait(_POLL_S):
            arm.poll()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield arm
    finally:
        ended.set()
        thread.join()
        link.close()
