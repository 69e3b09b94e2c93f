"""Hints when an operator should take over, and for how long, from the last seconds on the board.

Published experience suggests short corrections: many early in training, fewer later. If corrections always last to the end
of an episode, the policy learns to rely on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.actor.board import Board
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array

__all__ = ["Hint", "hint_for"]

_WINDOW_S = 3.0
_STILL_M, _STILL_RAD = 0.01, 0.05
_SATURATED = 0.8
_LONG = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    text: str
    seconds: float  # suggested length of the takeover


def hint_for(board: Board, robot: RobotSpec, *, usual_steps: float | None) -> Hint | None:
    """Return a hint, or None if no help is needed. `usual_steps`: usual length of a successful episode, if known."""
    end, first = board.num_stepped, board.first
    num_rows = min(round(_WINDOW_S * robot.control_hz), board.layout.num_rows // 2)
    if end - first < num_rows:
        return None
    rows = np.arange(end - num_rows, end)
    window_s = num_rows / robot.control_hz
    if _is_still(board, rows):
        return Hint(text=f"no progress for {window_s:.0f} s: demonstrate the next part", seconds=2.0)
    proposed = board.recent("proposed", rows)
    assert proposed is not None
    saturated = robot.action.at_limits(proposed)[:, ~robot.axes_of("gripper")].any(axis=1).mean()
    if saturated >= _SATURATED:
        return Hint(
            text=f"its actions are at their limit for {window_s:.0f} s: move it away from there", seconds=1.0
        )
    if usual_steps and end - first > _LONG * usual_steps:
        usual_s = usual_steps / robot.control_hz
        return Hint(
            text=f"this episode is longer than the usual {usual_s:.0f} s: help with this part", seconds=2.0
        )
    return None


def _is_still(board: Board, rows: Array) -> bool:
    """Whether the end effector stayed in place. False if the robot does not report its pose."""
    pose = board.recent("ee_pose", rows)
    if pose is None:
        return False
    spread = np.linalg.norm(pose[:, :3] - pose[-1, :3], axis=1).max()
    turned = 2.0 * np.arccos(np.clip(np.abs(pose[:, 3:7] @ pose[-1, 3:7]), 0.0, 1.0)).max()
    return bool(spread < _STILL_M and turned < _STILL_RAD)
