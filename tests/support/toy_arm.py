"""The spec of a toy robot for tests of policies, with random observations and helpers for its policies."""

import numpy as np
import torch

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext, WeightSnapshot

ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={
        "joint_pos": ArraySpec(shape=(3,)),
        "force": ArraySpec(shape=(2,)),
        "front": ArraySpec(shape=(20, 16, 3), dtype="uint8"),
        "depth": ArraySpec(shape=(20, 16, 1), dtype="uint16"),
    },
    action=ArraySpec(shape=(2,), low=(-1.0, 0.0), high=(3.0, 0.5)),
    action_kind="ee_delta",
    control_hz=10.0,
)
DETERMINISTIC = ActContext(deterministic=True)


def observations(num_rows=4, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "joint_pos": rng.normal(size=(num_rows, 3)).astype(np.float32),
        "force": rng.normal(size=(num_rows, 2)).astype(np.float32),
    }


def features_of(policy, num_rows=4, seed=0):
    """The features of `observations`, [B, F]."""
    return policy.features({key: torch.from_numpy(value) for key, value in observations(num_rows, seed).items()})


def snapshot_of(policy, version=9):
    return WeightSnapshot(version=version, components=policy.weights(), hashes={})
