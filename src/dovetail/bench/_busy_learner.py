"""A learner that keeps one core busy: RLPD on random batches. `python -m dovetail.bench._busy_learner`"""

from __future__ import annotations

import torch

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig


def main() -> None:
    torch.set_num_threads(1)
    robot = RobotSpec(
        name="busy",
        embodiment="busy",
        observation={"state": ArraySpec(shape=(19,))},
        action=ArraySpec(shape=(6,), low=(-1.0,) * 6, high=(1.0,) * 6),
        action_kind="ee_delta",
        control_hz=10.0,
    )
    algorithm = RLPD(RLPDConfig(), policy=GaussianMLP(GaussianMLPConfig(), robot=robot, seed=0), seed=0)
    num_rows = sum(algorithm.sample_request.rows.values())
    batch = {
        "observation/state": torch.randn(num_rows, 19),
        "next/state": torch.randn(num_rows, 19),
        "action": torch.rand(num_rows, 6) * 2 - 1,
        "reward": torch.rand(num_rows),
        "discount": torch.ones(num_rows),
        "human": torch.zeros(num_rows, dtype=torch.bool),
    }
    while True:
        algorithm.update(batch)


if __name__ == "__main__":
    main()
