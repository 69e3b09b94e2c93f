"""The residual policy: exactly its base at first, a bounded correction later, and a base that is asked only when due."""

import numpy as np
import pytest
import torch

from dovetail.core.errors import SpecMismatch
from dovetail.core.proposals import PROPOSAL, proposal_at, with_proposal
from dovetail.core.types import ActContext
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.random_draws import normal, seeded_generator
from dovetail.policies.residual import ResidualPolicy
from dovetail.policies.settings import ResidualConfig
from dovetail.policies.trainable import TrainablePolicy
from support.toy_arm import DETERMINISTIC, ROBOT, observations, snapshot_of

BASE = {"run": "unused"}


def make_base(**config):
    return Flow(FlowConfig(**{"horizon": 4, "hidden": 16, "num_layers": 1, **config}), robot=ROBOT, seed=3)


def make(base=None, *, share=0.0, **config):
    config = {"base": BASE, "hidden": (16,), "inputs": ("joint_pos",), **config}
    robot = with_proposal(ROBOT, steps=config.get("horizon", 1))
    policy = ResidualPolicy(ResidualConfig(**config), robot=robot, seed=5, base=base or make_base())
    policy.residual.share.fill_(share)
    return policy


def asked(num_rows=4, *, horizon=1):
    """Observations in which the base has to be asked."""
    return {**observations(num_rows), PROPOSAL: np.full((num_rows, horizon * 2), np.nan, np.float32)}


def test_proposal_slices_the_chunk_and_repeats_its_last_action():
    chunk = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert proposal_at(chunk, 1, steps=2).tolist() == [[2, 3], [4, 5]]
    assert proposal_at(chunk, 3, steps=3).tolist() == [[6, 7]] * 3
    assert proposal_at(chunk, 9, steps=1).tolist() == [[6, 7]]


def test_spec_has_the_inputs_of_both_and_the_proposal():
    spec = make(horizon=2).spec
    assert set(spec.observation) == {"joint_pos", "force", PROPOSAL}
    assert spec.observation[PROPOSAL].shape == (4,)
    assert spec.learned_keys == ("joint_pos", PROPOSAL)  # `force` is only the base's
    assert (spec.base.horizon, spec.base.every, spec.base.inputs) == (4, 1, ("force",))
    assert make().spec.base.every == 2  # half of the base's chunk
    assert type(spec).from_json(spec.to_json()) == spec
    assert isinstance(make(), TrainablePolicy)


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("horizon", [1, 4])
def test_untrained_policy_acts_as_its_base_bit_for_bit(share, horizon):
    base = make_base()
    chunk = make(base, share=share, horizon=horizon).act(asked(horizon=horizon), DETERMINISTIC)
    assert np.array_equal(chunk.actions, base.act(observations(), DETERMINISTIC).actions[:, :horizon])
    assert np.array_equal(chunk.extras[PROPOSAL], base.act(observations(), DETERMINISTIC).actions)


def test_without_a_share_also_noisy_actions_are_those_of_the_base():
    base, context = make_base(), ActContext(seed=4)
    assert np.array_equal(
        make(base).act(asked(), context).actions[:, 0], base.act(observations(), context).actions[:, 0]
    )
    assert not np.array_equal(
        make(base, share=1.0).act(asked(), context).actions, make(base).act(asked(), context).actions
    )


def test_correction_is_bounded_by_its_share_of_each_axis_range():
    """The ranges are 4 and 0.5, so 0.1 of them is 0.4 and 0.05. The limits of the robot hold, too."""
    policy = make(share=0.5, max_correction=0.2, max_correction_of={"1": 0.1})
    with torch.no_grad():
        policy.residual.net[-1].bias[:2] = 50.0  # tanh is 1
    inputs = {**observations(2), PROPOSAL: np.array([[1.0, 0.2], [2.9, 0.49]], np.float32)}
    actions = policy.act(inputs, DETERMINISTIC).actions[:, 0]
    assert np.allclose(actions, [[1.4, 0.225], [3.0, 0.5]])


def test_noise_of_the_correction_does_not_repeat_that_of_the_base():
    """Both get the same seed. The largest of 16 correlations over 300 seeds is below 0.3 by a wide margin."""
    policy, seeds = make(make_base(horizon=8), share=1.0, horizon=8), range(300)
    chunks = [policy.act(asked(1, horizon=8), ActContext(seed=seed)) for seed in seeds]
    corrections = np.array([(chunk.actions - chunk.extras[PROPOSAL]).ravel() for chunk in chunks])
    of_base = np.array(
        [normal((1, 8, 2), generator=seeded_generator(seed), device="cpu").numpy().ravel() for seed in seeds]
    )
    assert corrections.std(axis=0).min() > 0.0
    assert np.abs(np.corrcoef(corrections.T, of_base.T)[:16, 16:]).max() < 0.3


def test_learned_and_executed_actions_agree():
    policy = make(share=0.7, max_correction=0.3, horizon=2)
    with torch.no_grad():
        policy.residual.net[-1].bias[:4] = torch.tensor([0.3, -0.8, 1.2, -0.1])
        policy.residual.net[-1].bias[4:] = -50.0  # hardly any noise
    inputs = {**observations(2), PROPOSAL: np.tile(np.array([1.0, 0.2, 0.0, 0.3], np.float32), (2, 1))}
    executed = torch.from_numpy(policy.act(inputs, DETERMINISTIC).actions)
    features = policy.features({key: torch.from_numpy(inputs[key]) for key in policy.spec.learned_keys})
    sampled, _ = policy.sample(features, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(sampled.view(2, 2, 2), policy.normalize_actions(executed), atol=0.02)
    target = policy.normalize_actions(executed)
    assert policy.imitation_loss(features, target).item() == pytest.approx(0.0, abs=1e-10)


def test_known_proposal_is_used_without_asking_the_base():
    base = make_base()
    base.act = lambda *_: pytest.fail("the base was asked")
    inputs = {**observations(3), PROPOSAL: np.full((3, 2), 0.25, np.float32)}
    chunk = make(base).act(inputs, DETERMINISTIC)
    assert (chunk.actions == 0.25).all()
    assert np.isnan(chunk.extras[PROPOSAL]).all()


def test_share_is_part_of_the_weights_and_the_base_is_not():
    donor, policy = make(share=0.25), make()
    policy.load(snapshot_of(donor))
    assert float(policy.residual.share) == 0.25
    assert set(donor.weights()) == {"residual", "normalizer"}


def test_base_with_history_or_a_short_chunk_is_refused():
    with pytest.raises(SpecMismatch, match="needs the history of force"):
        make(make_base(history={"force": 2}))
    with pytest.raises(SpecMismatch, match="chunks of 5 actions, but its base 'flow' proposes 4"):
        make(horizon=5)
    with pytest.raises(SpecMismatch, match="names axis 'z'"):
        make(max_correction_of={"z": 0.1})


@pytest.mark.parametrize("base", [{}, {"type": "flow", "run": "x"}, {"run": "x", "horizon": 4}, {"run": 3}])
def test_base_of_another_form_is_refused(base):
    with pytest.raises(ValueError, match="base"):
        ResidualConfig(base=base)
