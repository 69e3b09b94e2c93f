"""All arms of a run that are on this machine: each has its own link, cameras and driver. A page shows one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dovetail.console.cameras import Cameras
from dovetail.console.drive_control import DriveControl
from dovetail.console.robot import LiveRobot
from dovetail.core.errors import DovetailError, UsageError, shown
from dovetail.core.types import Event
from dovetail.live.link import LIVE_JSON

__all__ = ["ConsoleArm", "LiveArms"]

_MAX_ARMS = 64


@dataclass(slots=True)
class ConsoleArm:
    """One arm: its robot, its images and who drives it."""

    robot: LiveRobot
    control: DriveControl = field(init=False)
    cameras: Cameras = field(init=False)

    def __post_init__(self) -> None:
        self.control, self.cameras = DriveControl(self.robot), Cameras(self.robot)

    def state(self) -> dict[str, Any] | None:
        """What pages show of this arm; None while the run is not active."""
        found = self.robot.state()
        if found is None:
            return None
        driver = {
            "arm": self.robot.name,
            "driver": self.control.name_of(found.driver),
            "driver_session": found.driver,
            "driver_browser": self.control.browser_of(found.driver),
        }
        return {**asdict(found), **driver, "drive": self.robot.drive_parts()}


class LiveArms:
    """The first arm is in the run's folder; on Ray, the others are in its `robots/`. The arm `""` is the first one.

    Only `refresh` reads files: call it in a separate thread, and the rest in the event loop.
    """

    def __init__(self, run: Path, *, first: LiveRobot | None = None) -> None:
        self._run = run
        self._arms: dict[Path, ConsoleArm] = {run: ConsoleArm(first or LiveRobot(run))}

    def refresh(self) -> None:
        """Check which arms have started, restarted or ended. Reads files."""
        for folder in _folders(self._run):
            if folder not in self._arms:
                self._arms = {**self._arms, folder: ConsoleArm(LiveRobot(folder, run=self._run))}
        for arm in self._arms.values():
            arm.robot.refresh()

    def beat(self) -> None:
        for arm in self._arms.values():
            arm.robot.beat()

    def get(self, name: str = "") -> ConsoleArm:
        """Raises UsageError if there is no such arm on this machine."""
        active = dict(self._active())
        if name in active:
            return active[name]
        if not name:
            return next(iter(active.values()), self._arms[self._run])
        known = ", ".join(active) or "none"
        raise UsageError(f"arm '{shown(name)}' is not on this machine, or it has not started. Arms here: {known}")

    def names(self) -> list[str]:
        return [name for name, _ in self._active()]

    def rows(self, of_run: Sequence[str] = ()) -> list[dict[str, Any]]:
        """The arms that a person can choose on a page. `of_run`: all arms of the run, some on other machines."""
        rows = []
        for name, arm in self._active():
            state = arm.robot.state()
            rows.append({"name": name, "is_here": True, "control": state.control if state else "none"})
        here = {row["name"] for row in rows}
        return rows + [{"name": name, "is_here": False, "control": ""} for name in of_run if name not in here]

    def post(self, event: Event, *, session: int) -> None:
        """Send an event to all arms here. Raises UsageError if it reached none."""
        num_reached = 0
        problem = UsageError(f"this run is not active: start it with `dovetail run --resume {self._run}`")
        for arm in self._arms.values():
            try:
                arm.robot.post(event, session=session)
                num_reached += 1
            except UsageError as error:
                problem = error
        if not num_reached:
            raise problem

    async def close(self) -> None:
        for arm in self._arms.values():
            with contextlib.suppress(DovetailError):
                await arm.cameras.close()

    def _active(self) -> Iterator[tuple[str, ConsoleArm]]:
        for arm in self._arms.values():
            if name := arm.robot.name:
                yield name, arm


def _folders(run: Path) -> list[Path]:
    """Folders in which arms other than the first may be."""
    try:
        found = sorted(path.parent for path in (run / "robots").glob(f"*/{LIVE_JSON}"))
    except OSError:
        return []
    return found[:_MAX_ARMS]
