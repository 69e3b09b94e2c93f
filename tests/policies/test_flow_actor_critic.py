"""The flow actor-critic for PPO: the density of a path under the same and under other networks."""

import math

import numpy as np
import pytest
import torch

from dovetail.core.specs import match
from dovetail.core.types import ActContext
from dovetail.policies.flows.flow_actor_critic import FlowActorCritic, FlowActorCriticConfig
from dovetail.policies.flows.noisy_path import path_density, sde_steps
from dovetail.policies.trainable import ValuedPolicy
from dovetail.testing import check_policy
from support.toy_arm import ROBOT, features_of, observations, snapshot_of


def make(seed=3, **config):
    settings = {"hidden": 16, "num_layers": 1, "num_flow_steps": 4, "value_hidden": (16,), **config}
    return FlowActorCritic(FlowActorCriticConfig(**settings), robot=ROBOT, seed=seed)


def extras_of(policy, **context):
    return policy.act(observations(32), ActContext(**context)).extras


def test_flow_actor_critic_keeps_the_policy_contracts():
    policy = make()
    match(ROBOT, policy=policy.spec)
    check_policy(make, snapshot=snapshot_of(policy))
    assert isinstance(policy, ValuedPolicy)
    assert set(policy.components) == {"velocity", "sigma", "critic"}


def test_path_density_by_hand():
    """From 1 to 0.4 to 0.5 in two steps, v = -x, sigma 0.5: drifts -1 + 0.125 (0 - 1) / 1 at t = 0, and -0.4 + 0.125
    (-0.2 - 0.4) / 0.5 = -0.55 at t = 0.5; so the noise was (0.4 - 0.4375) / 0.35355 and (0.5 - 0.125) / 0.35355."""
    path = torch.tensor([[[1.0]], [[0.4]], [[0.5]]])
    density = path_density(
        lambda x, t: -x, sde_steps(lambda _: torch.full((1, 1), 0.5), dt=1 / (len(path) - 1)), path
    )
    step_std = 0.5 * math.sqrt(0.5)
    noise = (1.0, (0.4 - 0.4375) / step_std, (0.5 - 0.125) / step_std)
    expected = sum(-0.5 * e * e - 0.5 * math.log(2 * math.pi) for e in noise) - 2 * math.log(step_std)
    assert density.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("velocity", ["gated", "transformer"])
def test_density_of_a_sampled_path_equals_the_one_from_act(velocity):
    policy = make(velocity=velocity)
    extras = extras_of(policy, seed=1)
    assert extras["drawn"].shape == (32, 5 * ROBOT.action.shape[0]) == (32, policy.num_drawn)
    evaluated, _, value = policy.evaluate_actions(features_of(policy, 32), torch.from_numpy(extras["drawn"]))
    np.testing.assert_allclose(evaluated.detach().numpy(), extras["log_prob"], atol=1e-4)
    np.testing.assert_allclose(value.detach().numpy(), extras["value"], atol=1e-6)
    assert evaluated.requires_grad
    assert value.requires_grad
    other, _, _ = make(seed=4, velocity=velocity).evaluate_actions(
        features_of(policy, 32), torch.from_numpy(extras["drawn"])
    )
    assert (other - evaluated).abs().min() > 1e-3


def test_action_is_the_end_of_the_path():
    policy = make()
    chunk = policy.act(observations(32), ActContext(seed=1))
    ends = chunk.extras["drawn"].reshape(32, 5, -1)[:, -1]
    low, high = ROBOT.action.bounds
    np.testing.assert_allclose(chunk.actions[:, 0], np.tanh(ends) * (high - low) / 2 + (low + high) / 2, atol=1e-5)
    deterministic = extras_of(policy, deterministic=True)["drawn"].reshape(32, 5, -1)
    assert (deterministic[:, 0] == 0.0).all()


def test_entropy_is_the_mean_negative_log_density():
    policy = make()
    features = features_of(policy, 1).repeat(40_000, 1)
    path, log_density = policy._path(
        features, torch.randn(policy._noise_shape(features), generator=torch.Generator().manual_seed(0))
    )
    _, entropy, _ = policy.evaluate_actions(features, torch.stack(path, 1).flatten(1))
    assert entropy[0].item() == pytest.approx(-log_density.mean().item(), rel=5e-3)
    assert entropy.requires_grad


def test_gradients_of_the_density_match_finite_differences():
    policy = make()
    for module in policy.components.values():
        module.double()
    drawn = torch.from_numpy(extras_of(make(seed=5), seed=2)["drawn"]).double()
    features = features_of(policy, 32).double()

    def value():
        return policy.evaluate_actions(features, drawn)[0].sum()

    parameters = [p for name in ("velocity", "sigma") for p in policy.components[name].parameters()]
    gradients = torch.autograd.grad(value(), parameters)
    assert all(gradient.abs().max() > 0 for gradient in gradients[:2])
    generator, step = torch.Generator().manual_seed(2), 1e-6
    directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
    values = []
    with torch.no_grad():
        for sign in (1, -2):
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter += sign * step * direction
            values.append(value().item())
    slope = sum((g * w).sum().item() for g, w in zip(gradients, directions, strict=True))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=1e-5)
