"""The Gaussian actor-critic for PPO: densities, entropy, values, and the extras of `act`."""

import math

import numpy as np
import pytest
import torch

from dovetail.core.specs import match
from dovetail.core.types import ActContext
from dovetail.policies.actor_critic import ActorCritic, ActorCriticConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.trainable import ValuedPolicy
from dovetail.testing import check_policy
from support.toy_arm import DETERMINISTIC, ROBOT, features_of, observations, snapshot_of


def make(**config):
    return ActorCritic(ActorCriticConfig(hidden=(16,), value_hidden=(16,), **config), robot=ROBOT, seed=3)


def test_actor_critic_keeps_the_policy_contracts():
    policy = make()
    match(ROBOT, policy=policy.spec)
    check_policy(make, snapshot=snapshot_of(policy))
    assert isinstance(policy, ValuedPolicy)
    assert not isinstance(GaussianMLP(GaussianMLPConfig(), robot=ROBOT), ValuedPolicy)


def test_log_density_and_entropy_are_those_of_a_gaussian():
    policy = make(initial_std=0.3)
    features = features_of(policy, 32)
    drawn, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(0))
    gaussian = torch.distributions.Normal(policy.components["actor"](features), 0.3)
    torch.testing.assert_close(log_prob, gaussian.log_prob(drawn).sum(-1))
    evaluated, entropy, value = policy.evaluate_actions(features, drawn)
    torch.testing.assert_close(evaluated, log_prob)
    torch.testing.assert_close(entropy, gaussian.entropy().sum(-1))
    torch.testing.assert_close(value, policy.value(features))
    assert value.shape == log_prob.shape == (32,)
    assert evaluated.requires_grad
    assert entropy.requires_grad
    assert value.requires_grad


def test_std_is_one_learned_value_for_all_states():
    policy = make(initial_std=0.5)
    actor = policy.components["actor"]
    assert actor.log_std.shape == ROBOT.action.shape
    assert actor.log_std.tolist() == pytest.approx([math.log(0.5)] * len(actor.log_std))
    log_prob, _, _ = policy.evaluate_actions(features_of(policy, 32), torch.zeros(32, *ROBOT.action.shape))
    (gradient,) = torch.autograd.grad(log_prob.sum(), [actor.log_std])
    assert gradient.abs().min() > 0


def test_initial_means_are_near_zero():
    policy = make()
    assert policy.components["actor"](features_of(policy, 32)).abs().max() < 0.1


def test_act_returns_the_sample_before_clipping():
    policy = make(initial_std=2.0)
    chunk = policy.act(observations(64), ActContext(seed=1))
    drawn, low, high = chunk.extras["drawn"], *ROBOT.action.bounds
    assert (np.abs(drawn) > 1).any()  # outside the limits, which only the action respects
    expected = np.clip(drawn, -1, 1) * (high - low) / 2 + (high + low) / 2
    np.testing.assert_allclose(chunk.actions[:, 0], expected, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        features = features_of(policy, 64)
        log_prob, _, value = policy.evaluate_actions(features, torch.from_numpy(drawn))
    np.testing.assert_allclose(chunk.extras["log_prob"], log_prob.numpy(), rtol=1e-5)
    np.testing.assert_allclose(chunk.extras["value"], value.numpy(), rtol=1e-5)


def test_deterministic_action_is_the_mean():
    policy = make()
    chunk = policy.act(observations(8), DETERMINISTIC)
    with torch.no_grad():
        mean = policy.components["actor"](features_of(policy, 8))
    np.testing.assert_array_equal(chunk.extras["drawn"], mean.numpy())
    again = policy.act(observations(8), DETERMINISTIC)
    np.testing.assert_array_equal(chunk.actions, again.actions)


def test_imitation_loss_clones_an_action():
    policy = make()
    features, target = features_of(policy, 32).detach(), torch.full((32, *ROBOT.action.shape), 0.5)
    optimizer = torch.optim.Adam(policy.components["actor"].parameters(), lr=0.01)
    before = policy.imitation_loss(features, target).item()
    for _ in range(50):
        optimizer.zero_grad()
        policy.imitation_loss(features, target).backward()
        optimizer.step()
    assert policy.imitation_loss(features, target).item() < 0.1 * before
