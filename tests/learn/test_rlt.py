"""RLT: chunk targets by hand, what each phase trains, the dropped proposals, people's chunks, and resume."""

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.errors import UsageError
from dovetail.core.proposals import EMBEDDING, PROPOSAL, with_proposal
from dovetail.core.types import (
    Episode,
    EpisodeStart,
    Labels,
    Observation,
    Outcome,
    Purpose,
    Segment,
    View,
)
from dovetail.learn.algorithms.rlt import RLT, RLTConfig
from dovetail.learn.batches import Batches, observations_of
from dovetail.learn.data_parallel import DataParallel
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.rl_token import RlTokenPolicy
from dovetail.policies.settings import RlTokenConfig
from dovetail.replay.mapped import MappedReplay
from dovetail.testing import check_algorithm
from dovetail.testing.algorithms import random_batch

K, WIDTH = 2, 3  # actions of a chunk; features of the flow below
STD = 0.2


@pytest.fixture
def arm(robot):
    return with_proposal(robot, steps=K, embedding_size=WIDTH)


@pytest.fixture
def make_policy(robot, arm):
    def make(seed=0):
        base = Flow(FlowConfig(horizon=4, hidden=8, num_layers=1), robot=robot)
        for method in ("act", "embeddings"):
            setattr(base, method, lambda *_: pytest.fail("an update asked the base"))
        config = RlTokenConfig(
            base={"run": "x"},
            horizon=K,
            num_embeddings=1,
            embedding_width=WIDTH,
            token_size=2,
            token_width=8,
            token_layers=1,
            decoder_hidden=(),
            hidden=(16,),
            exploration_std=STD,
        )
        return RlTokenPolicy(config, robot=arm, base=base, seed=seed)

    return make


def make(policy, seed=0, **config):
    small = {"batch_size": 8, "hidden": (16, 16), "actor_every": 1, "token_updates": 0, "base_updates": 0}
    return RLT(RLTConfig(**(small | config)), policy=policy, seed=seed)


@pytest.fixture
def batch(make_policy, arm):
    arrays = random_batch(make(make_policy()).sample_request, arm, np.random.default_rng(0))
    arrays["action/mask"][:] = True
    arrays["human"][:] = False
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def same_draw(algorithm):
    generator = torch.Generator()
    generator.set_state(algorithm._generator.get_state())
    return generator


def test_keeps_the_algorithm_contract(make_policy, arm):
    assert resolve("algorithm", "rlt") is RLT
    check_algorithm(lambda: make(make_policy(), token_updates=3, base_updates=3), robot=arm)


def test_another_policy_is_refused(policy):
    with pytest.raises(UsageError, match=r"Set policy\.type=rl_token"):
        make(policy)


# ---- phases


def test_token_learns_first_then_the_actor_imitates_then_it_acts(make_policy, batch):
    policy = make_policy()
    algorithm = make(policy, token_updates=2, base_updates=2)

    def moved():
        parts = {**policy.components, "critic": algorithm._critic}
        before = {name: [p.detach().clone() for p in part.parameters()] for name, part in parts.items()}
        metrics = algorithm.update(batch)
        changed = {
            name
            for name, part in parts.items()
            if any(not torch.equal(a, b) for a, b in zip(before[name], part.parameters(), strict=True))
        }
        engaged = algorithm.policy_weights()["actor"]["engaged"].item()
        return changed, "token_loss" in metrics, engaged

    assert algorithm.sample_request.rows == {View(part="prior"): 8}
    assert [moved() for _ in range(2)] == [({"token"}, True, 0.0)] * 2
    assert algorithm.sample_request.rows == {View(part="prior"): 4, View(part="online"): 4}
    assert [moved() for _ in range(2)] == [({"actor", "critic"}, False, 0.0)] * 2
    assert [moved() for _ in range(2)] == [({"actor", "critic"}, False, 1.0)] * 2
    assert set(algorithm.policy_weights()) == {"token", "actor", "normalizer"}  # neither the base nor the critic


# ---- the critic


# rewards 1 2 4 8 16, gamma 1/2, n = 3 steps, chunks of 2: y = r0 + r1 / 2 + r2 / 4 + discount * min Q'(x', c')
EARNED = {0: (3, 3), 1: (6, 4), 2: (12, 5), 3: (16, 5), 4: (16, 5)}  # and the step that follows
DISCOUNT = {
    Outcome.SUCCESS: {0: 1 / 8, 1: 1 / 8, 2: 0.0, 3: 0.0, 4: 0.0},
    Outcome.TIMEOUT: {0: 1 / 8, 1: 1 / 8, 2: 1 / 8, 3: 1 / 4, 4: 1 / 2},
}


def episode(robot, outcome):
    """Step i sees i, does i / 10, and its base proposes -i / 10."""
    ticks = np.arange(5)

    def seen(step, size, factor=1.0):
        return np.repeat(np.asarray(step, np.float32)[..., None] * np.float32(factor), size, axis=-1)

    executed = seen(ticks, 2, 0.1)
    columns = {
        "time_ns": ticks.astype(np.int64),
        "observation/joint_pos": seen(ticks, 3),
        f"observation/{PROPOSAL}": seen(ticks, 2 * K, -0.1),
        f"observation/{EMBEDDING}": seen(ticks, WIDTH),
        "executed": executed,
        "proposed": executed,
        "source": (ticks % 2).astype(np.uint8),
        "policy_version": np.zeros(5, np.int64),
        "chunk_id": ticks.astype(np.int64),
        "chunk_index": np.zeros(5, np.int64),
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
    values = {"joint_pos": seen(5, 3), PROPOSAL: seen(5, 2 * K, -0.1), EMBEDDING: seen(5, WIDTH)}
    last = Observation(time_ns=5, values=values)
    segment = Segment(episode_id=start.id, first=0, final=True, columns=columns, last_observation=last)
    discounts = np.ones(5, np.float32)
    discounts[-1] = 1.0 if outcome is Outcome.TIMEOUT else 0.0
    labels = Labels(
        episode_id=start.id,
        rewards=np.array([1, 2, 4, 8, 16], np.float32),
        discounts=discounts,
        success=outcome is Outcome.SUCCESS,
        confidence=1.0,
        labeler="test",
        version="1",
    )
    return Episode.of(start, [segment], outcome=outcome), labels


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.TIMEOUT])
def test_chunk_targets_worked_out_by_hand(make_policy, arm, tmp_path, outcome):
    policy = make_policy()
    algorithm = make(policy, gamma=0.5, num_steps=3)
    replay = MappedReplay(folder=tmp_path / "replay")
    replay.open()
    replay.add(*episode(arm, outcome))
    batches = Batches(
        request=algorithm.sample_request, robot=arm, replay=replay, rng=np.random.default_rng(0), num_ahead=0
    )
    met = set()
    for batch in batches.take(10):
        first = batch["observation/joint_pos"][:, 0].int().tolist()
        met |= set(first)
        earned = torch.tensor([float(EARNED[step][0]) for step in first])
        following = torch.tensor([float(EARNED[step][1]) for step in first])
        discount = torch.tensor([DISCOUNT[outcome][step] for step in first])
        chunks = torch.tensor(
            [[min(step + i, 4) / 10 for i in range(K)] for step in first]
        )  # the last one repeats
        with torch.no_grad():
            x, x_next = (
                torch.cat((policy.token(of[:, None, None].expand(-1, 1, WIDTH)), of[:, None].expand(-1, 3)), 1)
                for of in (torch.tensor(first).float(), following)
            )
            mean = policy.actor(torch.cat((x_next, (following * -0.1)[:, None].expand(-1, 2 * K)), 1))
            c_next = (mean + STD * torch.randn(mean.shape, generator=same_draw(algorithm))).clamp(-1.0, 1.0)
            y = earned + discount * algorithm._target(torch.cat((x_next, c_next), 1)).amin(0)
            q = algorithm._critic(torch.cat((x, chunks.repeat_interleave(2, dim=1)), 1))
        metrics = algorithm.update(batch)
        assert metrics["critic_loss"] == pytest.approx(float((q - y).square().mean()), rel=1e-4)
    assert met == set(EARNED)
    replay.close()


def test_targets_need_at_least_a_chunk(make_policy):
    window = make(make_policy(), num_steps=1).sample_request.window
    assert (window.num_steps, window.horizon) == (K, K)


# ---- the actor


def test_actor_loss_is_minus_q_plus_beta_times_the_distance(make_policy, batch):
    policy = make_policy()
    algorithm = make(policy, beta=3.0, dropped_share=0.0)
    with torch.no_grad():
        s = policy.features(observations_of(batch, "observation"))
    x, c_base = s[:, :5], s[:, 5:]
    wanted, weights = algorithm._wanted_chunks(batch, s)
    assert torch.equal(wanted.flatten(1), c_base)
    assert (weights == 1.0).all()
    algorithm._num_updates = 1
    with torch.no_grad():
        c = policy.actor(s)
        q = algorithm._critic(torch.cat((x, c), 1)).amin(0).mean()
        distance = (c - c_base).square().mean()
    metrics = algorithm._update_actor(s, wanted, weights)
    assert float(metrics["actor_loss"]) == pytest.approx(float(-q + 3.0 * distance), rel=1e-5)
    assert float(metrics["distance"]) == pytest.approx(float(distance), rel=1e-5)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0.0), (0.5, 0.5)])
def test_proposal_is_zero_for_the_actor_in_a_share_of_the_rows(make_policy, batch, share, expected):
    policy = make_policy()
    algorithm = make(policy, dropped_share=share)
    seen = []
    policy.actor.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    s = torch.ones(4000, 5 + 2 * K)
    algorithm._num_updates = 1
    algorithm._update_actor(s, torch.zeros(4000, K, 2), torch.ones(4000, K, 2))
    (given,) = seen
    assert torch.equal(given[:, :5], s[:, :5])
    is_zero = (given[:, 5:] == 0.0).all(1)
    assert is_zero.float().mean().item() == pytest.approx(expected, abs=0.03)
    assert (given[~is_zero, 5:] == 1.0).all()


def test_a_persons_chunk_replaces_the_proposal_up_to_the_handover(make_policy, batch):
    algorithm = make(make_policy(), correction_weight=5.0)
    batch["human"][0] = torch.tensor([True, True])
    batch["human"][1] = torch.tensor([True, False])  # handed back after one action
    batch["human"][2] = torch.tensor([False, True])  # the policy began the chunk
    batch["human"][3] = torch.tensor([True, True])
    batch["action/mask"][3] = torch.tensor([True, False])  # the episode ends
    batch["action"][3, 1] = torch.nan
    s = algorithm._of_token.features(observations_of(batch, "observation"))
    wanted, weights = algorithm._wanted_chunks(batch, s)
    executed = algorithm._policy.normalize_actions(batch["action"])
    proposed = s[:, 5:].view_as(executed)
    assert torch.equal(wanted[0], executed[0])
    assert torch.equal(wanted[[1, 3], :1], executed[[1, 3], :1])
    assert torch.equal(wanted[2], proposed[2])
    assert weights[:4, :, 0].tolist() == [[5.0, 5.0], [5.0, 0.0], [1.0, 1.0], [5.0, 0.0]]
    assert torch.equal(weights[..., 0], weights[..., 1])


def test_actor_leaves_the_proposal_only_where_the_critic_says_so(make_policy, batch):
    """Q = -|c - 0.5|^2: the actor moves from proposals of 0 to 0.5 with a small beta, and stays with a large one."""

    def learned(beta):
        policy = make_policy()
        algorithm = make(policy, beta=beta, lr=1e-2, dropped_share=0.0)
        algorithm._actor_q = lambda critic, x, c: -(c - 0.5).square().mean(1)
        s = torch.randn(64, 5 + 2 * K, generator=torch.Generator().manual_seed(0))
        s[:, 5:] = 0.0
        algorithm._num_updates = 1
        for _ in range(300):
            algorithm._update_actor(s, torch.zeros(64, K, 2), torch.ones(64, K, 2))
        return policy.actor(s).mean().item()

    # minimum of (c - 0.5)^2 + beta c^2 at 0.5 / (1 + beta)
    assert learned(0.0) == pytest.approx(0.5, abs=0.03)
    assert learned(1.0) == pytest.approx(0.25, abs=0.03)
    assert learned(9.0) == pytest.approx(0.05, abs=0.03)


def test_resumed_updates_are_identical(make_policy, batch):
    config = {"token_updates": 3, "base_updates": 3}
    algorithm = make(make_policy(), **config)
    for _ in range(2):
        algorithm.update(batch)
    state = algorithm.state_dict()
    expected = [dict(algorithm.update(batch)) for _ in range(6)]
    other = make(make_policy(seed=9), seed=4, **config)
    other.load_state_dict(state)
    assert [dict(other.update(batch)) for _ in range(6)] == expected


def test_loss_of_two_ranks_is_that_of_one_process(make_policy, batch):
    """Each rank has every second row and drops the proposals that one process would drop in them."""
    batch["human"][0], batch["human"][5, 0] = True, True

    def loss(rank, size):
        algorithm, found = make(make_policy()), []
        algorithm.set_parallel(DataParallel(rank=rank, size=size))
        algorithm._step_actor = lambda loss: found.append(loss.item()) or {}
        algorithm._num_updates = 1
        rows = {name: values[rank::size] for name, values in batch.items()}
        s = algorithm._of_token.features(observations_of(rows, "observation"))
        algorithm._update_actor(s, *algorithm._wanted_chunks(rows, s))
        return found[0]

    assert (loss(0, 2) + loss(1, 2)) / 2 == pytest.approx(loss(0, 1), rel=1e-5)
