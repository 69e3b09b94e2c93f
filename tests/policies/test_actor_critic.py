import math

import numpy as np
import pytest
import torch

from dovetail.core.specs import match
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.actor_critic import ActorCritic, ActorCriticConfig, ValuedPolicy
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.testing import check_policy
from support.toy_arm import ROBOT, batch


def make(**config):
    return ActorCritic(ActorCriticConfig(hidden=(16,), value_hidden=(16,), **config), robot=ROBOT, seed=3)


def features_of(policy, num_rows=32):
    return policy.features({key: torch.from_numpy(values) for key, values in batch(num_rows).items()})


def test_it_keeps_the_contracts():
    policy = make()
    match(ROBOT, policy=policy.spec)
    check_policy(make, snapshot=WeightSnapshot(version=4, components=policy.weights(), hashes={}))
    assert isinstance(policy, ValuedPolicy)
    assert not isinstance(GaussianMLP(GaussianMLPConfig(), robot=ROBOT), ValuedPolicy)


def test_log_density_and_entropy_are_a_gaussians():
    policy = make(std=0.3)
    features = features_of(policy)
    drawn, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(0))
    gaussian = torch.distributions.Normal(policy.components["actor"](features), 0.3)
    torch.testing.assert_close(log_prob, gaussian.log_prob(drawn).sum(-1))
    again, entropy, value = policy.evaluate_actions(features, drawn)
    torch.testing.assert_close(again, log_prob)
    torch.testing.assert_close(entropy, gaussian.entropy().sum(-1))
    torch.testing.assert_close(value, policy.value(features))
    assert value.shape == log_prob.shape == (32,)
    assert again.requires_grad
    assert entropy.requires_grad
    assert value.requires_grad


def test_the_spread_is_one_for_all_states_and_is_learned():
    policy = make(std=0.5)
    actor = policy.components["actor"]
    assert actor.log_std.shape == ROBOT.action.shape
    assert actor.log_std.tolist() == pytest.approx([math.log(0.5)] * len(actor.log_std))
    log_prob, _, _ = policy.evaluate_actions(features_of(policy), torch.zeros(32, *ROBOT.action.shape))
    (gradient,) = torch.autograd.grad(log_prob.sum(), [actor.log_std])
    assert gradient.abs().min() > 0


def test_the_first_actions_are_left_to_chance():
    policy = make()
    assert policy.components["actor"](features_of(policy)).abs().max() < 0.1


def test_what_was_drawn_comes_with_the_action():
    policy = make(std=2.0)
    chunk = policy.act(batch(64), ActContext(seed=1))
    drawn, low, high = chunk.extras["drawn"], *ROBOT.action.bounds
    assert (
        np.abs(drawn) > 1
    ).any()  # beyond the limits: the robot is sent the limit, ratios are of what was drawn
    wanted = np.clip(drawn, -1, 1) * (high - low) / 2 + (high + low) / 2
    np.testing.assert_allclose(chunk.actions[:, 0], wanted, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        features = features_of(policy, 64)
        log_prob, _, value = policy.evaluate_actions(features, torch.from_numpy(drawn))
    np.testing.assert_allclose(chunk.extras["log_prob"], log_prob.numpy(), rtol=1e-5)
    np.testing.assert_allclose(chunk.extras["value"], value.numpy(), rtol=1e-5)


def test_without_chance_the_mean_acts():
    policy = make()
    chunk = policy.act(batch(8), ActContext(deterministic=True))
    with torch.no_grad():
        mean = policy.components["actor"](features_of(policy, 8))
    np.testing.assert_array_equal(chunk.extras["drawn"], mean.numpy())
    again = policy.act(batch(8), ActContext(deterministic=True))
    np.testing.assert_array_equal(chunk.actions, again.actions)


def test_it_can_be_cloned_into():
    policy = make()
    features, wanted = features_of(policy).detach(), torch.full((32, *ROBOT.action.shape), 0.5)
    optimizer = torch.optim.Adam(policy.components["actor"].parameters(), lr=0.01)
    before = policy.imitation_loss(features, wanted).item()
    for _ in range(50):
        optimizer.zero_grad()
        policy.imitation_loss(features, wanted).backward()
        optimizer.step()
    assert policy.imitation_loss(features, wanted).item() < 0.1 * before
