"""A live run, seen from another process: observations, who controls the robot, and the timing of the control loop.

    view = LiveView.attach(Path("runs/first-try"))     # raises NotLive if no run is active there
    while view.alive:
        view.refresh()                                 # the run may use another board now
        state, image = view.state(), view.frame("front")
        view.writer.beat()                             # reports that a console is open
    view.close()

Only `writer` writes. No call blocks. Use it from one thread at a time, because rendering holds a GL context.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.actor.board import Board, BoardLayout
from dovetail.core.clock import NS_PER_S, boot_id
from dovetail.core.disk import parse_json, read_file
from dovetail.core.errors import DovetailError, FailureError, StoreError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Source
from dovetail.human.axes import num_drive_axes
from dovetail.human.mailbox import Control, Mailbox, MailboxWriter
from dovetail.live.help_hints import Hint, hint_for
from dovetail.live.link import LIVE_JSON, VERSION
from dovetail.live.rendering import LiveRenderer
from dovetail.processes.identity import process_started
from dovetail.processes.shared_memory import SharedJson, attach_memory

__all__ = ["LiveState", "LiveView", "NotLive"]

_READ_ERRORS = (OSError, KeyError, TypeError, ValueError)
_MAX_BYTES = 1 << 20  # of live.json, which may come from elsewhere
_IDLE_S = 1.0  # after this time without a tick, the robot is between episodes


class NotLive(FailureError):
    """No run is active in that folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """Plain values, ready for JSON."""

    control: str  # policy, human, holding, paused, fault, or idle (between episodes)
    reason: str  # of holding, pause or fault; empty otherwise
    may_drive: bool  # False in an evaluation
    driver: int  # id of the session that drives; 0: none
    episode: dict[str, Any]  # id, purpose, number; empty before the first
    step: int
    prompt: str
    request: str = ""  # to the person at the robot, such as `place the part`; empty: none
    values: dict[str, list[float]]  # of the observation, without images: joints, pose, gripper
    executed: list[float]  # the last action that was executed
    health: dict[str, float]  # ticks, overruns, late_ms, worst_late_ms, inference_ms
    policy_version: int  # of the last action
    weights_age_s: float | None  # since the newest weights were published; None: none yet
    mode: str  # of the actor: sequential, rtc...
    hint: Hint | None
    facts: dict[str, Any] = field(default_factory=dict)  # status of the run: phase, figures, the coach's advice


class LiveView:
    """See the module's docstring."""

    def __init__(self, folder: Path, link: dict[str, Any], *, run: Path) -> None:
        self._folder, self._link = folder, link
        self.arm = str(link.get("arm", "robot"))  # its name in the run
        self._pid = int(link["pid"])
        self.robot = RobotSpec.from_json(link["robot"])
        self.driven_parts = tuple(map(str, link.get("driven_parts", ())))  # that the console drives; empty: all
        self.cartesian_parts = tuple(map(str, link.get("cartesian_parts", ())))  # by inverse kinematics
        self._renderer = LiveRenderer(run, arm=self.arm)
        descriptors, num_axes = link["descriptors"], num_drive_axes(self.robot)
        memory = attach_memory(self._pid, descriptors["mailbox"], Mailbox.num_bytes(num_axes), write=True)
        self.writer = MailboxWriter(Mailbox(num_axes, memory))
        self._status = SharedJson(attach_memory(self._pid, descriptors["status"], SharedJson.NUM_BYTES))
        self._board: Board | None = None
        self._attach_board()

    @staticmethod
    def attach(folder: Path, *, run: Path | None = None) -> LiveView:
        """`folder` has the arm's live.json: the run's folder, or RUN/robots/NAME; then `run` is the run's folder."""
        link = _read(folder)
        try:
            return LiveView(folder, link, run=run or folder)
        except (DovetailError, *_READ_ERRORS) as error:
            raise NotLive(f"run {folder} is active, but its live data cannot be read: {error}") from error

    @property
    def alive(self) -> bool:
        """Whether the run's process is alive."""
        return process_started(self._pid) == int(self._link["started"])

    def refresh(self) -> None:
        """Attach to a new board if the run has one. Raises NotLive after the end of the run."""
        link = _read(self._folder)
        if (link["pid"], link["started"]) != (self._link["pid"], self._link["started"]):
            raise NotLive(f"run {self._folder} was restarted: attach again")
        if link != self._link:
            self._link = link
            try:
                self._attach_board()
            except _READ_ERRORS as error:
                raise NotLive(f"run {self._folder} has just ended: {error}") from error

    def _attach_board(self) -> None:
        if self._link["board"] is None:
            return
        layout = BoardLayout.from_json(self._link["board"])
        self._board = Board(layout, attach_memory(self._pid, self._link["descriptors"]["board"], layout.num_bytes))

    # ---- images

    @property
    def num_seen(self) -> int:
        """Number of observations so far. A new image is available only after this has changed."""
        return self._board.num_seen if self._board else 0

    @property
    def cameras(self) -> tuple[str, ...]:
        """The robot's cameras, and for a simulation the other cameras of its scene, which are rendered for the viewer."""
        cameras = tuple(key for key, spec in self.robot.observation.items() if spec.is_image)
        return (*cameras, *(camera for camera in self._renderer.cameras if camera not in cameras))

    def frame(self, camera: str) -> Array | None:
        """The newest image, uint8 [H, W, 3], a copy; None if there is none yet."""
        board = self._board
        if board is None or not board.num_seen:
            return None
        if camera in board.layout.frames:
            for _ in range(3):
                row = board.num_seen - 1
                frame: Array = board.observation(row).values[camera].copy()
                if not board.is_overwritten(row):
                    return frame
            return None
        # before the first step, the first observation: an operator who is to start needs to see the scene
        row = board.num_stepped - 1 if board.num_stepped > board.first else board.num_seen - 1
        return self._renderer.image(camera, board.extras(row))

    # ---- the rest

    def state(self) -> LiveState:
        facts, board, box = dict(self._status.read()), self._board, self.writer.box
        stepped = board.num_stepped if board else 0
        row = stepped - 1
        idle_s = (time.monotonic_ns() - board.ticked_ns) / NS_PER_S if board and board.ticked_ns else None
        source, policy_version, executed = Source.POLICY, 0, np.zeros(0)
        if board and row >= 0:
            source, policy_version, executed = board.action(row)
        request = board.person_request if board else ""
        control, reason = _control(box, facts, source=source, idle_s=idle_s, request=request)
        published_unix_s = facts.pop("weights_unix_s", None)
        values: dict[str, list[float]] = {}
        if board and board.num_seen:
            seen = board.observation(board.num_seen - 1).values
            values = {key: value.tolist() for key, value in seen.items() if value.ndim == 1}
        step = max(0, stepped - board.first) if board else 0
        hint = None
        if board and control == "policy" and step and facts.get("episode", {}).get("purpose") == "online":
            hint = hint_for(board, self.robot, usual_steps=facts.get("usual_steps"))
        return LiveState(
            control=control,
            reason=reason,
            may_drive=facts.get("episode", {}).get("purpose") != "eval",
            driver=box.driver,
            episode=facts.pop("episode", {}),
            step=step,
            prompt=board.prompt if board else "",
            request=request,
            values=values,
            executed=executed.tolist(),
            health=_health(board),
            policy_version=policy_version,
            weights_age_s=None if published_unix_s is None else time.time() - published_unix_s,
            mode=facts.pop("mode", ""),
            hint=hint,
            facts=facts,
        )

    def close(self) -> None:
        self._renderer.close()
        self._board = None


def _control(
    box: Mailbox, facts: dict[str, Any], *, source: Source, idle_s: float | None, request: str = ""
) -> tuple[str, str]:
    fault = facts.pop("fault", None)
    if fault:
        return "fault", fault
    if box.emergency:
        return "fault", "the emergency stop was pressed"
    if idle_s is None or idle_s > _IDLE_S:
        return "idle", str(facts.get("phase", ""))
    if request:
        return "paused", request
    if box.control is Control.HOLDING:
        return "holding", "the driver's connection was lost: take over again, or press start"
    if box.control is Control.PAUSED:
        return "paused", "press start to continue, or take over"
    human = box.control is Control.HUMAN or source is Source.HUMAN
    return ("human" if human else "policy"), ""


def _health(board: Board | None) -> dict[str, float]:
    if board is None:
        return {}
    health = board.health
    in_ms = {
        f"{name.removesuffix('_ns')}_ms": value / 1e6 for name, value in health.items() if name.endswith("_ns")
    }
    return {"ticks": health["ticks"], "overruns": health["overruns"], **in_ms}


def _read(folder: Path) -> dict[str, Any]:
    nothing = f"no run is active in {folder}: start it with `dovetail run --resume {folder}`"
    try:
        link: dict[str, Any] = parse_json(read_file(folder / LIVE_JSON, max_bytes=_MAX_BYTES))
        alive = link["boot_id"] == boot_id() and process_started(int(link["pid"])) == link["started"]
        version = link["version"]
    except (OSError, StoreError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise NotLive(nothing) from error
    if not alive:
        raise NotLive(nothing)
    if version != VERSION:
        raise NotLive(f"run {folder} uses another version of Dovetail: use the console of that version")
    return link
