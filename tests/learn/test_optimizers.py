"""`learner.optimizers`: learning rates, decay and schedules of single components, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dovetail.config.schema import OptimizerConfig
from dovetail.core.errors import UsageError
from dovetail.learn.algorithms.dsrl import DSRL, DSRLConfig
from dovetail.learn.algorithms.hg_dagger import HGDAgger, HGDAggerConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.ppo import PPO, PPOConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.algorithms.sac import SAC, SACConfig
from dovetail.learn.batches import batch_arrays
from dovetail.learn.schedules import lr_factor
from dovetail.learn.setup import set_up
from dovetail.policies.actor_critic import ActorCritic, ActorCriticConfig
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.flows.steered_flow import SteeredFlow, SteeredFlowConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.testing import check_algorithm
from dovetail.testing.algorithms import random_batch
from support.small_algorithms import rollout

SMALL = {"horizon": 3, "hidden": 16, "num_layers": 1, "num_flow_steps": 2, "prompt_features": 4}


def make(robot, optimizers, *, algorithm=Imitation, config=None):
    policy = Flow(FlowConfig(**SMALL), robot=robot)
    learner = algorithm(config or ImitationConfig(batch_size=4, lr=0.01), policy=policy, seed=0)
    set_up(learner, name=learner.name, optimizers={n: OptimizerConfig(**s) for n, s in optimizers.items()})
    return learner


def update(learner, robot, times=1):
    batch = {name: torch.from_numpy(v) for name, v in batch_arrays(learner.sample_request, robot).items()}
    batch["action/mask"][:] = True
    batch["prompt"][:, :3] = 65
    for _ in range(times):
        learner.update(batch)


def lrs(learner):
    return {group["component"]: group["lr"] for group in learner._optimizer.param_groups}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"warmup_updates": 4}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        ({"schedule": "linear", "decay_updates": 4}, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ({"schedule": "cosine", "decay_updates": 4, "warmup_updates": 2}, [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]),
    ],
)
def test_schedules_worked_out_by_hand(settings, expected):
    config = OptimizerConfig(**settings)
    assert [lr_factor(config, update) for update in range(6)] == pytest.approx(expected)


def test_each_component_has_its_own_rate_and_schedule(robot):
    learner = make(robot, {"encoder": {"lr": 0.1, "schedule": "linear", "decay_updates": 4}})
    seen = []
    for _ in range(3):
        update(learner, robot)
        seen.append(lrs(learner))
    assert [one["actor"] for one in seen] == [0.01] * 3
    assert [one["encoder"] for one in seen] == pytest.approx([0.1, 0.075, 0.05])


def test_first_step_of_adam_has_the_size_of_the_rate(robot):
    """The first step of Adam is lr * sign(gradient), whatever the gradient. Without weight decay, that is all."""
    learner = make(
        robot, {"actor": {"lr": 0.02, "weight_decay": 0.0}, "encoder": {"lr": 0.003, "weight_decay": 0.0}}
    )
    before = {n: [p.detach().clone() for p in m.parameters()] for n, m in learner.networks.items()}
    update(learner, robot)
    for name, rate in (("actor", 0.02), ("encoder", 0.003)):
        changes = [
            (new - old).abs().max().item()
            for new, old in zip(learner.networks[name].parameters(), before[name], strict=True)
        ]
        assert max(changes) == pytest.approx(rate, rel=1e-3)


def test_adam_adds_weight_decay_to_the_gradient_and_adamw_to_the_weight(robot):
    """A weight of 2 without a gradient, decay 0.5, rate 0.1: AdamW gives 2 - 0.1 * 0.5 * 2, Adam a step of 0.1."""
    for kind, expected in (("adamw", 1.9), ("adam", 1.9)):
        learner = make(robot, {"actor": {"type": kind, "lr": 0.1, "weight_decay": 0.5}})
        parameter = next(iter(learner.networks["actor"].parameters()))
        with torch.no_grad():
            parameter.fill_(2.0)
        learner._optimizer.zero_grad()
        parameter.grad = torch.zeros_like(parameter)
        learner._optimizer.step()
        torch.testing.assert_close(parameter.detach(), torch.full_like(parameter, expected))
        with torch.no_grad():
            parameter.fill_(4.0)
        learner._optimizer.step()  # AdamW: 4 - 0.1 * 0.5 * 4; Adam: a step of at most 0.1 again
        assert parameter.flatten()[0].item() == pytest.approx(3.8 if kind == "adamw" else 3.9, abs=0.02)


def test_resume_is_exact_with_schedules(robot):
    optimizers = {"encoder": {"lr": 0.1, "schedule": "cosine", "decay_updates": 5, "warmup_updates": 2}}
    check_algorithm(lambda: make(robot, optimizers), robot=robot)
    straight, first, resumed = (make(robot, optimizers) for _ in range(3))
    update(straight, robot, 4)
    update(first, robot, 2)
    resumed.load_state_dict(first.state_dict())
    update(resumed, robot, 2)
    expected, found = straight.state_dict(), resumed.state_dict()
    assert all(np.array_equal(expected[key], found[key]) for key in expected)


def test_unlisted_components_keep_the_decay_of_the_algorithm(robot):
    learner = make(
        robot, {"encoder": {"lr": 0.1}}, config=ImitationConfig(batch_size=4, lr=0.01, lr_decay_updates=2)
    )
    update(learner, robot, 2)
    assert lrs(learner) == pytest.approx({"actor": 0.005, "encoder": 0.1})


def test_corrections_too(robot):
    learner = make(
        robot,
        {"encoder": {"warmup_updates": 10}},
        algorithm=HGDAgger,
        config=HGDAggerConfig(batch_size=4, lr=0.01),
    )
    update(learner, robot)
    assert lrs(learner) == pytest.approx({"actor": 0.01, "encoder": 0.001})


def test_unknown_component_and_other_algorithms_are_refused(robot):
    with pytest.raises(UsageError, match="policy 'flow' has no component 'critic'"):
        make(robot, {"critic": {}})
    with pytest.raises(UsageError, match="policy 'actor_critic' has no component 'text'"):
        ppo(robot, {"text": {}})
    with pytest.raises(UsageError, match=r"algorithm 'sac' trains no 'text'\. It trains critic, actor, alpha"):
        soft(robot, {"text": {}})


class Unconfigurable:
    """An algorithm of somebody else."""


def test_algorithm_without_own_optimizers_is_refused():
    with pytest.raises(UsageError, match=r"is not for algorithm 'mine', .* set algorithm\.lr"):
        set_up(Unconfigurable(), name="mine", optimizers={"actor": OptimizerConfig()})


# ---- ppo


def ppo(robot, optimizers, **config):
    policy = ActorCritic(ActorCriticConfig(hidden=(8,), value_hidden=(8,)), robot=robot)
    given = {"num_envs": 3, "rollout_steps": 8, "batch_size": 24, "num_epochs": 1, "lr": 0.01, **config}
    learner = PPO(PPOConfig(**given), policy=policy)
    set_up(learner, name="ppo", optimizers={n: OptimizerConfig(**s) for n, s in optimizers.items()})
    return learner


def changes(learner, update):
    before = {n: [p.detach().clone() for p in m.parameters()] for n, m in learner._policy.components.items()}
    update()
    return {
        name: max((new - old).abs().max().item() for new, old in zip(m.parameters(), before[name], strict=True))
        for name, m in learner._policy.components.items()
        if before[name]
    }


def test_components_of_ppo_have_rates_and_schedules_that_count_rollouts(robot):
    settings = {"critic": {"lr": 0.2, "weight_decay": 0.0, "schedule": "linear", "decay_updates": 4}}
    learner = ppo(robot, settings)
    for rate in (0.2, 0.15, 0.1):
        seen = changes(learner, lambda: learner.update(rollout(learner._policy, version=learner._num_updates)))
        of = {g.get("component"): g["lr"] for g in learner._optimizer.param_groups}
        assert of["critic"] == pytest.approx(rate)
        if rate == 0.2:  # the first step of Adam has the size of the rate
            assert seen["critic"] == pytest.approx(0.2, rel=0.05)
            assert seen["actor"] == pytest.approx(0.01, rel=0.05)
    assert learner._optimizer.param_groups[0]["lr"] == 0.01


def test_component_of_ppo_without_a_rate_has_that_of_the_algorithm(robot):
    learner = ppo(robot, {"critic": {"warmup_updates": 2}}, value_lr=0.4)
    learner.update(rollout(learner._policy))
    assert learner._optimizer.param_groups[-1]["lr"] == pytest.approx(0.2)


def test_ppo_with_own_optimizers_resumes_exactly(robot):
    settings = {"critic": {"lr": 0.1, "schedule": "cosine", "decay_updates": 5}, "actor": {"weight_decay": 0.1}}
    straight, first, resumed = (ppo(robot, settings) for _ in range(3))
    data = [rollout(straight._policy, seed=seed, version=seed) for seed in range(2)]
    for batch in data:
        straight.update(batch)
    first.update(data[0])
    resumed.load_state_dict(first.state_dict())
    resumed.update(data[1])
    expected, found = straight.state_dict(), resumed.state_dict()
    assert all(np.array_equal(expected[key], found[key]) for key in expected)


def test_rate_that_ppo_adapts_is_not_set_twice(robot):
    adapting = {"adapt_lr": True, "target_kl": 0.02}
    ppo(robot, {"critic": {"lr": 0.1}}, **adapting)
    with pytest.raises(UsageError, match=r"algorithm\.adapt_lr chooses the actor's learning rate"):
        ppo(robot, {"actor": {"lr": 0.1}}, **adapting)


# ---- soft actor-critics


def soft(robot, optimizers, *, kind="sac", **config):
    given = {"batch_size": 8, "hidden": (16,), "actor_every": 1, "lr": 0.01, **config}
    if kind in ("sac", "rlpd"):
        policy = GaussianMLP(GaussianMLPConfig(hidden=(16,)), robot=robot)
        learner = (
            SAC(SACConfig(**given), policy=policy) if kind == "sac" else RLPD(RLPDConfig(**given), policy=policy)
        )
    else:
        policy = SteeredFlow(SteeredFlowConfig(**SMALL_STEERED), robot=robot)
        learner = DSRL(DSRLConfig(**given), policy=policy)
    set_up(learner, name=kind, optimizers={n: OptimizerConfig(**s) for n, s in optimizers.items()})
    return learner


SMALL_STEERED = {"horizon": 3, "hidden": 16, "num_layers": 1, "num_flow_steps": 2, "steering_hidden": (16,)}


@pytest.mark.parametrize(
    ("kind", "network", "component"),
    [("sac", "critic", "actor"), ("rlpd", "critic", "actor"), ("dsrl", "noise_critic", "steering")],
)
def test_networks_of_soft_actor_critics_have_their_own_rates(robot, kind, network, component):
    """The first step of Adam has the size of the rate."""
    learner = soft(robot, {network: {"lr": 0.2}, "actor": {"lr": 0.003}}, kind=kind)
    batch = random_batch(learner.sample_request, robot, np.random.default_rng(0))
    before = [p.detach().clone() for p in learner._modules[network].parameters()]
    seen = changes(learner, lambda: learner.update({name: torch.from_numpy(v) for name, v in batch.items()}))
    change = max(
        (new - old).abs().max().item()
        for new, old in zip(learner._modules[network].parameters(), before, strict=True)
    )
    assert change == pytest.approx(0.2, rel=0.05)
    assert seen[component] == pytest.approx(0.003, rel=0.05)


@pytest.mark.parametrize("kind", ["sac", "rlpd"])
def test_soft_actor_critic_with_schedules_keeps_the_algorithm_contract(robot, kind):
    settings = {"critic": {"schedule": "cosine", "decay_updates": 5, "weight_decay": 0.1}, "actor": {"lr": 0.001}}
    check_algorithm(lambda: soft(robot, settings, kind=kind), robot=robot)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "cosine"},
        {"decay_updates": 5},
        {"schedule": "linear", "decay_updates": 5, "warmup_updates": 5},
    ],
)
def test_incomplete_schedules_are_refused(settings):
    with pytest.raises(ValidationError, match="decay_updates"):
        OptimizerConfig(**settings)
