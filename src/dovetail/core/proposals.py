"""Proposals of a frozen base policy: part of the observation, so that they are recorded with every step.

A policy with a base (`PolicySpec.base`) sees the base's next `horizon` actions as observation `proposal`, float32
[horizon * A]. The robot's spec has this key, too. The planner fills it in each tick, also while a person drives, from the
newest chunk of the base. Learning reads it from the replay and never calls the base.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array

__all__ = ["PROPOSAL", "proposal_at", "with_proposal", "without_proposal"]

PROPOSAL = "proposal"


def with_proposal(robot: RobotSpec, *, steps: int) -> RobotSpec:
    """The robot with an observation for proposals of this many actions."""
    spec = ArraySpec(shape=(steps * robot.action.shape[0],))
    return replace(robot, observation={**robot.observation, PROPOSAL: spec})


def without_proposal(robot: RobotSpec) -> RobotSpec:
    return replace(robot, observation={key: spec for key, spec in robot.observation.items() if key != PROPOSAL})


def proposal_at(chunk: Array, index: int, *, steps: int) -> Array:
    """The actions [steps, A] of a base's chunk [H, A] from an index on. The last action repeats past its end."""
    at = np.minimum(np.arange(index, index + steps), len(chunk) - 1)
    return np.asarray(chunk[at], np.float32)
