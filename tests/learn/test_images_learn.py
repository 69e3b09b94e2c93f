"""A toy task that needs images: the best action is the position of a bright square."""

import numpy as np
import pytest
import torch

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.learn.algorithms.sac import SAC, SACConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig

ROBOT = RobotSpec(
    name="pointer",
    embodiment="toy",
    observation={"front": ArraySpec(shape=(16, 32, 3), dtype="uint8")},
    action=ArraySpec(shape=(1,), low=(-1.0,), high=(1.0,)),
    action_kind="joint_target",
    control_hz=10.0,
)


def scenes(num, rng):
    """Images with a square, and its position from -1 to 1."""
    images = rng.integers(0, 40, (num, 16, 32, 3), np.uint8)
    left, top = rng.integers(0, 28, num), rng.integers(0, 12, num)
    for image, x, y in zip(images, left, top, strict=True):
        image[y : y + 4, x : x + 4] = 255
    return images, ((left - 13.5) / 13.5).astype(np.float32)


def learn_online(policy, *, num_updates, seed):
    config = SACConfig(
        batch_size=64, hidden=(64,), lr=2e-3, random_shift=1, target_entropy=-2.0, actor_average=0.9
    )
    algorithm = SAC(config, policy=policy, seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(num_updates):
        images, where = scenes(64, rng)
        actions = rng.uniform(-1, 1, (64, 1)).astype(np.float32)  # a robot that only ever tried at random
        algorithm.update(
            {
                "observation/front": torch.from_numpy(images),
                "next/front": torch.from_numpy(images),
                "action": torch.from_numpy(actions),
                "reward": torch.from_numpy(1.0 - np.abs(actions[:, 0] - where)),
                "discount": torch.zeros(64),
                "human": torch.zeros(64, dtype=torch.bool),
            }
        )


def error(policy):
    images, where = scenes(200, np.random.default_rng(10**6))
    actions = policy.act({"front": images}, ActContext(deterministic=True)).actions[:, 0, 0]
    return float(np.abs(actions - where).mean())


@pytest.mark.extended
@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_actor_learns_from_the_critics_encoder(seed):
    """Without images the best action is 0, with a mean error of about 0.5."""
    config = GaussianMLPConfig(inputs=("front",), hidden=(64,), encoder={"features": 32})
    policy = GaussianMLP(config, robot=ROBOT, seed=seed)
    assert error(policy) > 0.4
    learn_online(policy, num_updates=300, seed=seed)
    assert error(policy) < 0.2
