"""The steered flow: a plain flow until its steering is engaged, then a flow with chosen noise."""

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.types import ActContext
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.flows.steered_flow import SteeredFlow, SteeredFlowConfig
from dovetail.policies.trainable import TrainablePolicy
from dovetail.testing import check_algorithm, check_policy
from support.toy_arm import DETERMINISTIC, ROBOT, features_of, observations, snapshot_of

SMALL = {"horizon": 6, "hidden": 16, "num_layers": 2}


def make(seed=3, *, engaged=True, **config):
    policy = SteeredFlow(
        SteeredFlowConfig(**({"steering_hidden": (16,)} | SMALL | config)), robot=ROBOT, seed=seed
    )
    policy.steering.engaged.fill_(float(engaged))
    return policy


@pytest.mark.parametrize("engaged", [False, True])
@pytest.mark.parametrize("config", [{}, {"horizon": 1}, {"inputs": ("force", "front"), "history": {"force": 3}}])
def test_steered_flow_keeps_the_policy_contract(engaged, config):
    donor = make(seed=4, engaged=engaged, **config)
    check_policy(lambda: make(engaged=engaged, **config), snapshot=snapshot_of(donor))
    assert isinstance(donor, TrainablePolicy)


def test_config_type_steered_is_the_steered_flow():
    assert resolve("policy", "steered") is SteeredFlow
    assert make().spec.name == "steered"


def test_actions_before_engagement_are_those_of_the_flow():
    flow = Flow(FlowConfig(**SMALL), robot=ROBOT, seed=3)
    for context in (DETERMINISTIC, ActContext(seed=5)):
        assert np.array_equal(
            make(engaged=False).act(observations(), context).actions, flow.act(observations(), context).actions
        )
        assert not np.array_equal(
            make().act(observations(), context).actions, flow.act(observations(), context).actions
        )


def test_engagement_is_part_of_the_weights():
    policy, donor = make(engaged=False), make(engaged=True)
    policy.load(snapshot_of(donor))
    assert np.array_equal(
        policy.act(observations(), DETERMINISTIC).actions, donor.act(observations(), DETERMINISTIC).actions
    )


def test_initial_noise_is_close_to_a_standard_normal():
    noise, _ = make().steering.sample(torch.randn(500, 5), generator=torch.Generator().manual_seed(0))
    assert noise.shape == (500, 12)
    assert noise.mean().item() == pytest.approx(0.0, abs=0.03)
    assert noise.std().item() == pytest.approx(1.0, abs=0.1)
    assert noise.abs().max() <= 1.5


def test_flow_starts_from_the_chosen_noise():
    policy = make()
    torch.nn.init.normal_(policy.steering.net[-1].weight, generator=torch.Generator().manual_seed(0))
    features = features_of(policy)
    mean, _ = policy.steering(features)
    chunks = policy.chunks_from_noise(features, 1.5 * torch.tanh(mean).view(4, 6, 2))
    deterministic = policy.normalize_actions(torch.from_numpy(policy.act(observations(), DETERMINISTIC).actions))
    torch.testing.assert_close(deterministic, chunks, rtol=1e-5, atol=1e-5)
    noise, _ = policy.steering.sample(features, generator=torch.Generator().manual_seed(7))
    drawn = policy.normalize_actions(torch.from_numpy(policy.act(observations(), ActContext(seed=7)).actions))
    torch.testing.assert_close(drawn, policy.chunks_from_noise(features, noise), rtol=1e-5, atol=1e-5)


def test_log_density_is_that_of_the_noise_after_tanh():
    policy = make(max_noise=2.0)
    torch.nn.init.normal_(policy.steering.net[-1].weight, std=0.3, generator=torch.Generator().manual_seed(0))
    features = features_of(policy)
    noise, log_prob = policy.steering.sample(features, generator=torch.Generator().manual_seed(0))
    chosen = (noise / 2.0).flatten(1)
    mean, log_std = policy.steering(features)
    raw = torch.distributions.Normal(mean, log_std.exp()).log_prob(torch.atanh(chosen))
    expected = (raw - (1 - chosen**2).log()).sum(1)
    torch.testing.assert_close(log_prob, expected, rtol=1e-3, atol=1e-3)


def test_cloning_trains_the_flow_but_not_the_steering():
    def algorithm():
        return Imitation(ImitationConfig(batch_size=8), policy=make(engaged=False))

    check_algorithm(algorithm, robot=ROBOT)


def test_steered_chunks_can_be_guided():
    policy, (low, high) = make(), ROBOT.action.bounds
    prefix = np.random.default_rng(7).uniform(low, high, (4, 6, 2)).astype(np.float32)
    guided = policy.act(observations(), ActContext(deterministic=True, prefix=prefix, delay=2, horizon=2)).actions
    plain = policy.act(observations(), DETERMINISTIC).actions
    errors = [np.abs((actions - prefix) / (high - low))[:, :2].mean() for actions in (plain, guided)]
    assert errors[1] < 0.7 * errors[0]
