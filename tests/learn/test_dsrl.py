"""DSRL: hand-computed discounts of chunks, the loss of each network, and a bimodal flow that is steered."""

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.errors import CheckpointError, UsageError
from dovetail.core.types import (
    ActContext,
    Episode,
    EpisodeStart,
    Labels,
    Observation,
    Outcome,
    Purpose,
    Segment,
    View,
)
from dovetail.learn.algorithms.dsrl import DSRL, DSRLConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.batches import Batches, batch_arrays
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.flows.steered_flow import SteeredFlow, SteeredFlowConfig
from dovetail.replay.mapped import MappedReplay
from dovetail.testing import check_algorithm
from dovetail.testing.algorithms import random_batch

HORIZON = 3
SMALL = {"horizon": HORIZON, "hidden": 16, "num_layers": 1, "num_flow_steps": 2, "steering_hidden": (16,)}


@pytest.fixture
def make_policy(robot):
    return lambda seed=0, **config: SteeredFlow(SteeredFlowConfig(**(SMALL | config)), robot=robot, seed=seed)


def make(policy, seed=0, **config):
    return DSRL(DSRLConfig(**{"batch_size": 8, "hidden": (16, 16), **config}), policy=policy, seed=seed)


@pytest.fixture
def chunks(make_policy, robot):
    request = make(make_policy()).sample_request
    arrays = random_batch(request, robot, np.random.default_rng(0))
    arrays["action/mask"][:] = True
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def features(policy, batch, side="observation"):
    return policy.features({"joint_pos": batch[f"{side}/joint_pos"]})


def same_draw(algorithm):
    generator = torch.Generator()
    generator.set_state(algorithm._generator.get_state())
    return generator


# ---- an algorithm


def test_resolves_by_name():
    assert resolve("algorithm", "dsrl") is DSRL


@pytest.mark.parametrize(
    ("policy", "config"),
    [
        ({}, {"actor_every": 2}),
        ({"horizon": 1}, {"num_critics": 4, "backup_entropy": True}),
        ({"history": {"joint_pos": 3}, "prompt_features": 4}, {"actor_q": "mean", "actor_after": 3}),
    ],
)
def test_passes_check_algorithm(make_policy, robot, policy, config):
    check_algorithm(lambda: make(make_policy(**policy), **config), robot=robot)


def test_other_policies_raise_usage_error(robot, policy):
    for other in (policy, Flow(FlowConfig(horizon=HORIZON), robot=robot)):
        with pytest.raises(
            UsageError, match=f"needs a policy with a steering actor, and '{other.spec.name}' has none"
        ):
            make(other)


def test_resumed_updates_are_identical(make_policy, chunks):
    algorithm = make(make_policy(), actor_every=2)
    for _ in range(7):
        algorithm.update(chunks)
    state = algorithm.state_dict()
    expected = [dict(algorithm.update(chunks)) for _ in range(5)]
    other = make(make_policy(seed=9), seed=4, actor_every=2)
    other.load_state_dict(state)
    assert [dict(other.update(chunks)) for _ in range(5)] == expected


def test_state_of_another_flow_raises_checkpoint_error(make_policy):
    with pytest.raises(CheckpointError, match="does not fit algorithm 'dsrl'"):
        make(make_policy(horizon=4)).load_state_dict(make(make_policy()).state_dict())


# ---- chunks and their discounts


def episode(robot, rewards, *, outcome):
    """Step i sees i and does (i / 10, -i / 10)."""
    num_steps = len(rewards)
    ticks = np.arange(num_steps)
    saw = np.repeat(np.arange(num_steps + 1, dtype=np.float32)[:, None], 3, axis=1)
    executed = np.stack((ticks / 10, -ticks / 10), axis=1).astype(np.float32)
    columns = {
        "time_ns": ticks.astype(np.int64),
        "observation/joint_pos": saw[:-1],
        "executed": executed,
        "proposed": executed,
        "source": (ticks % 2).astype(np.uint8),  # person and policy alternate: any window is a chunk
        "policy_version": np.zeros(num_steps, np.int64),
        "chunk_id": ticks.astype(np.int64),
        "chunk_index": np.zeros(num_steps, np.int64),
    }
    start = EpisodeStart(
        id=f"episode-{outcome}",
        task="toy",
        prompt="",
        robot=robot,
        operator="test",
        purpose=Purpose.ONLINE,
        seed=0,
        config_hash="",
        started_unix_ns=1,
    )
    last = Observation(time_ns=num_steps, values={"joint_pos": saw[-1]})
    segment = Segment(episode_id=start.id, first=0, final=True, columns=columns, last_observation=last)
    discounts = np.ones(num_steps, np.float32)
    discounts[-1] = 1.0 if outcome is Outcome.TIMEOUT else 0.0
    labels = Labels(
        episode_id=start.id,
        rewards=np.array(rewards, np.float32),
        discounts=discounts,
        success=outcome is Outcome.SUCCESS,
        confidence=1.0,
        labeler="test",
        version="1",
    )
    return Episode.of(start, [segment], outcome=outcome), labels


# rewards 1 2 4 8 16, gamma 1/2, three steps: a step's window earns r0 + r1 / 2 + r2 / 4
EARNED = {
    0: (1 + 1 + 1, 3),
    1: (2 + 2 + 2, 4),
    2: (4 + 4 + 4, 5),
    3: (8 + 8, 5),
    4: (16, 5),
}
DISCOUNT = {
    Outcome.SUCCESS: {0: 1 / 8, 1: 1 / 8, 2: 0.0, 3: 0.0, 4: 0.0},
    Outcome.TIMEOUT: {0: 1 / 8, 1: 1 / 8, 2: 1 / 8, 3: 1 / 4, 4: 1 / 2},  # fewer steps before the bootstrap
}


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.TIMEOUT])
def test_chunk_rewards_and_bootstrap_are_discounted_by_their_step(make_policy, robot, tmp_path, outcome):
    """Regressions: rewards summed undiscounted and bootstrapped with gamma^1; or gamma^1 to gamma^H with gamma^H."""
    policy = make_policy()
    algorithm = make(policy, gamma=0.5)
    replay = MappedReplay(folder=tmp_path / "replay")
    replay.open()
    replay.add(*episode(robot, [1, 2, 4, 8, 16], outcome=outcome))
    batches = Batches(
        request=algorithm.sample_request, robot=robot, replay=replay, rng=np.random.default_rng(0), num_ahead=0
    )
    met = set()
    for batch in batches.take(10):
        first = batch["observation/joint_pos"][:, 0].int().tolist()
        for row, step in enumerate(first):
            earned, following = EARNED[step]
            assert batch["reward"][row].item() == earned
            assert batch["discount"][row].item() == DISCOUNT[outcome][step]
            assert batch["next/joint_pos"][row, 0].item() == following
        met |= set(first)
        # the critic's input: the window's actions, with the last one repeated past the end
        given = algorithm._executed_actions(batch).view(-1, HORIZON, 2)[..., 0]
        expected = [[min(step + i, 4) / 10 for i in range(HORIZON)] for step in first]
        np.testing.assert_allclose(given.numpy(), expected, atol=1e-6)
        # the critic's target
        generator = same_draw(algorithm)
        with torch.no_grad():
            following = features(policy, batch, "next")
            noise, _ = policy.steering.sample(following, generator=generator)
            next_q = algorithm._target(
                torch.cat((following, policy.chunks_from_noise(following, noise).flatten(1)), 1)
            )
            earned = torch.tensor([float(EARNED[step][0]) for step in first])
            discount = torch.tensor([DISCOUNT[outcome][step] for step in first])
            q = algorithm._critic(torch.cat((features(policy, batch), given_chunks(given)), 1))
            targets = earned + discount * next_q.amin(0)
        metrics = algorithm.update(batch)
        assert metrics["critic_loss"] == pytest.approx(float((q - targets).square().mean()), rel=1e-4)
    assert met == set(EARNED)
    replay.close()


def given_chunks(first_numbers):
    return torch.stack((first_numbers, -first_numbers), dim=-1).flatten(1)


def test_requests_windows_of_chunk_length(make_policy):
    request = make(make_policy(history={"joint_pos": 2}), gamma=0.9).sample_request
    assert (request.window.gamma, request.window.num_steps, request.window.horizon) == (0.9, HORIZON, HORIZON)
    assert request.window.history == {"joint_pos": 2}
    assert request.rows == {View(part="prior"): 4, View(part="online"): 4}


@pytest.mark.parametrize("junk", [3.0, np.nan])
def test_padding_does_not_change_the_loss(make_policy, chunks, junk):
    chunks["action/mask"][:, 1:] = False
    losses = []
    for filling in (0.0, junk):
        chunks["action"][:, 1:] = filling
        losses.append(make(make_policy()).update(chunks)["critic_loss"])
    assert losses[0] == losses[1]
    assert np.isfinite(losses[0])


# ---- the losses


def test_flow_is_not_trained(make_policy, chunks):
    policy = make_policy()
    before = policy.weights()
    algorithm = make(policy, actor_every=1)
    for _ in range(5):
        algorithm.update(chunks)
    after = algorithm.policy_weights()
    assert before.keys() == after.keys()
    same = {name: all(np.array_equal(before[name][k], after[name][k]) for k in before[name]) for name in before}
    assert same == {"actor": True, "steering": False, "normalizer": True}


def test_steering_is_engaged_at_the_first_actor_update(make_policy, chunks):
    """Before that, the robot acts like the unsteered flow."""
    policy = make_policy()
    algorithm = make(policy, actor_every=2, actor_after=3)
    engaged = []
    for _ in range(5):
        algorithm.update(chunks)
        engaged.append((policy.steering.engaged.item(), algorithm.policy_weights()["steering"]["engaged"].item()))
    assert engaged == [(0.0, 0.0)] * 3 + [(1.0, 1.0)] * 2


def test_noise_critic_is_distilled_from_the_action_critic(make_policy, chunks):
    policy = make_policy()
    algorithm = make(policy)
    seen, generator = features(policy, chunks), same_draw(algorithm)
    with torch.no_grad():
        noise, _ = policy.steering.sample(seen, generator=generator)
        noise[::2] = torch.randn(noise.shape, generator=generator)[::2]
        value = algorithm._critic(torch.cat((seen, policy.chunks_from_noise(seen, noise).flatten(1)), 1)).amin(0)
        q = algorithm._noise_critic(torch.cat((seen, noise.flatten(1)), 1))
    metrics = algorithm._update_noise_critic(seen, seen)
    assert metrics["noise_critic_loss"] == pytest.approx(float((q - value).square().mean()), rel=1e-5)


def test_entropy_counts_in_the_target_only_if_asked(make_policy, chunks):
    """y = r + d (min Q' - alpha log pi)"""
    losses = []
    for alpha in (0.0, 0.5):
        policy = make_policy()
        algorithm = make(policy, backup_entropy=alpha > 0.0, temperature=0.5)
        seen, following = (features(policy, chunks, side) for side in ("observation", "next"))
        with torch.no_grad():
            noise, log_pi = policy.steering.sample(following, generator=same_draw(algorithm))
            q_next = algorithm._target(
                torch.cat((following, policy.chunks_from_noise(following, noise).flatten(1)), 1)
            )
            y = chunks["reward"] + chunks["discount"] * (q_next.amin(0) - alpha * log_pi)
            executed = algorithm._executed_actions(chunks)
            q = algorithm._critic(torch.cat((seen, executed), 1))
        losses.append(float((q - y).square().mean()))
        assert algorithm.update(chunks)["critic_loss"] == pytest.approx(losses[-1], rel=1e-4)
    assert losses[0] != pytest.approx(losses[1], rel=1e-2)


def test_actor_loss_is_alpha_log_pi_minus_q_of_the_noise(make_policy, chunks):
    policy = make_policy()
    algorithm = make(policy, temperature=0.5)
    seen = features(policy, chunks)
    with torch.no_grad():
        noise, log_pi = policy.steering.sample(seen, generator=same_draw(algorithm))
        q = algorithm._noise_critic(torch.cat((seen, noise), 1)).amin(0)
    metrics = algorithm._update_actor(seen)
    assert float(metrics["actor_loss"]) == pytest.approx(float((0.5 * log_pi - q).mean()), rel=1e-4)
    assert metrics["target_entropy"] == -0.5 * HORIZON * 2  # half of the dimensions of the noise


def test_each_step_changes_only_its_network(make_policy, chunks):
    policy = make_policy()
    algorithm = make(policy)
    seen = features(policy, chunks)
    parts = {
        "critic": algorithm._critic,
        "noise_critic": algorithm._noise_critic,
        "steering": policy.steering,
        "flow": policy.components["actor"],
    }

    def moved(step):
        before = {name: [p.detach().clone() for p in part.parameters()] for name, part in parts.items()}
        step()
        return {
            name
            for name, part in parts.items()
            if not all(torch.equal(a, b) for a, b in zip(before[name], part.parameters(), strict=True))
        }

    def critic():
        following = features(policy, chunks, "next")
        algorithm._update_critic(
            seen,
            algorithm._executed_actions(chunks),
            chunks["reward"],
            chunks["discount"],
            following,
            following,
        )

    assert moved(critic) == {"critic"}
    assert moved(lambda: algorithm._update_noise_critic(seen, seen)) == {"noise_critic"}
    assert moved(lambda: algorithm._update_actor(seen)) == {"steering"}


def test_steering_maximizes_the_noise_critic(make_policy, chunks):
    policy = make_policy()
    algorithm = make(policy, lr=1e-2, temperature=1e-6)
    wanted = torch.linspace(-1.0, 1.0, HORIZON * 2)

    class Likes(torch.nn.Module):
        def forward(self, inputs):
            return (-(inputs[:, 3:] - wanted).square().sum(1)).expand(2, -1)

    algorithm._noise_critic = Likes()
    seen = features(policy, chunks)
    for _ in range(200):
        algorithm._update_actor(seen)
    mean, _ = policy.steering(seen)
    np.testing.assert_allclose((1.5 * torch.tanh(mean)).detach().numpy(), wanted.expand(8, -1).numpy(), atol=0.15)


# ---- it learns


@pytest.mark.extended
def test_bimodal_flow_is_steered_to_the_rewarded_mode(make_policy, robot):
    """Demonstrations go left or right; only one side is rewarded, depending on the observation."""
    policy = make_policy(hidden=32, num_flow_steps=4, steering_hidden=(32, 32))
    rng = np.random.default_rng(0)
    way = np.array([[0.6, 0.3], [0.6, 0.0], [0.6, -0.3]], np.float32)

    def look(num):
        return rng.choice((-1.0, 1.0), (num, 3)).astype(np.float32)

    cloning = Imitation(ImitationConfig(batch_size=64, lr=3e-3), policy=policy)
    for _ in range(300):
        sides = rng.choice((-1, 1), (64, 1, 1)).astype(np.float32)
        arrays = {
            "observation/joint_pos": look(64),
            "action": way * sides,
            "action/mask": np.ones((64, HORIZON), np.bool_),
            "human": np.ones((64, HORIZON), np.bool_),
        }
        cloning.update({name: torch.from_numpy(values) for name, values in arrays.items()})

    def rewards(seen, actions):
        return (actions[..., 0].mean(1) * seen[:, 0] > 0.3).astype(np.float32)

    def success(context):
        seen = look(200)
        return rewards(seen, policy.act({"joint_pos": seen}, context).actions).mean()

    assert 0.3 < success(ActContext(seed=0)) < 0.7
    algorithm = make(policy, batch_size=64, hidden=(64, 64), lr=3e-3, actor_every=2, actor_after=100)
    arrays = batch_arrays(algorithm.sample_request, robot)
    arrays["action/mask"][:] = True
    for step in range(400):
        seen = look(64)
        arrays["observation/joint_pos"][:] = arrays["next/joint_pos"][:] = seen
        arrays["action"][:] = policy.act({"joint_pos": seen}, ActContext(seed=step)).actions
        arrays["reward"][:] = rewards(seen, arrays["action"])
        algorithm.update({name: torch.from_numpy(values) for name, values in arrays.items()})
    assert success(ActContext(seed=0)) > 0.95
    assert success(ActContext(deterministic=True)) > 0.95
