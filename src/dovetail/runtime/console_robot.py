"""The robot of a run as the console sees it. Nothing can be attached to yet: every run counts as one that is over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail.console.handles import LiveState
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Event

__all__ = ["LiveRobot"]


class LiveRobot:
    """See the console's `Robot` and `Driver`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.axes: Sequence[str] = ()

    def refresh(self) -> None:
        pass

    def state(self) -> LiveState | None:
        return None

    def cameras(self) -> Sequence[str]:
        return ()

    def frame(self, camera: str, newer_than: int) -> tuple[int, Array] | None:
        return None

    def drive(self, *, session: int, sequence: int, held: bool, axes: Sequence[float]) -> None:
        raise UsageError("the run is not running: nobody hears this")

    def lose(self, *, session: int, sequence: int) -> None:
        pass

    def post(self, event: Event, *, session: int) -> None:
        raise UsageError("the run is not running: nobody hears this")
