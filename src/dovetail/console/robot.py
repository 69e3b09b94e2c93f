"""One arm of a run: attached while the run is active, detached when it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.core.errors import UsageError
from dovetail.core.types import Array, Event
from dovetail.human.axes import AxisMapping, cartesian_slice, num_drive_axes
from dovetail.human.selections import AXES, base_axes, gripper_of
from dovetail.live.view import LiveState, LiveView, NotLive

__all__ = ["LiveRobot"]

_CARTESIAN = ("ee_delta", "ee_velocity", "ee_target")


class LiveRobot:
    """Call it from one thread, except `cameras`, `frame` and `close`, which one other thread calls, and `refresh`.

    Only `refresh` reads files, so only it may block: call it in a separate thread. `folder` has the arm's live.json; `run`
    is the run's folder.
    """

    def __init__(self, folder: Path, *, run: Path | None = None) -> None:
        self._folder, self._run = folder, run or folder
        self._view: LiveView | None = None
        self._rendered: LiveView | None = (
            None  # the last one that gave images; closed by the thread that took them
        )
        self._drive: tuple[LiveView, dict[str, Any]] | None = None

    def refresh(self) -> None:
        """Check whether the run has started, restarted or ended. Reads files."""
        try:
            if self._view is None:
                self._view = LiveView.attach(self._folder, run=self._run)
            else:
                self._view.refresh()
        except NotLive:
            self._view = None

    def beat(self) -> None:
        """Report to the run that a console is open. Call it at least once per second."""
        view = self._view
        if view is not None:
            with contextlib.suppress(UsageError):  # another console drives; this one only watches
                view.writer.beat()

    @property
    def name(self) -> str:
        """The arm's name in the run; empty while the run is not active."""
        return "" if self._view is None else self._view.arm

    def state(self) -> LiveState | None:
        """State of the arm. None while the run is not active."""
        view = self._view
        return None if view is None or not view.alive else view.state()

    def drive_parts(self) -> dict[str, Any]:
        """For the page that drives: the parts of the action with their axes, and why the arm cannot be driven, if so."""
        view = self._view
        if view is None:
            return {"parts": [], "num_axes": 0, "refusal": ""}
        if self._drive is None or self._drive[0] is not view:
            self._drive = (view, _drive_parts(view))
        return self._drive[1]

    @property
    def num_own_cameras(self) -> int:
        """Cameras of the robot itself; they come first in `cameras`."""
        view = self._view
        return 0 if view is None else sum(spec.is_image for spec in view.robot.observation.values())

    def cameras(self) -> Sequence[str]:
        view = self._view
        return () if view is None else view.cameras

    def frame(self, camera: str, newer_than: int) -> tuple[int, Array] | None:
        """The newest image, uint8 [H, W, 3], and its number; None if there is none newer."""
        view = self._view
        if view is not self._rendered:
            if self._rendered is not None:
                self._rendered.close()
            self._rendered = view
        if view is None or (number := view.num_seen) == newer_than:
            return None
        image = view.frame(camera)
        return None if image is None else (number, image)

    def close(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.writer.close()
        if self._rendered is not None:
            self._rendered.close()
            self._rendered = None

    # ---- driving: the arm's control loop decides what it follows

    def drive(self, *, session: int, sequence: int, held: bool, axes: Sequence[float], time_ns: int) -> None:
        """Drive the arm. Each axis is -1 to 1 of the highest allowed speed. Not `held`: the switch was released.

        `time_ns` is when the page sent it, in this host's monotonic time. Raises UsageError for invalid input.
        """
        view = self._active()
        num_axes = num_drive_axes(view.robot)
        if len(axes) in (0, view.robot.action.shape[0]):  # the Cartesian axes of joints, or all, may be left out
            axes = (*axes, *(0.0,) * (num_axes - len(axes)))
        view.writer.drive(session=session, sequence=sequence, held=held, axes=axes, time_ns=time_ns)

    def disconnect(self, *, session: int, sequence: int) -> None:
        """The page, the network or the focus was lost while driving: the arm holds."""
        view = self._view
        if view is not None:
            with contextlib.suppress(UsageError):  # another console was driving
                view.writer.lose(session=session, sequence=sequence)

    def post(self, event: Event, *, session: int) -> None:
        self._active().writer.post(event, session=session)

    def _active(self) -> LiveView:
        if self._view is None:
            raise UsageError(f"this run is not active: start it with `dovetail run --resume {self._run}`")
        return self._view


def _drive_parts(view: LiveView) -> dict[str, Any]:
    """Each part with the axes that keys and sticks move, or with an axis for each joint."""
    robot, parts = view.robot, list[dict[str, Any]]()
    grippers = {gripper_of(robot, part): part.name for part in robot.parts if part.kind == "gripper"}
    driven = [part for part in robot.parts if not view.driven_parts or part.name in view.driven_parts]
    for part in driven:
        first, axes, is_cartesian = robot.slice_of(part.name).start, _axis_names(view, part.name), False
        known = {"kind": part.kind, "gripper": grippers.get(part.name, "" if len(grippers) > 1 else None)}
        if part.kind in _CARTESIAN:
            axes, is_cartesian = list(AXES[: part.num_axes]), True
        elif part.kind == "velocity" and (of_base := base_axes(part)) is not None:
            axes, is_cartesian = list(of_base), True
        if part.name in view.cartesian_parts:  # by inverse kinematics
            start = cartesian_slice(robot, part.name).start
            moved = {"first": start, "axes": list(AXES[:6]), "is_cartesian": True}
            parts.append({"name": part.name, **known, **moved})
            parts.append(
                {"name": f"{part.name}, joints", **known, "first": first, "axes": axes, "is_cartesian": False}
            )
        else:
            parts.append({"name": part.name, **known, "first": first, "axes": axes, "is_cartesian": is_cartesian})
    refusal = AxisMapping(robot, parts=view.driven_parts).refusal
    problem = f"robot '{robot.name}' {refusal}" if refusal else ""
    return {"parts": parts, "num_axes": num_drive_axes(robot), "refusal": problem}


def _axis_names(view: LiveView, part: str) -> list[str]:
    """Names for people: those of the spec, or the part's name with a number."""
    where = view.robot.slice_of(part)
    names = view.robot.action.names[where]
    return list(names) if len(names) else [f"{part} {number + 1}" for number in range(where.stop - where.start)]
