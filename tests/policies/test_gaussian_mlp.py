import numpy as np
import pytest
import torch

from dovetail.core.errors import SpecMismatch, StoreError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.networks import EnsembleMLP
from dovetail.policies.normalizer import Normalizer

ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={
        "joint_pos": ArraySpec(shape=(3,)),
        "force": ArraySpec(shape=(2,)),
        "front": ArraySpec(shape=(8, 8, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(2,), low=(-1.0, 0.0), high=(3.0, 0.5)),
    action_kind="ee_delta",
    control_hz=10.0,
)


def make(**config):
    return GaussianMLP(GaussianMLPConfig(**config), robot=ROBOT, seed=3)


def batch(num=4, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "joint_pos": rng.normal(size=(num, 3)).astype(np.float32),
        "force": rng.normal(size=(num, 2)).astype(np.float32),
    }


def test_looks_at_everything_low_dimensional_unless_told_otherwise():
    assert set(make().spec.observation) == {"joint_pos", "force"}
    assert set(make(inputs=("force",)).spec.observation) == {"force"}


@pytest.mark.parametrize("key", ["fource", "front"])
def test_an_input_the_robot_does_not_give(key):
    with pytest.raises(SpecMismatch, match=f"gaussian_mlp' wants input '{key}'.*robot 'arm'"):
        make(inputs=(key,))


def test_actions_stay_within_the_robots_limits():
    chunk = make().act(batch(1000), ActContext(seed=1))
    assert chunk.actions.shape == (1000, 1, 2)
    assert chunk.actions.dtype == np.float32
    assert chunk.actions[..., 0].min() >= -1.0
    assert chunk.actions[..., 1].max() <= 0.5


def test_deterministic_and_seeded_acting():
    policy, seen = make(), batch()
    calm = [policy.act(seen, ActContext(deterministic=True)).actions for _ in range(2)]
    noisy = [policy.act(seen, ActContext(seed=s)).actions for s in (5, 5, 6)]
    assert np.array_equal(*calm)
    assert np.array_equal(noisy[0], noisy[1])
    assert not np.array_equal(noisy[0], noisy[2])


def test_log_density_is_that_of_a_squashed_gaussian():
    policy = make()
    features = policy.features({key: torch.from_numpy(values) for key, values in batch(64).items()})
    actions, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(0))
    mean, log_std = policy._distribution(features)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()),
        [torch.distributions.transforms.TanhTransform(cache_size=1)],
    )
    expected = squashed.log_prob(actions.clamp(-1 + 1e-6, 1 - 1e-6)).sum(-1)
    torch.testing.assert_close(log_prob, expected, rtol=2e-3, atol=2e-3)
    assert log_prob.requires_grad  # trap: a log-prob returned detached trains nothing


def test_noise_differs_from_row_to_row():
    """Trap: one scalar noise drawn for the whole batch."""
    same = {key: np.repeat(value[:1], 8, axis=0) for key, value in batch().items()}
    actions = make().act(same, ActContext(seed=0)).actions
    assert len(np.unique(actions[:, 0, 0])) == 8


def test_padding_in_history_changes_nothing():
    policy = make(inputs=("force",), history={"force": 3})
    seen = np.ones((1, 3, 2), np.float32)
    other = seen.copy()
    other[:, 0] = 99.0
    mask = np.array([[False, True, True]])
    acts = [
        policy.act({"force": x, "force/mask": mask}, ActContext(deterministic=True)).actions for x in (seen, other)
    ]
    assert np.array_equal(*acts)
    shown = policy.act(
        {"force": other, "force/mask": ~np.zeros((1, 3), bool)}, ActContext(deterministic=True)
    ).actions
    assert not np.array_equal(acts[0], shown)


def test_weights_travel_with_their_statistics():
    one, other = make(), GaussianMLP(GaussianMLPConfig(), robot=ROBOT, seed=4)
    one.fit_normalizer({k: 5.0 + 3.0 * v for k, v in batch(100).items()})
    other.load(WeightSnapshot(version=7, components=one.weights(), hashes={}))
    a, b = (p.act(batch(), ActContext(deterministic=True)) for p in (one, other))
    assert np.array_equal(a.actions, b.actions)
    assert b.policy_version == 7


def test_broken_weights_are_refused_and_the_old_ones_stay():
    policy = make()
    before = policy.act(batch(), ActContext(deterministic=True)).actions
    broken = {k: {n: v.copy() for n, v in c.items()} for k, c in policy.weights().items()}
    broken["actor"]["0.weight"][0, 0] = np.nan
    with pytest.raises(StoreError, match="version 2 hold non-finite"):
        policy.load(WeightSnapshot(version=2, components=broken, hashes={}))
    misfit = {**policy.weights(), "actor": {"0.weight": np.zeros((1, 1), np.float32)}}
    with pytest.raises(StoreError, match="version 3 do not fit"):
        policy.load(WeightSnapshot(version=3, components=misfit, hashes={}))
    assert np.array_equal(before, policy.act(batch(), ActContext(deterministic=True)).actions)


def test_the_normalizer_leaves_its_input_alone():
    """Trap: a normaliser that mutated its input."""
    normalizer = Normalizer({"force": 2})
    data = np.array([[1.0, 10.0], [3.0, 10.0]], np.float32)
    normalizer.fit({"force": data})
    values = torch.from_numpy(data.copy())
    out = normalizer("force", values).numpy()
    assert np.array_equal(values.numpy(), data)
    np.testing.assert_allclose(out, [[-1.0, 0.0], [1.0, 0.0]])  # mean 2, std 1; a constant column stays 0


def test_an_ensemble_is_its_members():
    torch.manual_seed(0)
    ensemble = EnsembleMLP((5, 8, 8, 1), num_members=3)
    inputs = torch.randn(7, 5)
    out = ensemble(inputs)
    for member in range(3):
        hidden = inputs
        for i, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
            hidden = hidden @ weight[member] + bias[member]
            if i < 2:
                hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
                hidden = torch.tanh(hidden * ensemble.scales[i][member] + ensemble.shifts[i][member])
        torch.testing.assert_close(out[member], hidden.squeeze(-1))
