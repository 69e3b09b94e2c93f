"""Diffusion whose initial noise DSRL chooses: DDIM only, because DDPM draws more noise in each step."""

import numpy as np
import pytest
import torch

from dovetail.core.errors import UsageError
from dovetail.core.types import ActContext
from dovetail.learn.algorithms.dsrl import DSRL, DSRLConfig
from dovetail.policies.lerobot.diffusion import Diffusion
from dovetail.policies.lerobot.settings import DiffusionConfig
from dovetail.policies.trainable import Steerable
from dovetail.testing import check_algorithm
from support.toy_arm import DETERMINISTIC, ROBOT, observations

HORIZON = 4


def make(*, engaged=True, **config):
    settings = {
        "inputs": ("joint_pos", "force"),
        "horizon": HORIZON,
        "num_observations": 1,
        "channels": (8, 16),
        "num_groups": 4,
        "time_features": 8,
        "scheduler": "ddim",
        "num_denoising_steps": 3,
        "steering": {},
    }
    policy = Diffusion(DiffusionConfig(**(settings | config)), robot=ROBOT, seed=1)
    if policy.steering is not None:
        policy.steering.engaged.fill_(float(engaged))
    return policy


def inputs():
    """With the masks that keys with history need."""
    spec, found = make().spec, observations()
    values = {key: found[key][:, None] if spec.history.get(key) else found[key] for key in found}
    masks = {f"{key}/mask": np.ones((4, 1), np.bool_) for key in found if spec.history.get(key)}
    return {**values, **masks}


def tensors():
    return {key: torch.from_numpy(value) for key, value in inputs().items()}


def test_ddpm_is_refused():
    with pytest.raises(UsageError, match=r"Set policy\.scheduler=ddim"):
        make(scheduler="ddpm")
    assert "steering" not in make(steering=None).components


def test_chunks_start_from_the_chosen_noise():
    policy = make()
    assert isinstance(policy, Steerable)
    torch.nn.init.normal_(policy.steering.net[-1].weight, generator=torch.Generator().manual_seed(0))
    s, given = policy.steering_inputs(tensors())
    for context, noise in (
        (DETERMINISTIC, policy.steering.most_likely(s)),
        (ActContext(seed=7), policy.steering.sample(s, generator=torch.Generator().manual_seed(7))[0]),
    ):
        expected = policy._chunk(policy.chunks_from_noise(given, noise.detach())).actions
        np.testing.assert_allclose(policy.act(inputs(), context).actions, expected, atol=1e-6)
    unsteered = make(engaged=False).act(inputs(), ActContext(seed=7)).actions
    assert np.array_equal(unsteered, make(steering=None).act(inputs(), ActContext(seed=7)).actions)
    assert not np.allclose(unsteered, expected)


def test_chunk_of_the_same_noise_is_that_of_the_sampler():
    policy = make(engaged=False)
    drawn = torch.randn((4, HORIZON, 2), generator=torch.Generator().manual_seed(7))
    _, given = policy.steering_inputs(tensors())
    expected = policy._chunk(policy.chunks_from_noise(given, drawn.flatten(1))).actions
    np.testing.assert_allclose(policy.act(inputs(), ActContext(seed=7)).actions, expected, atol=1e-6)


def test_dsrl_keeps_the_algorithm_contract():
    def algorithm():
        config = DSRLConfig(batch_size=8, hidden=(16,), actor_every=1)
        return DSRL(config, policy=make(engaged=False, steering={"repeat": True}))

    assert algorithm()._flow.num_noise == 2
    check_algorithm(algorithm, robot=ROBOT, num_updates=3)
