"""A flow with densities and values: equal to the cloned flow without noise, trainable by PPO."""

import numpy as np
import pytest
import torch

from dovetail.core.types import ActContext
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.flows.valued_flow import ValuedFlow, ValuedFlowConfig
from dovetail.policies.trainable import ValuedPolicy
from dovetail.testing import check_policy
from support.toy_arm import DETERMINISTIC, ROBOT, observations, snapshot_of

SMALL = {"horizon": 3, "hidden": 16, "num_layers": 2}
NOISE = [
    {"type": "sde"},
    {"type": "sde", "one_step": True},
    {"type": "learned"},
    {"type": "learned", "one_step": True},
]


def make(seed=3, **config):
    return ValuedFlow(ValuedFlowConfig(**({"value_hidden": (16,)} | SMALL | config)), robot=ROBOT, seed=seed)


@pytest.mark.parametrize("noise", NOISE)
def test_valued_flow_keeps_the_policy_contracts(noise):
    check_policy(lambda: make(path_noise=noise), snapshot=snapshot_of(make(seed=4, path_noise=noise)))
    assert isinstance(make(path_noise=noise), ValuedPolicy)


@pytest.mark.parametrize("config", [{}, {"inputs": ("force", "front"), "history": {"force": 3}}])
def test_images_and_history_are_inputs(config):
    check_policy(lambda: make(**config), snapshot=snapshot_of(make(seed=4, **config)))


def test_deterministic_chunks_are_those_of_the_cloned_flow():
    cloned = Flow(FlowConfig(**SMALL), robot=ROBOT, seed=5)
    policy = make(path_noise={"type": "learned"})
    weights = {**policy.weights(), **cloned.weights()}
    policy.load(snapshot_of(policy).__class__(version=1, components=weights, hashes={}))
    assert np.array_equal(
        policy.act(observations(), DETERMINISTIC).actions, cloned.act(observations(), DETERMINISTIC).actions
    )


@pytest.mark.parametrize("noise", NOISE)
def test_density_of_what_was_drawn_is_the_same_in_learning(noise):
    policy = make(path_noise=noise)
    chunk = policy.act(observations(), ActContext(seed=1))
    drawn = torch.from_numpy(chunk.extras["drawn"])
    num_rows = len(drawn)
    assert drawn.shape == (num_rows, policy.num_drawn)
    assert chunk.extras["log_prob"].shape == (num_rows, 3)
    features = policy.features({key: torch.from_numpy(value) for key, value in observations().items()})
    log_prob, entropy, value = policy.evaluate_actions(features, drawn)
    np.testing.assert_allclose(log_prob.detach().numpy(), chunk.extras["log_prob"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(value.detach().numpy(), chunk.extras["value"], rtol=1e-5, atol=1e-6)
    assert entropy.shape == (num_rows, 3)
    log_prob.sum().backward()
    trained = {"actor", "path_noise"} & set(policy.components)
    for name in trained:
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in policy.components[name].parameters())


@pytest.mark.parametrize("trains", [False, True])
def test_value_trains_the_encoder_only_if_asked(trains):
    policy = make(prompt_features=4, value_trains_encoder=trains)
    inputs = {key: torch.from_numpy(value) for key, value in observations().items()}
    num_rows = len(next(iter(inputs.values())))
    inputs["prompt"] = torch.randint(97, 122, (num_rows, 256), dtype=torch.uint8)
    policy.value(policy.features(inputs)).sum().backward()
    has_grad = any(p.grad is not None and p.grad.abs().max() > 0 for p in policy.encoder.parameters())
    assert has_grad == trains
    assert all(p.grad is None for p in policy.components["actor"].parameters())


@pytest.mark.parametrize("noise", NOISE)
def test_single_actions_have_one_density_each(noise):
    """As every ValuedPolicy: [B] for a horizon of 1, so that rollouts have one number per step."""
    policy = make(horizon=1, path_noise=noise)
    chunk = policy.act(observations(), ActContext(seed=1))
    num_rows = len(chunk.actions)
    assert chunk.extras["log_prob"].shape == (num_rows,)
    features = policy.features({key: torch.from_numpy(value) for key, value in observations().items()})
    log_prob, entropy, _ = policy.evaluate_actions(features, torch.from_numpy(chunk.extras["drawn"]))
    np.testing.assert_allclose(log_prob.detach().numpy(), chunk.extras["log_prob"], rtol=1e-4, atol=1e-4)
    assert entropy.shape == (num_rows,)
