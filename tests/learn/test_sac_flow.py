"""SAC-Flow: its differences from RLPD, and that it learns. The path's density is in policies/test_flow_actor.py."""

import math

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.errors import CheckpointError, UsageError
from dovetail.core.types import ActContext
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.algorithms.sac_flow import SACFlow, SACFlowConfig
from dovetail.policies.flows.flow_actor import FlowActor, FlowActorConfig
from dovetail.testing import check_algorithm

# recorded metrics of RLPD's updates 1, 4 and 20
RLPD_WAS = {
    "default": (
        {},
        {"critic_loss": 1.00223958, "q": -0.08716257},
        {"critic_loss": 0.94356835, "q": -0.08760652, "actor_loss": 0.63070267, "entropy": -2.28738022},
        {"critic_loss": 0.75112957, "q": -0.09474356, "actor_loss": 0.54557949, "entropy": -0.81867576},
    ),
    "everything": (
        {
            "num_critics": 5,
            "num_target_critics": 2,
            "backup_entropy": True,
            "actor_q": "mean",
            "bc_weight": 0.5,
            "target_range": (0.0, 1.0),
        },
        {"critic_loss": 0.47132516, "q": -0.08887138},
        {"critic_loss": 0.44540334, "q": -0.06591164, "actor_loss": 0.48260143, "entropy": -1.32622945},
        {"critic_loss": 0.31927900, "q": 0.04864687, "actor_loss": 0.38126791, "entropy": -1.58629715},
    ),
}


@pytest.mark.parametrize("case", RLPD_WAS)
def test_rlpd_metrics_match_recorded_numbers(policy, batch, case):
    config, *expected = RLPD_WAS[case]
    algorithm = RLPD(RLPDConfig(batch_size=8, hidden=(16, 16), actor_every=2, **config), policy=policy, seed=0)
    updates = [algorithm.update(batch) for _ in range(20)]
    for number, metrics in zip((0, 3, 19), expected, strict=True):
        for name, value in metrics.items():
            assert updates[number][name] == pytest.approx(value, rel=1e-4, abs=1e-5), (number, name)


def make_policy(robot, kind="gated", seed=0, **config):
    return FlowActor(FlowActorConfig(**({"velocity": kind, "hidden": 16} | config)), robot=robot, seed=seed)


def make(actor, seed=0, **config):
    return SACFlow(SACFlowConfig(**{"batch_size": 8, "hidden": (16, 16), **config}), policy=actor, seed=seed)


@pytest.fixture
def actor(robot):
    return make_policy(robot)


def test_resolves_by_name():
    assert resolve("algorithm", "sac_flow") is SACFlow


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["gated", "transformer"])
@pytest.mark.parametrize("config", [{}, {"bc_weight": 1.0, "num_critics": 4, "backup_entropy": True}])
def test_passes_check_algorithm(robot, kind, config):
    check_algorithm(lambda: make(make_policy(robot, kind), actor_every=2, **config), robot=robot)


def test_other_policies_raise_usage_error(policy):
    with pytest.raises(UsageError, match=r"'sac_flow' trains policy 'flow_actor'.* not 'gaussian_mlp'"):
        make(policy)


def test_targets_use_the_path_density(actor, batch):
    """r + d * (min Q' - alpha * log p of the path), with the noise that the algorithm will draw next."""
    algorithm = make(actor, backup_entropy=True, temperature=0.5)
    generator = torch.Generator()
    generator.set_state(algorithm._generator.get_state())
    features, following = (actor.features({"joint_pos": batch[f"{s}/joint_pos"]}) for s in ("observation", "next"))
    with torch.no_grad():
        actions, log_prob = actor.sample(following, generator=generator)
        next_value = algorithm._target(torch.cat((following, actions), 1)).amin(0) - 0.5 * log_prob
        targets = batch["reward"] + batch["discount"] * next_value
        q = algorithm._critic(torch.cat((features, batch["action"]), 1))
    expected = float((q - targets).square().mean())
    assert algorithm.update(batch)["critic_loss"] == pytest.approx(expected, rel=1e-5)


def test_default_target_entropy(actor):
    """Two actions, four steps: 2 * 1.4189 for x_0, and 4 * -2."""
    assert make(actor)._target_entropy == pytest.approx(2 * 0.5 * math.log(2 * math.pi * math.e) - 8)
    assert make(actor, target_entropy=-3.0)._target_entropy == -3.0


@pytest.mark.extended
@pytest.mark.parametrize(("target", "rises"), [(50.0, True), (-50.0, False)])
def test_sigma_follows_the_target_entropy(actor, batch, target, rises):
    features = actor.features({"joint_pos": batch["observation/joint_pos"]})
    before = actor.sigma(features).mean().item()
    algorithm = make(actor, target_entropy=target, actor_every=1, lr=1e-2, temperature=1.0)
    for _ in range(100):
        algorithm.update(batch)
    assert (algorithm._log_alpha.item() > 0.0) is rises
    if rises:
        assert actor.sigma(features).mean().item() > 1.5 * before


def test_gradient_norms_are_separate(actor, robot, batch):
    """Regression: clipping over the whole model added the critic's old gradients to the actor's norm."""
    algorithm = make(actor, actor_every=1)
    metrics = algorithm.update(batch)
    norms = {
        name: math.sqrt(sum(p.grad.square().sum().item() for p in parameters))
        for name, parameters in (
            ("critic", algorithm._optimizers.parameters["critic"]),
            ("actor", algorithm._optimizers.parameters["actor"]),
        )
    }
    assert all(0.0 < norm < algorithm._config.max_grad_norm for norm in norms.values())  # nothing was clipped
    for name, norm in norms.items():
        assert metrics[f"{name}_grad_norm"] == pytest.approx(norm, rel=1e-5)
    tight = make(make_policy(robot), actor_every=1, max_grad_norm=1e-3)
    tight.update(batch)
    for parameters in (tight._optimizers.parameters["critic"], tight._optimizers.parameters["actor"]):
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in parameters))
        assert norm == pytest.approx(1e-3, rel=1e-2)


def test_actor_step_trains_velocity_and_sigma_only(actor, batch):
    """Regression: a detach on the path cut the actor's gradient."""
    algorithm = make(actor, actor_every=1)
    before = {name: [p.detach().clone() for p in m.parameters()] for name, m in actor.components.items()}
    critic = [p.detach().clone() for p in algorithm._critic.parameters()]
    features = actor.features({"joint_pos": batch["observation/joint_pos"]})
    for _ in range(2):  # sigma's last layer starts at 0, so its hidden layer gets a gradient in the second step
        algorithm._update_actor(batch, features, batch["action"], use_q=True)
    for name, module in actor.components.items():
        for old, new in zip(before[name], module.parameters(), strict=True):
            assert not torch.equal(old, new), name
    assert all(torch.equal(a, b) for a, b in zip(critic, algorithm._critic.parameters(), strict=True))


def test_cloning_trains_velocity_and_not_sigma(actor, batch):
    """The matching loss does not depend on sigma, which then gets no gradient and no momentum step."""
    algorithm = make(actor, actor_every=1, bc_weight=1.0, actor_q_from_update=3)
    before = {name: [p.detach().clone() for p in m.parameters()] for name, m in actor.components.items()}
    for _ in range(2):
        algorithm.update(batch)
    moved = {
        name: any(not torch.equal(old, new) for old, new in zip(before[name], m.parameters(), strict=True))
        for name, m in actor.components.items()
    }
    assert moved == {"velocity": True, "sigma": False}
    algorithm.update(batch)
    assert not all(map(torch.equal, before["sigma"], actor.components["sigma"].parameters()))


def test_resumed_updates_are_identical(actor, batch, robot):
    algorithm = make(actor, actor_every=2, bc_weight=0.5)
    for _ in range(7):
        algorithm.update(batch)
    state = algorithm.state_dict()
    expected = [dict(algorithm.update(batch)) for _ in range(5)]
    other = make(make_policy(robot, seed=9), seed=4, actor_every=2, bc_weight=0.5)
    other.load_state_dict(state)
    assert [dict(other.update(batch)) for _ in range(5)] == expected


def test_state_of_another_flow_raises_checkpoint_error(actor, robot):
    with pytest.raises(CheckpointError, match="does not fit algorithm 'sac_flow'"):
        make(make_policy(robot, "transformer")).load_state_dict(make(actor).state_dict())


@pytest.mark.extended
@pytest.mark.parametrize(("kind", "size"), [("gated", {"hidden": 32}), ("transformer", {"num_layers": 1})])
def test_finds_the_best_action_of_a_bandit(robot, kind, size):
    """One step per episode; the best action depends on the observation."""
    actor = make_policy(robot, kind, **size)
    config = {"lr": 3e-3, "actor_every": 2, "actor_after": 100, "tau": 0.05, "temperature": 0.005}
    algorithm = make(actor, batch_size=64, hidden=(64, 64), **config)
    rng = np.random.default_rng(0)

    def loss(observations, actions):
        best = np.stack((0.6 * np.sign(observations[:, 0]), np.full(len(observations), -0.4)), axis=1)
        return np.square(actions - best).sum(1)

    def act(observations, context):
        return actor.act({"joint_pos": observations}, context).actions[:, 0]

    for step in range(650):
        observations = rng.choice((-1.0, 1.0), (64, 3)).astype(np.float32)
        actions = (
            act(observations, ActContext(seed=step))
            if step % 2
            else rng.uniform(-1, 1, (64, 2)).astype(np.float32)
        )
        arrays = {
            "observation/joint_pos": observations,
            "next/joint_pos": observations,
            "action": actions,
            "reward": -loss(observations, actions).astype(np.float32),
            "discount": np.zeros(64, np.float32),
            "human": np.zeros(64, np.bool_),
        }
        algorithm.update({name: torch.from_numpy(values) for name, values in arrays.items()})
    observations = rng.choice((-1.0, 1.0), (200, 3)).astype(np.float32)
    assert (
        loss(observations, act(observations, ActContext(deterministic=True))).mean() < 0.1
    )  # untrained: 0.5 and more
    assert loss(observations, act(observations, ActContext(seed=1))).mean() < 0.13
