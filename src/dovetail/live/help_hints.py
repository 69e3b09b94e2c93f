"""When a person might help, and for how long: from what the policy has done lately, on the board.

Advice of those who have done it: short corrections, often early and less later. A correction that lasts to the end of the
episode teaches the policy that it will be rescued.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.actor.board import Board
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array

__all__ = ["Hint", "hint_for"]

_LOOK_S = 3.0
_STILL_M, _STILL_RAD = 0.01, 0.05
_SATURATED = 0.8
_LONG = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    text: str
    seconds: float  # to take over for


def hint_for(board: Board, robot: RobotSpec, *, usual_steps: float | None) -> Hint | None:
    """None: let it go on. `usual_steps`: how long an episode that succeeds usually lasts, where that is known."""
    end, first = board.num_stepped, board.first
    num_wanted = min(round(_LOOK_S * robot.control_hz), board.layout.num_rows // 2)
    if end - first < num_wanted:
        return None
    rows = np.arange(end - num_wanted, end)
    lately = num_wanted / robot.control_hz
    if _is_still(board, rows):
        return Hint(text=f"it has not got anywhere for {lately:.0f} s: show it the next bit", seconds=2.0)
    proposed = board.recent("proposed", rows)
    assert proposed is not None
    arm = [axis for axis in range(proposed.shape[1]) if "gripper" not in _name(robot, axis)]
    saturated = robot.action.at_limits(proposed)[:, arm].any(axis=1).mean()
    if saturated >= _SATURATED:
        return Hint(text=f"it has pushed as hard as it may for {lately:.0f} s: ease it off", seconds=1.0)
    if usual_steps and end - first > _LONG * usual_steps:
        usual_s = usual_steps / robot.control_hz
        return Hint(
            text=f"it takes longer than the {usual_s:.0f} s that usually do: help it over this", seconds=2.0
        )
    return None


def _is_still(board: Board, rows: Array) -> bool:
    """Whether the end effector stayed within a small ball; where its pose is not known, there is no telling."""
    pose = board.recent("ee_pose", rows)
    if pose is None:
        return False
    spread = np.linalg.norm(pose[:, :3] - pose[-1, :3], axis=1).max()
    turned = 2.0 * np.arccos(np.clip(np.abs(pose[:, 3:7] @ pose[-1, 3:7]), 0.0, 1.0)).max()
    return bool(spread < _STILL_M and turned < _STILL_RAD)


def _name(robot: RobotSpec, axis: int) -> str:
    return robot.action.names[axis] if robot.action.names else ""
