"""A flow that PPO can train: how likely a path was, by the networks that took it and by others."""

import math

import numpy as np
import pytest
import torch

from dovetail.core.specs import match
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.actor_critic import ValuedPolicy
from dovetail.policies.flow_actor_critic import FlowActorCritic, FlowActorCriticConfig
from dovetail.policies.velocity import path_density
from dovetail.testing import check_policy
from support.toy_arm import ROBOT, batch


def make(seed=3, **config):
    settings = {"hidden": 16, "num_layers": 1, "num_flow_steps": 4, "value_hidden": (16,), **config}
    return FlowActorCritic(FlowActorCriticConfig(**settings), robot=ROBOT, seed=seed)


def features_of(policy, num_rows=32):
    return policy.features({key: torch.from_numpy(values) for key, values in batch(num_rows).items()})


def acted(policy, **context):
    return policy.act(batch(32), ActContext(**context)).extras


def test_it_keeps_the_contracts():
    policy = make()
    match(ROBOT, policy=policy.spec)
    check_policy(make, snapshot=WeightSnapshot(version=4, components=policy.weights(), hashes={}))
    assert isinstance(policy, ValuedPolicy)
    assert set(policy.components) == {"velocity", "sigma", "critic"}


def test_a_path_by_hand():
    """From 1 to 0.4 to 0.5 in two steps, v = -x, sigma 0.5: drifts -1 + 0.125 (0 - 1) / 1 at t = 0, and -0.4 + 0.125
    (-0.2 - 0.4) / 0.5 = -0.55 at t = 0.5; so the noise was (0.4 - 0.4375) / 0.35355 and (0.5 - 0.125) / 0.35355."""
    path = torch.tensor([[[1.0]], [[0.4]], [[0.5]]])
    density = path_density(lambda x, t: -x, path, sigma=torch.full((1, 1), 0.5))
    spread = 0.5 * math.sqrt(0.5)
    surprises = (1.0, (0.4 - 0.4375) / spread, (0.5 - 0.125) / spread)
    expected = sum(-0.5 * e * e - 0.5 * math.log(2 * math.pi) for e in surprises) - 2 * math.log(spread)
    assert density.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("velocity", ["gated", "transformer"])
def test_what_was_drawn_is_as_likely_as_it_was_said_to_be(velocity):
    policy = make(velocity=velocity)
    told = acted(policy, seed=1)
    assert told["drawn"].shape == (32, 5 * ROBOT.action.shape[0]) == (32, policy.num_drawn)
    again, _, value = policy.evaluate_actions(features_of(policy), torch.from_numpy(told["drawn"]))
    np.testing.assert_allclose(again.detach().numpy(), told["log_prob"], atol=1e-4)
    np.testing.assert_allclose(value.detach().numpy(), told["value"], atol=1e-6)
    assert again.requires_grad
    assert value.requires_grad
    other, _, _ = make(seed=4, velocity=velocity).evaluate_actions(
        features_of(policy), torch.from_numpy(told["drawn"])
    )
    assert (other - again).abs().min() > 1e-3


def test_the_action_is_where_the_path_ends():
    policy = make()
    chunk = policy.act(batch(32), ActContext(seed=1))
    ends = chunk.extras["drawn"].reshape(32, 5, -1)[:, -1]
    low, high = ROBOT.action.bounds
    np.testing.assert_allclose(chunk.actions[:, 0], np.tanh(ends) * (high - low) / 2 + (low + high) / 2, atol=1e-5)
    calm = acted(policy, deterministic=True)["drawn"].reshape(32, 5, -1)
    assert (calm[:, 0] == 0.0).all()


def test_entropy_is_the_mean_surprise_of_paths():
    policy = make()
    features = features_of(policy, 1).repeat(40_000, 1)
    path, log_density = policy._path(
        features, torch.randn(policy._noise_shape(features), generator=torch.Generator().manual_seed(0))
    )
    _, entropy, _ = policy.evaluate_actions(features, torch.stack(path, 1).flatten(1))
    assert entropy[0].item() == pytest.approx(-log_density.mean().item(), rel=5e-3)
    assert entropy.requires_grad


def test_gradients_of_a_ratio_are_those_of_finite_differences():
    policy = make()
    for module in policy.components.values():
        module.double()
    drawn = torch.from_numpy(acted(make(seed=5), seed=2)["drawn"]).double()
    features = features_of(policy).double()

    def value():
        return policy.evaluate_actions(features, drawn)[0].sum()

    parameters = [p for name in ("velocity", "sigma") for p in policy.components[name].parameters()]
    gradients = torch.autograd.grad(value(), parameters)
    assert all(gradient.abs().max() > 0 for gradient in gradients[:2])
    generator, step = torch.Generator().manual_seed(2), 1e-6
    ways = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
    sides = []
    with torch.no_grad():
        for sign in (1, -2):
            for parameter, way in zip(parameters, ways, strict=True):
                parameter += sign * step * way
            sides.append(value().item())
    slope = sum((g * w).sum().item() for g, w in zip(gradients, ways, strict=True))
    assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(slope, rel=1e-5)
