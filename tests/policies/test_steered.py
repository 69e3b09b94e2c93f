"""A flow that is steered: the flow as it was until somebody engages the steering, then its choice of noise."""

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.policies.flow import Flow, FlowConfig
from dovetail.policies.steered import Steered, SteeredConfig
from dovetail.policies.trainable import TrainablePolicy
from dovetail.testing import check_algorithm, check_policy
from support.toy_arm import ROBOT, STILL, batch

SMALL = {"horizon": 6, "hidden": 16, "num_layers": 2}


def make(seed=3, *, engaged=True, **config):
    policy = Steered(SteeredConfig(**({"steering_hidden": (16,)} | SMALL | config)), robot=ROBOT, seed=seed)
    policy.steering.engaged.fill_(float(engaged))
    return policy


def seen(policy, num=4):
    return policy.features({key: torch.from_numpy(value) for key, value in batch(num).items()})


@pytest.mark.parametrize("engaged", [False, True])
@pytest.mark.parametrize("config", [{}, {"horizon": 1}, {"inputs": ("force", "front"), "history": {"force": 3}}])
def test_it_keeps_the_contract(engaged, config):
    donor = make(seed=4, engaged=engaged, **config)
    snapshot = WeightSnapshot(version=9, components=donor.weights(), hashes={})
    check_policy(lambda: make(engaged=engaged, **config), snapshot=snapshot)
    assert isinstance(donor, TrainablePolicy)


def test_it_is_a_policy_by_name():
    assert resolve("policy", "steered") is Steered
    assert make().spec.name == "steered"


def test_until_it_is_engaged_it_is_the_flow():
    flow = Flow(FlowConfig(**SMALL), robot=ROBOT, seed=3)
    for context in (STILL, ActContext(seed=5)):
        assert np.array_equal(
            make(engaged=False).act(batch(), context).actions, flow.act(batch(), context).actions
        )
        assert not np.array_equal(make().act(batch(), context).actions, flow.act(batch(), context).actions)


def test_being_engaged_travels_with_the_weights():
    policy, donor = make(engaged=False), make(engaged=True)
    policy.load(WeightSnapshot(version=1, components=donor.weights(), hashes={}))
    assert np.array_equal(policy.act(batch(), STILL).actions, donor.act(batch(), STILL).actions)


def test_at_first_it_chooses_about_what_the_flow_was_trained_on():
    noise, _ = make().steer(torch.randn(500, 5), generator=torch.Generator().manual_seed(0))
    assert noise.shape == (500, 6, 2)
    assert noise.mean().item() == pytest.approx(0.0, abs=0.03)
    assert noise.std().item() == pytest.approx(1.0, abs=0.1)
    assert noise.abs().max() <= 1.5


def test_the_chosen_noise_is_what_the_flow_starts_from():
    policy = make()
    torch.nn.init.normal_(policy.steering.net[-1].weight, generator=torch.Generator().manual_seed(0))
    features = seen(policy)
    mean, _ = policy.steering(features)
    chunks = policy.chunks(features, 1.5 * torch.tanh(mean).view(4, 6, 2))
    calm = policy.normalize_actions(torch.from_numpy(policy.act(batch(), STILL).actions))
    torch.testing.assert_close(calm, chunks, rtol=1e-5, atol=1e-5)
    noise, _ = policy.steer(features, generator=torch.Generator().manual_seed(7))
    drawn = policy.normalize_actions(torch.from_numpy(policy.act(batch(), ActContext(seed=7)).actions))
    torch.testing.assert_close(drawn, policy.chunks(features, noise), rtol=1e-5, atol=1e-5)


def test_log_density_is_that_of_the_squashed_noise():
    policy = make(max_noise=2.0)
    torch.nn.init.normal_(policy.steering.net[-1].weight, std=0.3, generator=torch.Generator().manual_seed(0))
    features = seen(policy)
    noise, log_prob = policy.steer(features, generator=torch.Generator().manual_seed(0))
    chosen = (noise / 2.0).flatten(1)
    mean, log_std = policy.steering(features)
    raw = torch.distributions.Normal(mean, log_std.exp()).log_prob(torch.atanh(chosen))
    expected = (raw - (1 - chosen**2).log()).sum(1)
    torch.testing.assert_close(log_prob, expected, rtol=1e-3, atol=1e-3)


def test_cloning_trains_the_flow_and_not_the_steering():
    def algorithm():
        return Imitation(ImitationConfig(batch_size=8), policy=make(engaged=False))

    check_algorithm(algorithm, robot=ROBOT)


def test_a_steered_chunk_can_be_guided_too():
    policy, (low, high) = make(), ROBOT.action.bounds
    prefix = np.random.default_rng(7).uniform(low, high, (4, 6, 2)).astype(np.float32)
    pulled = policy.act(batch(), ActContext(deterministic=True, prefix=prefix, delay=2, horizon=2)).actions
    plain = policy.act(batch(), STILL).actions
    missed = [np.abs((actions - prefix) / (high - low))[:, :2].mean() for actions in (plain, pulled)]
    assert missed[1] < 0.7 * missed[0]
