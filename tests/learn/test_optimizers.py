"""`learner.optimizers`: learning rates, decay and schedules of single components, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dovetail.config.schema import OptimizerConfig
from dovetail.core.errors import UsageError
from dovetail.learn.algorithms.hg_dagger import HGDAgger, HGDAggerConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.ppo import PPO, PPOConfig
from dovetail.learn.batches import batch_arrays
from dovetail.learn.schedules import lr_factor
from dovetail.learn.setup import set_up
from dovetail.policies.actor_critic import ActorCritic, ActorCriticConfig
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.testing import check_algorithm

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
    ppo = PPO(PPOConfig(), policy=ActorCritic(ActorCriticConfig(), robot=robot))
    with pytest.raises(UsageError, match="'ppo' has learning rates of its own"):
        set_up(ppo, name="ppo", optimizers={"actor": OptimizerConfig()})


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
