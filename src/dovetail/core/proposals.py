"""Proposals of a frozen base policy: part of the observation, so that they are recorded with every step.

A policy with a base (`PolicySpec.base`) sees the base's next `horizon` actions as observation `proposal`, float32
[horizon * A]. The robot's spec has this key, too. The planner fills it in each tick, also while a person drives, from the
newest chunk of the base. Learning reads it from the replay and never calls the base.

Some policies (RLT) also read the base's inner features, observation `embedding`, float32 [M * W]: M averaged groups of the
base's final embeddings, of width W, from the newest observation that the base has seen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array

__all__ = ["EMBEDDING", "OF_BASE", "PROPOSAL", "proposal_at", "with_proposal", "without_proposal"]

PROPOSAL = "proposal"
EMBEDDING = "embedding"
OF_BASE = (PROPOSAL, EMBEDDING)  # observations that a base makes, not the robot


def with_proposal(robot: RobotSpec, *, steps: int, embedding_size: int = 0) -> RobotSpec:
    """The robot with an observation for proposals of this many actions, and one for the base's embedding, if any."""
    added = {PROPOSAL: ArraySpec(shape=(steps * robot.action.shape[0],))}
    if embedding_size:
        added[EMBEDDING] = ArraySpec(shape=(embedding_size,))
    return replace(robot, observation={**robot.observation, **added})


def without_proposal(robot: RobotSpec) -> RobotSpec:
    """The robot itself, without observations of a base."""
    own = {key: spec for key, spec in robot.observation.items() if key not in OF_BASE}
    return replace(robot, observation=own)


def proposal_at(chunk: Array, index: int, *, steps: int) -> Array:
    """The actions [steps, A] of a base's chunk [H, A] from an index on. The last action repeats past its end."""
    at = np.minimum(np.arange(index, index + steps), len(chunk) - 1)
    return np.asarray(chunk[at], np.float32)
