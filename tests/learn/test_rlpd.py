"""RLPD against numbers computed in the test, and regressions known from other implementations."""

import copy

import numpy as np
import pytest
import torch

from dovetail.core.errors import CheckpointError, UsageError
from dovetail.core.types import View
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.batches import batch_arrays
from dovetail.learn.data_parallel import DataParallel
from dovetail.policies.actor_critic import ActorCritic, ActorCriticConfig
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig


def make(policy, **config):
    return RLPD(RLPDConfig(**{"batch_size": 8, "hidden": (16, 16), **config}), policy=policy, seed=0)


def expected_target(algorithm, policy, batch, *, alpha=0.0):
    """r + d * (min over target critics - alpha * log pi), with the noise that the algorithm will draw next."""
    generator = torch.Generator()
    generator.set_state(algorithm._generator.get_state())
    features = policy.features({"joint_pos": batch["next/joint_pos"]})
    with torch.no_grad():
        actions, log_prob = policy.sample(features, generator=generator)
        q = algorithm._target(torch.cat((features, actions), 1)).amin(0) - alpha * log_prob
    return batch["reward"] + batch["discount"] * q


@pytest.mark.parametrize("backup_entropy", [False, True])
def test_critic_loss_matches_hand_computed_target(policy, batch, backup_entropy):
    algorithm = make(policy, gamma=0.9, target_range=None, backup_entropy=backup_entropy, temperature=0.5)
    targets = expected_target(algorithm, policy, batch, alpha=0.5 if backup_entropy else 0.0)
    features = policy.features({"joint_pos": batch["observation/joint_pos"]})
    actions = batch["action"]
    with torch.no_grad():
        q = algorithm._critic(torch.cat((features, actions), 1))
    metrics = algorithm.update(batch)
    assert metrics["critic_loss"] == pytest.approx(float((q - targets).square().mean()), rel=1e-5)


def test_terminal_step_does_not_bootstrap_and_timeout_does(policy, batch):
    """Regression: time-outs stored as terminal. The discount alone decides."""
    algorithm = make(policy, gamma=0.9, target_range=None)
    targets = expected_target(algorithm, policy, batch)
    assert targets[3] == 1.0  # reward 1, discount 0: exactly the reward
    assert targets[0] != 0.0  # reward 0, discount 1: the value of what follows


def test_values_converge_to_the_discounted_reward(policy, batch, replay):
    """Two states, one step apart: the last is worth 1, the one before it gamma."""
    first, last = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    chain = {
        "observation/joint_pos": torch.cat((first, last)).repeat_interleave(4, 0),
        "next/joint_pos": torch.cat((last, first)).repeat_interleave(4, 0),
        "action": torch.zeros(8, 2),
        "reward": torch.tensor([0.0, 1.0]).repeat_interleave(4),
        "discount": torch.tensor([0.8, 0.0]).repeat_interleave(4),
        "human": torch.ones(8, dtype=torch.bool),
    }
    algorithm = make(policy, gamma=0.8, tau=0.1, lr=3e-3, actor_after=10**9)
    for _ in range(600):
        chain["action"] = torch.rand(8, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
        algorithm.update(chain)
    with torch.no_grad():
        features = policy.features({"joint_pos": torch.cat((first, last))})
        q = algorithm._critic(torch.cat((features, chain["action"][:2]), 1)).mean(0)
    assert q[1] == pytest.approx(1.0, abs=0.05)
    assert q[0] == pytest.approx(0.8, abs=0.08)


def test_targets_are_clipped_to_target_range(policy, batch):
    batch["reward"][:] = 5.0
    wild, tame = make(policy, target_range=None), make(policy, target_range=(0.0, 1.0))
    assert wild.update(batch)["critic_loss"] > 4 * tame.update(batch)["critic_loss"]


def test_actor_maximizes_q(policy, batch):
    algorithm = make(policy, actor_every=1, temperature=1e-6, lr=1e-2)

    class Likes(torch.nn.Module):
        def forward(self, inputs):
            return (-(inputs[:, 3:] - 0.5).square().sum(1)).expand(2, -1)  # best action: (0.5, 0.5)

    algorithm._critic = Likes()
    features = policy.features({"joint_pos": batch["observation/joint_pos"]})
    for _ in range(300):
        algorithm._update_actor(batch, features, batch["action"], use_q=True)
    mean, _ = policy._distribution(features)
    np.testing.assert_allclose(torch.tanh(mean).detach().numpy(), 0.5, atol=0.1)


def test_actor_step_does_not_change_the_critic(policy, batch):
    """Regression: leftover critic gradients in the actor's norm, or the actor's loss training the critic."""
    algorithm = make(policy)
    before = [p.detach().clone() for p in algorithm._critic.parameters()]
    features = policy.features({"joint_pos": batch["observation/joint_pos"]})
    algorithm._update_actor(batch, features, batch["action"], use_q=True)
    assert all(torch.equal(a, b) for a, b in zip(before, algorithm._critic.parameters(), strict=True))
    assert all(p.grad is None for p in algorithm._critic.parameters())


def test_temperature_follows_the_entropy(policy, batch):
    for target, rises in ((50.0, True), (-50.0, False)):
        algorithm = make(policy, target_entropy=target, actor_every=1)
        before = algorithm._log_alpha.item()
        algorithm.update(batch)
        assert (algorithm._log_alpha.item() > before) is rises


def test_actor_every_and_actor_after(policy, batch):
    algorithm = make(policy, actor_every=2, actor_after=3)
    moved = ["actor_loss" in algorithm.update(batch) for _ in range(8)]
    assert moved == [False, False, False, True, False, True, False, True]


def test_actor_only_clones_before_actor_q_from_update(policy, batch):
    """The actor takes one Adam step down the weighted imitation loss, computed on a copy; Q is not used."""
    twin = copy.deepcopy(policy)
    algorithm = make(policy, actor_every=1, bc_weight=5.0, actor_q_from_update=3, lr=1e-2, max_grad_norm=1e9)
    features, people = twin.features({"joint_pos": batch["observation/joint_pos"]}), batch["human"]
    optimizer = torch.optim.Adam(twin.components["actor"].parameters(), lr=1e-2)
    loss = 5.0 * twin.imitation_loss(features[people], batch["action"][people])
    loss.backward()
    optimizer.step()
    metrics = algorithm.update(batch)
    assert metrics["actor_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert "entropy" not in metrics
    for ours, expected in zip(policy._actor.parameters(), twin._actor.parameters(), strict=True):
        assert torch.allclose(ours, expected, atol=1e-6)
    assert ["entropy" in algorithm.update(batch) for _ in range(2)] == [False, True]  # the third uses Q
    batch["human"][:] = False  # no human steps: nothing to clone, and Q is not used yet
    idle = make(policy, actor_every=1, bc_weight=5.0, actor_q_from_update=3)
    before = [p.detach().clone() for p in policy._actor.parameters()]
    assert "actor_loss" not in idle.update(batch)
    assert all(torch.equal(a, b) for a, b in zip(before, policy._actor.parameters(), strict=True))


def test_count_rewards_after_takeover_sets_the_window(policy, robot):
    assert not make(policy, num_steps=3).sample_request.window.stop_at_takeover
    assert make(policy, num_steps=3, count_rewards_after_takeover=False).sample_request.window.stop_at_takeover
    chunks = GaussianMLP(GaussianMLPConfig(horizon=4), robot=robot)  # the setting is ignored for chunks
    assert not make(chunks, count_rewards_after_takeover=False).sample_request.window.stop_at_takeover


def test_chunks_are_not_learned_from_running_episodes(policy, robot):
    """In a running episode, the missing actions of a chunk would look like the end of the episode."""
    assert make(policy).learns_from_running
    assert not make(GaussianMLP(GaussianMLPConfig(horizon=4), robot=robot)).learns_from_running


def test_several_processes_without_human_steps_do_not_move_the_actor(policy, batch, monkeypatch):
    """A step with zero gradients would move the actor, because Adam has momentum."""
    monkeypatch.setattr(
        DataParallel, "sum_", lambda self, tensors: torch._foreach_mul_(tensors, 2.0)
    )  # two identical processes
    algorithm = make(policy, actor_every=1, bc_weight=5.0, actor_q_from_update=3)
    algorithm.set_parallel(DataParallel(rank=0, size=2))
    assert "actor_loss" in algorithm.update(batch)
    before = [p.detach().clone() for p in policy._actor.parameters()]
    batch["human"][:] = False
    assert "actor_loss" not in algorithm.update(batch)
    assert all(torch.equal(a, b) for a, b in zip(before, policy._actor.parameters(), strict=True))


def test_target_uses_a_random_subset_of_critics(policy, batch):
    algorithm = make(policy, num_critics=5, num_target_critics=2)
    generator = torch.Generator()
    generator.set_state(algorithm._generator.get_state())
    following = policy.features({"joint_pos": batch["next/joint_pos"]})
    features = policy.features({"joint_pos": batch["observation/joint_pos"]})
    with torch.no_grad():
        actions, _ = policy.sample(following, generator=generator)
        next_q = algorithm._target(torch.cat((following, actions), 1))
        pair = torch.randperm(5, generator=generator)[:2]
        targets = batch["reward"] + batch["discount"] * next_q[pair].amin(0)
        q = algorithm._critic(torch.cat((features, batch["action"]), 1))
    assert not torch.equal(next_q[pair].amin(0), next_q.amin(0))  # otherwise the test proves nothing
    assert algorithm.update(batch)["critic_loss"] == pytest.approx(float((q - targets).square().mean()), rel=1e-5)


def test_more_target_critics_than_critics_raise():
    with pytest.raises(ValueError, match="exceeds num_critics"):
        RLPDConfig(num_critics=2, num_target_critics=3)


def test_only_human_steps_are_cloned(policy, batch):
    """The policy's own steps are not cloned: they contain its noise."""
    batch["human"][:] = False
    alone, helped = make(policy, actor_every=1, bc_weight=100.0), make(policy, actor_every=1, bc_weight=0.0)
    assert alone.update(batch)["actor_loss"] == pytest.approx(helped.update(batch)["actor_loss"], abs=0.05)
    batch["human"][:2] = True
    assert make(policy, actor_every=1, bc_weight=100.0).update(batch)["actor_loss"] > 1.0


def test_policy_weights_are_a_moving_average(policy, batch):
    algorithm = make(policy, actor_every=1, actor_average=0.75)
    start = policy._actor[0].weight.detach().clone()
    algorithm.update(batch)
    moved = policy._actor[0].weight.detach()
    expected = 0.75 * start + 0.25 * moved
    np.testing.assert_allclose(
        algorithm.policy_weights()["actor"]["0.weight"], expected.numpy(), rtol=1e-5, atol=1e-7
    )


def test_half_of_the_rows_are_prior_data(policy):
    request = make(policy, batch_size=128, gamma=0.9, num_steps=3).sample_request
    assert request.rows == {View(part="prior"): 64, View(part="online"): 64}
    assert (request.window.gamma, request.window.num_steps) == (0.9, 3)


def test_resumed_updates_are_identical(policy, batch):
    algorithm = make(policy, actor_every=2)
    for _ in range(7):
        algorithm.update(batch)
    state = algorithm.state_dict()
    expected = [dict(algorithm.update(batch)) for _ in range(5)]
    other = make(policy, actor_every=2)
    other.load_state_dict(state)
    assert [dict(other.update(batch)) for _ in range(5)] == expected


def test_state_of_another_network_raises_checkpoint_error(policy, batch):
    with pytest.raises(CheckpointError, match="does not fit algorithm 'rlpd'") as error:
        make(policy, hidden=(8,)).load_state_dict(make(policy).state_dict())
    assert "\n" not in str(error.value)


def test_policy_without_density_raises_usage_error(robot):
    with pytest.raises(
        UsageError, match=r"'flow' cannot compute the density of its actions.* algorithm 'imitation'"
    ):
        make(Flow(FlowConfig(), robot=robot))


def test_history_padding_does_not_change_the_loss(robot):
    remembering = GaussianMLP(GaussianMLPConfig(history={"joint_pos": 4}), robot=robot)
    algorithm = make(remembering, actor_every=1)
    assert algorithm.sample_request.window.history == {"joint_pos": 4}
    batch = {
        name: torch.from_numpy(values) for name, values in batch_arrays(algorithm.sample_request, robot).items()
    }
    batch["observation/joint_pos/mask"][:, 2:] = True
    batch["next/joint_pos/mask"][:] = True
    losses = []
    for padding in (0.0, 99.0):
        batch["observation/joint_pos"][:, :2] = padding  # not masked in: must not matter
        losses.append(make(remembering, actor_every=1).update(batch)["critic_loss"])
    assert losses[0] == losses[1]
    batch["observation/joint_pos"][:, 2:] = 1.0
    assert make(remembering, actor_every=1).update(batch)["critic_loss"] != losses[0]


def test_policy_for_ppo_raises_usage_error(robot):
    policy = ActorCritic(ActorCriticConfig(), robot=robot)
    with pytest.raises(UsageError, match="'actor_critic' has its own value network and is for algorithm 'ppo'"):
        RLPD(RLPDConfig(), policy=policy)


def test_actor_q_from_update_without_bc_weight_raises():
    with pytest.raises(ValueError, match="Set bc_weight too"):
        RLPDConfig(actor_q_from_update=100)
