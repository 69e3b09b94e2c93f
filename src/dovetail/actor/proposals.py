"""Records what the base policy proposes, for a policy that corrects a base."""

from __future__ import annotations

import numpy as np

from dovetail.actor.board import Board
from dovetail.actor.planner import Planner
from dovetail.core.proposals import PROPOSAL
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array

__all__ = ["Proposals"]


class Proposals:
    """Writes the base's proposal for each row to the board. Does nothing if the robot's spec has no proposals."""

    def __init__(self, board: Board, planner: Planner | None, robot: RobotSpec) -> None:
        self._board, self._robot = board, robot
        self._planner = planner if PROPOSAL in robot.observation else None

    @property
    def are_recorded(self) -> bool:
        return self._planner is not None

    def record(self, row: int, executed: Array) -> None:
        """Record the proposal for the row whose action was just sent."""
        if self._planner is None:
            return
        known = self._planner.proposal_for(row)
        # until the base has answered for the first time, it proposes what was done
        proposal = self._unknown(executed) if known is None else known
        self._board.propose(row, proposal, self._planner.embedding)

    def update(self, row: int, executed: Array | None) -> None:
        """Keep the proposal up to date where the policy does not act. `executed` is the last action of the episode."""
        if self._planner is None:
            return
        self._planner.update_proposal(row)
        if (known := self._planner.proposal_for(row)) is not None:
            self._board.propose(row, known, self._planner.embedding)
        elif executed is not None:
            self._board.propose(row, self._unknown(executed))

    def _unknown(self, executed: Array) -> Array:
        num_steps = self._robot.observation[PROPOSAL].shape[0] // len(executed)
        return np.tile(executed, (num_steps, 1))
