"""Residual RL: the schedule of its bound, the critic's total actions, and which rows it draws."""

import numpy as np
import pytest
import torch

from dovetail.config.schema import OptimizerConfig
from dovetail.core.errors import UsageError
from dovetail.core.proposals import PROPOSAL, with_proposal
from dovetail.core.types import View
from dovetail.learn.algorithms.residual import ResidualRL, ResidualRLConfig
from dovetail.learn.setup import set_up
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.residual import ResidualPolicy
from dovetail.policies.settings import ResidualConfig
from dovetail.testing import check_algorithm
from dovetail.testing.algorithms import random_batch


@pytest.fixture
def arm(robot):
    return with_proposal(robot, steps=1)


@pytest.fixture
def make_policy(robot, arm):
    def make():
        base = Flow(FlowConfig(horizon=4, hidden=8, num_layers=1), robot=robot)
        base.act = lambda *_: pytest.fail("an update asked the base")
        return ResidualPolicy(ResidualConfig(base={"run": "x"}, hidden=(16,)), robot=arm, base=base)

    return make


def make(policy, **config):
    config = {
        "batch_size": 8,
        "hidden": (16, 16),
        "actor_every": 1,
        "base_updates": 2,
        "growth_updates": 4,
        **config,
    }
    return ResidualRL(ResidualRLConfig(**config), policy=policy, seed=0)


@pytest.fixture
def batch(make_policy, arm):
    arrays = random_batch(make(make_policy()).sample_request, arm, np.random.default_rng(0))
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def test_residual_keeps_the_algorithm_contract(make_policy, arm):
    check_algorithm(lambda: make(make_policy()), robot=arm)


def test_bound_is_zero_for_the_base_and_then_grows_in_proportion(make_policy, batch):
    policy = make_policy()
    algorithm = make(policy)
    shares = [algorithm.update(batch)["correction_share"] for _ in range(8)]
    assert shares == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert algorithm.policy_weights()["residual"]["share"] == 1.0
    assert float(policy.residual.share) == 1.0


def test_actor_stays_at_zero_while_the_base_acts_alone(make_policy, batch):
    policy = make_policy()
    algorithm = make(policy)
    for expected in (0.0, 0.0):
        assert "actor_loss" not in algorithm.update(batch)
        assert policy.residual.net[-1].weight.abs().sum().item() == expected
    assert "actor_loss" in algorithm.update(batch)
    assert policy.residual.net[-1].weight.abs().sum().item() > 0.0


def test_networks_have_their_own_rates_and_the_schedule_counts_steps_of_the_network(make_policy, batch):
    policy = make_policy()
    algorithm = make(policy, lr=0.01)
    settings = {
        "actor": OptimizerConfig(lr=0.2, schedule="linear", decay_updates=2),
        "critic": OptimizerConfig(lr=0.1),
    }
    set_up(algorithm, name="residual", optimizers=settings)
    last = policy.residual.net[-1]
    for num_updates, rate in enumerate(
        (0.0, 0.0, 0.2, 0.1, 0.0)
    ):  # the actor's first step is that of the third update
        weight, critic = (one.detach().clone() for one in (last.weight, algorithm._critic.weights[0]))
        algorithm.update(batch)
        assert (last.weight.detach() - weight).abs().max().item() == pytest.approx(rate, rel=0.5)
        if num_updates == 0:  # the first step of Adam has the size of the rate
            assert (algorithm._critic.weights[0] - critic).abs().max().item() == pytest.approx(0.1, rel=0.05)


def test_target_is_the_value_of_the_total_action(make_policy, batch):
    """With a bound of 0, the next action is the stored proposal: y = r + discount * min Q'(s', a_base)."""
    policy = make_policy()
    algorithm = make(policy, base_updates=100)
    with torch.no_grad():
        after = {key: batch[f"next/{key}"] for key in policy.spec.learned_keys}
        s, proposed = policy.features(after), policy.normalize_actions(after[PROPOSAL])
        y = batch["reward"] + batch["discount"] * algorithm._target(torch.cat((s, proposed), 1)).amin(0)
        before = policy.features({key: batch[f"observation/{key}"] for key in policy.spec.learned_keys})
        q = algorithm._critic(torch.cat((before, policy.normalize_actions(batch["action"])), 1))
    assert algorithm.update(batch)["critic_loss"] == pytest.approx(float((q - y).square().mean()), rel=1e-5)


def test_batch_has_prior_successful_and_online_rows(make_policy):
    rows = make(make_policy(), prior_fraction=0.25, success_fraction=0.5).sample_request.rows
    assert rows == {View(part="prior"): 2, View(part="online"): 2, View(part="accepted"): 4}
    with pytest.raises(ValueError, match="exceed 1 together"):
        ResidualRLConfig(prior_fraction=0.6, success_fraction=0.5)


def test_another_policy_is_refused(policy):
    with pytest.raises(UsageError, match=r"Set policy\.type=residual"):
        make(policy)
