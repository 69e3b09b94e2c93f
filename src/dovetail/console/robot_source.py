"""The robot of a run as the console sees it: attached to while the run is on, let go of when it is over."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from dovetail.console.handles import LiveState
from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Event
from dovetail.live.view import LiveView, NotLive

__all__ = ["LiveRobot"]

_AT_ONCE_S = 0.001  # a message that has expired by the time it is read: its driver is lost


class LiveRobot:
    """See the console's `Robot` and `Driver`. All of it in one thread, but for pictures, which have their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._view: LiveView | None = None
        self._filming: LiveView | None = (
            None  # whose pictures were last taken: closed by the thread that takes them
        )

    def refresh(self) -> None:
        try:
            if self._view is None:
                self._view = LiveView.attach(self._folder)
            else:
                self._view.refresh()
            with contextlib.suppress(UsageError):  # somebody else drives this one: we look on
                self._view.writer.beat()
        except NotLive:
            self._view = None

    # ---- watching

    def state(self) -> LiveState | None:
        view = self._view
        if view is None or not view.alive:
            return None
        state = asdict(view.state())
        return LiveState(**{field.name: state[field.name] for field in fields(LiveState)})

    @property
    def axes(self) -> Sequence[str]:
        return () if self._view is None else self._view.robot.action.names

    def cameras(self) -> Sequence[str]:
        view = self._view
        return () if view is None else view.cameras

    def frame(self, camera: str, newer_than: int) -> tuple[int, Array] | None:
        view = self._view
        if view is not self._filming:
            if self._filming is not None:
                self._filming.close()
            self._filming = view
        if view is None or (number := view.num_seen) == newer_than:
            return None
        picture = view.frame(camera)
        return None if picture is None else (number, picture)

    def close(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.writer.close()
        if self._filming is not None:
            self._filming.close()
            self._filming = None

    # ---- driving

    def drive(self, *, session: int, sequence: int, held: bool, axes: Sequence[float]) -> None:
        view = self._running()
        view.writer.drive(session=session, sequence=sequence, held=held, axes=axes or (0.0,) * len(self.axes))

    def lose(self, *, session: int, sequence: int) -> None:
        view = self._view
        if view is not None:
            still = (0.0,) * len(self.axes)
            with contextlib.suppress(UsageError):  # then it was not us who drove
                view.writer.drive(session=session, sequence=sequence, held=True, axes=still, expires_s=_AT_ONCE_S)

    def post(self, event: Event, *, session: int) -> None:
        self._running().writer.post(event, session=session)

    def _running(self) -> LiveView:
        if self._view is None:
            raise UsageError("the run is not running: nobody hears this")
        return self._view
