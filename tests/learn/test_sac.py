"""SAC against hand-computed numbers. Tests of code shared with RLPD are in test_rlpd.py."""

import dataclasses

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.types import ActContext, View
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.algorithms.sac import SAC, SACConfig
from dovetail.learn.batches import Batches
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.testing.algorithms import check_algorithm
from dovetail.testing.policies import check_policy
from support.joint_arm import ARM, make_episode, spy_on

HORIZON = 3


def make(policy, kind=SAC, **config):
    model = SACConfig if kind is SAC else RLPDConfig
    return kind(model(**{"batch_size": 8, "hidden": (16, 16), **config}), policy=policy, seed=0)


def chunky(robot=ARM, **config):
    return GaussianMLP(GaussianMLPConfig(**{"hidden": (16,), "horizon": HORIZON, **config}), robot=robot, seed=0)


def test_resolves_by_name():
    assert resolve("algorithm", "sac") is SAC


@pytest.mark.parametrize("horizon", [1, HORIZON])
@pytest.mark.parametrize("kind", [SAC, RLPD])
def test_passes_check_algorithm(horizon, kind):
    check_algorithm(lambda: make(chunky(horizon=horizon), kind, actor_every=2), robot=ARM)


def test_chunk_policy_passes_check_policy():
    check_policy(chunky)


def test_uniform_rows_and_default_target_entropy(policy):
    algorithm = make(policy)
    assert algorithm.sample_request.rows == {View(): 8}
    assert algorithm._target_entropy == -1.0  # two dimensions
    assert make(chunky())._target_entropy == -3.0  # three times two
    assert make(chunky(), RLPD)._target_entropy == -6.0


def test_sac_equals_rlpd_on_the_same_batches(policy, batch):
    """SAC and RLPD differ only in the rows of a batch and in cloning."""
    shared = {"actor_every": 2, "actor_q": "min", "temperature": 0.02, "target_entropy": -2.0}
    by_sac = dict(make(policy, **shared).update(batch))  # of the critic alone, so the policy stays as it was
    assert dict(make(policy, RLPD, **shared).update(batch)) == by_sac


# rewards 1 2 4 8 16, gamma 1/2, three steps: a step's window earns r0 + r1 / 2 + r2 / 4
EARNED = {0: 3.0, 1: 6.0, 2: 12.0, 3: 16.0, 4: 16.0}
DISCOUNT = {
    True: {0: 1 / 8, 1: 1 / 8, 2: 0.0, 3: 0.0, 4: 0.0},
    False: {0: 1 / 8, 1: 1 / 8, 2: 1 / 8, 3: 1 / 4, 4: 1 / 2},  # a timeout: what follows comes sooner
}


@pytest.mark.parametrize("success", [True, False])
def test_chunk_rewards_and_bootstrap_are_discounted_by_their_step(open_replay, success):
    """Traps: rewards summed undiscounted and bootstrapped with gamma^1; or gamma^1 to gamma^H with gamma^H."""
    policy = chunky()
    algorithm = make(policy, gamma=0.5)
    actions = [(i / 10, -i / 10) for i in range(1, 6)]
    episode, labels = make_episode("one", actions, success=success, rewards=[1, 2, 4, 8, 16])
    if not success:
        labels = dataclasses.replace(labels, discounts=np.ones(5, np.float32))
    replay = open_replay((episode, labels))
    rng = np.random.default_rng(0)
    met = set()
    for batch in Batches(request=algorithm.sample_request, robot=ARM, replay=replay, rng=rng, num_ahead=0).take(
        10
    ):
        steps = (batch["observation/joint_pos"][:, 0] * 10).round().int().tolist()
        met |= set(steps)
        given = algorithm._executed_actions(batch)  # the window's actions, the last one held past the end
        wanted = [[s * min(step + i, 5) / 10 for i in (1, 2, 3) for s in (1, -1)] for step in steps]
        np.testing.assert_allclose(given.numpy(), wanted, atol=1e-6)
        generator = torch.Generator()
        generator.set_state(algorithm._generator.get_state())
        with torch.no_grad():
            following = policy.features({"joint_pos": batch["next/joint_pos"]})
            chunks, _ = policy.sample(following, generator=generator)
            next_q = algorithm._target(torch.cat((following, chunks), 1)).amin(0)
            features = policy.features({"joint_pos": batch["observation/joint_pos"]})
            q = algorithm._critic(torch.cat((features, torch.tensor(wanted)), 1))
        earned = torch.tensor([EARNED[step] for step in steps])
        targets = earned + torch.tensor([DISCOUNT[success][step] for step in steps]) * next_q
        metrics = algorithm.update(batch)
        assert metrics["critic_loss"] == pytest.approx(float((q - targets).square().mean()), rel=1e-4)
    assert met == set(EARNED)


def test_num_steps_is_at_least_the_horizon():
    assert make(chunky(), num_steps=5).sample_request.window.num_steps == 5
    assert make(chunky(), num_steps=2).sample_request.window.num_steps == HORIZON
    assert make(chunky(horizon=1), num_steps=2).sample_request.window.num_steps == 2


def test_only_chunks_begun_by_a_person_are_cloned(open_replay):
    """Steps 1 and 2 are human: a window from 0 has nothing to clone, from 1 two actions, from 2 one."""
    policy = chunky()
    algorithm = make(policy, RLPD, bc_weight=1.0, actor_every=1, batch_size=16)
    actions = [(i / 10, -i / 10) for i in range(1, 6)]
    replay = open_replay(make_episode("one", actions, human=(1, 2)))
    cloned = spy_on(policy)
    rng = np.random.default_rng(0)
    for batch in Batches(request=algorithm.sample_request, robot=ARM, replay=replay, rng=rng, num_ahead=0).take(5):
        algorithm.update(batch)
    assert cloned
    for chunks, mask in cloned:
        first = (chunks[:, 0, 0] * 10).round().int().tolist()
        assert set(first) <= {2, 3}
        assert [row.tolist() for row in mask] == [[True, step == 2, False] for step in first]


def test_policy_samples_whole_chunks():
    """A flat sample and the chunk that the robot gets are in the same order."""
    policy = chunky()
    observation = np.array([[0.1, 0.2]], np.float32)
    chunk = policy.act({"joint_pos": observation}, ActContext(seed=5)).actions
    features = policy.features({"joint_pos": torch.from_numpy(observation)})
    flat, _ = policy.sample(features, generator=torch.Generator().manual_seed(5))
    np.testing.assert_allclose(chunk[0].ravel(), flat[0].detach().numpy(), atol=1e-6)
