"""The policy of RLT: its base at first, a token of the base's embeddings, and a loss that is known for linear data."""

import numpy as np
import pytest
import torch

from dovetail.core.errors import SpecMismatch
from dovetail.core.proposals import EMBEDDING, PROPOSAL, with_proposal
from dovetail.core.types import ActContext
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.rl_token import RlTokenPolicy
from dovetail.policies.rl_token_networks import RlToken, pool_embeddings
from dovetail.policies.settings import RlTokenConfig
from dovetail.policies.trainable import TrainablePolicy
from support.toy_arm import DETERMINISTIC, ROBOT, observations, snapshot_of

K, WIDTH = 2, 5  # the flow's features: joint_pos and force


def make_base():
    return Flow(FlowConfig(horizon=4, hidden=16, num_layers=1), robot=ROBOT, seed=3)


def make(base=None, *, engaged=False, seed=5, **config):
    config = {
        "base": {"run": "unused"},
        "horizon": K,
        "num_embeddings": 1,
        "embedding_width": WIDTH,
        "token_size": 4,
        "token_width": 8,
        "token_layers": 1,
        "hidden": (16,),
        "inputs": ("joint_pos",),
        **config,
    }
    settings = RlTokenConfig(**config)
    robot = with_proposal(ROBOT, steps=K, embedding_size=settings.embedding_size)
    policy = RlTokenPolicy(settings, robot=robot, seed=seed, base=base or make_base())
    policy.actor.engaged.fill_(float(engaged))
    return policy


def asked(num_rows=4):
    """Observations in which the base has to be asked."""
    unknown = {key: np.full((num_rows, size), np.nan, np.float32) for key, size in ((PROPOSAL, 4), (EMBEDDING, 5))}
    return {**observations(num_rows), **unknown}


# ---- acting


def test_spec_has_the_inputs_of_both_the_proposal_and_the_embedding():
    spec = make().spec
    assert set(spec.observation) == {"joint_pos", "force", PROPOSAL, EMBEDDING}
    assert spec.learned_keys == ("joint_pos", EMBEDDING, PROPOSAL)  # `force` is only the base's
    assert (spec.base.horizon, spec.base.every, spec.base.embedding_size) == (4, 1, WIDTH)
    assert type(spec).from_json(spec.to_json()) == spec
    assert isinstance(make(), TrainablePolicy)


@pytest.mark.parametrize("context", [DETERMINISTIC, ActContext(seed=4)])
def test_until_it_is_engaged_it_acts_as_its_base_bit_for_bit(context):
    base = make_base()
    chunk, own = make(base).act(asked(), context), base.act(observations(), context)
    assert np.array_equal(chunk.actions, own.actions[:, :K])
    assert np.array_equal(chunk.extras[PROPOSAL], own.actions)
    joined = np.concatenate([observations()[key] for key in ("joint_pos", "force")], axis=1)
    assert np.allclose(chunk.extras[EMBEDDING], joined)  # the features of this flow


def test_engaged_actor_returns_its_own_chunk_around_its_mean():
    policy = make(engaged=True, exploration_std=0.05)
    known = {**observations(2000), PROPOSAL: np.zeros((2000, 4), np.float32)}
    known[EMBEDDING] = np.ones((2000, WIDTH), np.float32)
    policy.base.act = lambda *_: pytest.fail("the proposal is known, but the base was asked")
    mean = policy.act(known, DETERMINISTIC).actions
    drawn = policy.act(known, ActContext(seed=1)).actions
    half_range = np.array([2.0, 0.25])
    assert ((drawn - mean) / half_range).std(axis=(0, 1)) == pytest.approx([0.05, 0.05], rel=0.05)
    assert np.isnan(policy.act(known, DETERMINISTIC).extras[PROPOSAL]).all()


def test_token_and_actor_are_the_weights_and_the_base_is_not():
    policy, donor = make(engaged=False), make(engaged=True, seed=6)
    assert set(donor.weights()) == {"token", "actor", "normalizer"}
    policy.load(snapshot_of(donor))
    assert np.array_equal(policy.act(asked(), DETERMINISTIC).actions, donor.act(asked(), DETERMINISTIC).actions)


def test_base_without_embeddings_or_of_another_width_is_refused():
    with pytest.raises(SpecMismatch, match=r"'gaussian_mlp' has none\. Use pi0, pi05, smolvla or flow"):
        make(GaussianMLP(GaussianMLPConfig(horizon=4), robot=ROBOT))
    with pytest.raises(SpecMismatch, match=r"have width 5, not 7\. Set policy\.embedding_width=5"):
        make(embedding_width=7)


def test_log_density_is_that_of_a_normal_distribution():
    policy = make(exploration_std=0.3)
    features = torch.randn(5, policy.num_features, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        actions, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(1))
        normal = torch.distributions.Normal(policy.actor(features), 0.3)
    inside = (actions.abs() < 1.0).all(1)
    assert inside.any()
    torch.testing.assert_close(log_prob[inside], normal.log_prob(actions).sum(1)[inside], rtol=1e-4, atol=1e-4)


# ---- embeddings


def test_groups_are_means_of_valid_neighbors():
    embeddings = torch.tensor([[[1.0], [3.0], [5.0], [7.0], [9.0]]])
    mask = torch.tensor([[True, True, True, False, False]])
    # groups of 5 in 2: the first three, the last two
    assert pool_embeddings(embeddings, mask, num_groups=2).flatten().tolist() == [3.0, 0.0]
    mask = torch.tensor([[True, False, True, False, True]])
    assert pool_embeddings(embeddings, mask, num_groups=2).flatten().tolist() == [3.0, 9.0]
    embeddings[0, 1] = torch.nan  # what is masked does not count
    assert pool_embeddings(embeddings, mask, num_groups=2).flatten().tolist() == [3.0, 9.0]


def token_of(*, size, decoder_hidden=(), num_embeddings=2, width=2):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return RlToken(
            num_embeddings=num_embeddings,
            embedding_width=width,
            size=size,
            width=16,
            num_layers=1,
            decoder_hidden=decoder_hidden,
        )


def test_token_loss_worked_out_by_hand():
    """The token is 2, and the decoder returns (2, -4, 6, 0) + (0, 0, 0, 1)."""
    token = token_of(size=1)
    with torch.no_grad():
        token.token.weight.zero_()
        token.token.bias.fill_(2.0)
        token.decoder.weight.copy_(torch.tensor([[1.0], [-2.0], [3.0], [0.0]]))
        token.decoder.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0]))
    embeddings = torch.tensor([[[2.0, -4.0], [5.0, 3.0]], [[0.0, 0.0], [6.0, 1.0]]])
    # errors (0, 0, 1, -2) and (2, -4, 0, 0): (5 + 20) / 8
    assert token.loss(embeddings).item() == 25 / 8


def test_one_token_keeps_what_lies_on_a_line_and_loses_what_is_orthogonal_to_it():
    """e = 2 a u + b v with independent a, b = +-1 and orthonormal u, v in four dimensions. With a linear decoder, a
    token of one number keeps at best a: the error of b is 1 / 4 per value. Two numbers keep all."""
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    u, v = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.5, -0.5, 0.5, -0.5]])
    embeddings = (2.0 * signs[:, :1] * u + signs[:, 1:] * v).view(4, 2, 2)

    def trained(size):
        token = token_of(size=size)
        optimizer = torch.optim.Adam(token.parameters(), lr=3e-3)
        for _ in range(1500):
            optimizer.zero_grad()
            loss = token.loss(embeddings)
            loss.backward()
            optimizer.step()
        return loss.item()

    assert trained(1) == pytest.approx(0.25, abs=1e-3)
    assert trained(2) == pytest.approx(0.0, abs=1e-3)


def test_algorithms_cannot_change_the_token_through_the_features():
    policy = make()
    tensors = {"joint_pos": torch.zeros(3, 3), PROPOSAL: torch.zeros(3, 4), EMBEDDING: torch.randn(3, WIDTH)}
    assert not policy.features(tensors).requires_grad
    assert policy.features(tensors).shape == (3, policy.num_features)
    assert policy.num_state_features == 4 + 3
