"""A robot that does nothing, and what it sees."""

import numpy as np

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext

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
STILL = ActContext(deterministic=True)


def batch(num=4, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "joint_pos": rng.normal(size=(num, 3)).astype(np.float32),
        "force": rng.normal(size=(num, 2)).astype(np.float32),
    }
