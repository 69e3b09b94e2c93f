"""ACT and Diffusion Policy as policies: contract, inputs, history, statistics, weights."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dovetail.config.plugins import resolve
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.types import ActContext
from dovetail.policies.trainable import TrainablePolicy
from dovetail.testing import check_policy
from support.toy_arm import DETERMINISTIC, ROBOT, features_of, observations, snapshot_of

SMALL = {
    "act": {
        "horizon": 4,
        "hidden": 8,
        "num_heads": 2,
        "feedforward": 8,
        "num_encoder_layers": 1,
        "num_style_layers": 1,
    },
    "diffusion": {
        "horizon": 4,
        "channels": (8, 16),
        "kernel_size": 3,
        "time_features": 4,
        "num_train_steps": 4,
        "num_keypoints": 3,
    },
}


def make(name, *, seed=3, **config):
    policy = resolve("policy", name)
    return policy(policy.Config(**(SMALL[name] | config)), robot=ROBOT, seed=seed)


@pytest.fixture(params=SMALL)
def name(request):
    return request.param


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("act", {}),
        ("act", {"pre_norm": True, "style": False, "activation": "gelu"}),
        ("act", {"inputs": ("force", "front"), "width": 16}),
        ("act", {"inputs": ("front",), "width": 16, "resnet": 34}),
        ("diffusion", {"num_observations": 1}),
        ("diffusion", {"num_observations": 3, "scheduler": "ddim", "num_denoising_steps": 2}),
        ("diffusion", {"inputs": ("force", "front"), "width": 16, "crop": (16, 12), "separate_encoders": True}),
    ],
)
def test_policy_keeps_the_contract(name, config):
    donor = make(name, seed=4, **config)
    check_policy(lambda: make(name, **config), snapshot=snapshot_of(donor))
    assert isinstance(donor, TrainablePolicy)
    assert set(donor.components) == ({"actor", "encoder"} if "width" in config else {"actor"})


def test_action_statistics_are_the_robots_limits_and_part_of_the_weights(name):
    policy = make(name)
    low, high = ROBOT.action.bounds
    normalized = policy.normalize_actions(torch.from_numpy(np.stack((low, high, high + 1.0)).astype(np.float32)))
    assert normalized.tolist() == [[-1.0, -1.0], [1.0, 1.0], [1.0, 1.0]]
    assert policy.weights()["normalizer"]["mean/action"].tolist() == pytest.approx([1.0, 0.25])


def test_fitted_statistics_are_those_of_the_observations_and_leave_images_alone(name):
    policy = make(name, inputs=("force", "joint_pos", "front"), width=16)
    columns = {"joint_pos": np.array([[0, 2, 4], [2, 4, 6]]), "force": np.array([[10, -10], [30, -10]])}
    policy.fit_normalizer(columns)
    stats = policy.weights()["normalizer"]
    assert stats["mean/force"].tolist() == [20.0, -10.0]
    assert stats["std/force"].tolist() == pytest.approx([10.0, 1e-3])
    assert stats["mean/joint_pos"].tolist() == [1.0, 3.0, 5.0]
    assert stats["mean/action"].tolist() == pytest.approx([1.0, 0.25])
    assert stats["mean/images.front"].tolist() == pytest.approx([0.485, 0.456, 0.406])


def test_missing_history_repeats_the_first_known_observation():
    policy = make("diffusion", inputs=("force",), num_observations=3)
    values = np.array([[[9.0, 9.0], [1.0, 2.0], [3.0, 4.0]]], np.float32)
    mask = np.array([[False, True, True]])
    features = policy.features({"force": torch.from_numpy(values), "force/mask": torch.from_numpy(mask)})
    assert features.tolist() == [[1.0, 2.0, 1.0, 2.0, 3.0, 4.0]]


def test_act_always_gives_the_same_chunk_and_diffusion_explores():
    seen = observations(1)
    for name, same in (("act", True), ("diffusion", False)):
        policy = make(name, num_observations=1) if name == "diffusion" else make(name)
        one, two = (policy.act(seen, ActContext(seed=seed)).actions for seed in (1, 2))
        assert np.array_equal(one, two) == same
    policy = make("diffusion", num_observations=1, deterministic_noise="seeded")
    one, two = (policy.act(seen, ActContext(seed=seed, deterministic=True)).actions for seed in (1, 2))
    assert not np.array_equal(one, two)


def test_only_diffusion_can_be_guided():
    assert make("diffusion").spec.guidable
    assert not make("act").spec.guidable


def test_algorithms_that_need_a_density_are_refused(name):
    policy = make(name, num_observations=1) if name == "diffusion" else make(name)
    with pytest.raises(UsageError, match=r"cannot compute the density of its actions.*'imitation'"):
        policy.sample(features_of(policy), generator=None)


def test_depth_is_refused(name):
    with pytest.raises(SpecMismatch, match="depth image 'depth' among its inputs, but it sees color only"):
        make(name, inputs=("force", "depth"))


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("act", {"hidden": 12, "num_heads": 8}, "multiple of num_heads"),
        ("act", {"images": {"front": "front"}}, "images needs a checkpoint"),
        ("act", {"checkpoint": "x", "inputs": ("force",)}, "With a checkpoint, use state and images"),
        ("act", {"checkpoint": "x"}, "horizon, hidden, .* would change the network of the checkpoint"),
        ("diffusion", {"horizon": 5}, "should be a multiple of 2, because 2 stages halve it"),
        ("diffusion", {"channels": (12, 16)}, "multiples of num_groups"),
        ("diffusion", {"kernel_size": 4}, "kernel_size should be odd"),
        ("diffusion", {"num_denoising_steps": 5}, r"num_denoising_steps \(5\) exceeds num_train_steps \(4\)"),
    ],
)
def test_contradicting_settings_are_refused(name, config, message):
    with pytest.raises(ValidationError, match=message):
        make(name, **config)


@pytest.mark.parametrize(
    "config", [{}, pytest.param({"inputs": ("force", "front"), "width": 16}, marks=pytest.mark.extended)]
)
def test_both_learn_two_chunks_by_heart(name, config):
    """The loss falls, and with it the error of the chunk that the policy then acts."""
    more = {"num_observations": 1, "num_train_steps": 10, "prediction": "sample"} if name == "diffusion" else {}
    policy = make(name, **config, **more)
    rng = np.random.default_rng(0)
    front = rng.integers(0, 256, (2, 20, 16, 3), np.uint8)
    seen = observations(2) if not config else {"force": observations(2)["force"], "front": front}
    low, high = ROBOT.action.bounds
    chunks = (low + (high - low) * rng.uniform(0.2, 0.8, (2, 4, 2))).astype(np.float32)
    target = policy.normalize_actions(torch.from_numpy(chunks)).repeat(8, 1, 1)
    parameters = [p for module in policy.components.values() for p in module.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=5e-3)
    generator = torch.Generator().manual_seed(0)

    def error():
        return np.abs((policy.act(seen, DETERMINISTIC).actions - chunks) / (high - low)).mean()

    before = error()
    for _ in range(60):
        features = policy.features({key: torch.from_numpy(value) for key, value in seen.items()}).repeat(8, 1)
        optimizer.zero_grad()
        policy.imitation_loss(features, target, generator=generator).backward()
        optimizer.step()
    assert error() < 0.4 * before
    assert all(p.grad is not None for p in parameters)
