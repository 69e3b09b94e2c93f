"""A VLA with densities and values: the published sampler without noise, paths of Flow-SDE and Flow-Noise with it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.learn.algorithms.ppo import PPO, PPOConfig
from dovetail.policies.trainable import ValuedPolicy
from dovetail.policies.vla.new_model import write_new_model
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.pi05_policy import Pi05Policy
from dovetail.policies.vla.settings import Pi0Config, ValuedPi0Config, ValuedPi05Config, ValuedSmolVLAConfig
from dovetail.policies.vla.valued_policy import ValuedPi0Policy, ValuedPi05Policy, ValuedSmolVLAPolicy
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from support.pi0_folders import NUM_ACTIONS, write_lerobot
from support.smolvla_folders import write_smolvla

ROWS, HORIZON = 4, 5
NOISE = [
    {"type": "sde", "one_step": False},
    {"type": "sde", "one_step": True},
    {"type": "learned", "one_step": False},
    {"type": "learned", "one_step": True},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_lerobot(tmp_path_factory.mktemp("pi0") / "lerobot")


@pytest.fixture(scope="module")
def robot():
    from dovetail.config.schema import RunConfig

    config = RunConfig.model_validate(
        {
            "task": {"type": "push_cube"},
            "robot": {"type": "sim", "images": ["front"], "image_size": [32, 32]},
            "policy": {"type": "gaussian_mlp"},
            "algorithm": {"type": "rlpd"},
        }
    )
    return config.robot.build(task=config.task.build()).spec


@pytest.fixture
def make(folder, robot):
    def make_policy(*, kind=ValuedPi0Policy, config=ValuedPi0Config, **settings):
        given = {"images": {"base_0_rgb": "front"}, "state": ("joint_pos", "gripper"), "device": "cpu", **settings}
        return kind(config(checkpoint=str(folder), **given), robot=robot, seed=3)

    return make_policy


def observations(*, seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    return {
        "joint_pos": rng.normal(size=(rows, 7)).astype(np.float32),
        "gripper": rng.normal(size=(rows, 2)).astype(np.float32),
        "front": rng.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8),
        "prompt": np.stack([encode_prompt("push the cube")] * rows),
    }


def tensors(arrays):
    return {key: torch.from_numpy(value) for key, value in arrays.items()}


def test_deterministic_and_continuing_chunks_are_those_of_the_published_sampler(make):
    plain, policy = make(kind=Pi0Policy, config=Pi0Config), make(path_noise={"type": "learned"})
    for context in (
        ActContext(deterministic=True),
        ActContext(seed=1, prefix=np.zeros((ROWS, 2, NUM_ACTIONS), np.float32), delay=1),
    ):
        ours, theirs = policy.act(observations(), context), plain.act(observations(), context)
        assert np.array_equal(ours.actions, theirs.actions)
        assert not ours.extras
    assert isinstance(policy, ValuedPolicy) and not isinstance(plain, ValuedPolicy)


@pytest.mark.parametrize("noise", NOISE)
def test_density_of_what_was_drawn_is_the_same_in_learning(make, noise):
    policy = make(path_noise=noise, num_flow_steps=3, train="expert")
    components = policy.components  # the learner's weights are float32
    chunk = policy.act(observations(), ActContext(seed=1))
    drawn = torch.from_numpy(chunk.extras["drawn"])
    assert drawn.shape == (ROWS, policy.num_drawn)
    assert policy.num_drawn == (2 * HORIZON * 32 + 1 if noise["one_step"] else 4 * HORIZON * 32)
    features = policy.features(tensors(observations()))
    log_prob, entropy, value = policy.evaluate_actions(features, drawn)
    np.testing.assert_allclose(log_prob.detach().numpy(), chunk.extras["log_prob"], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(value.detach().numpy(), chunk.extras["value"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(policy.value(features), value)
    assert log_prob.shape == entropy.shape == (ROWS, HORIZON)
    log_prob.sum().backward()
    for name, module in components.items():
        has_grad = any(p.grad is not None and p.grad.abs().max() > 0 for p in module.parameters())
        assert has_grad == (name in ("expert", "path_noise")), name


def test_value_trains_its_head_alone(make):
    policy = make()
    components = policy.components
    policy.evaluate_actions(policy.features(tensors(observations())), torch.zeros(ROWS, policy.num_drawn))[
        2
    ].sum().backward()
    for name, module in components.items():
        assert any(p.grad is not None for p in module.parameters()) == (name == "critic"), name


def test_values_tell_states_prompts_and_images_apart(make):
    policy = make()
    policy.components  # noqa: B018 - as a learner
    first = observations(rows=1)
    changed = {
        "joint_pos": first["joint_pos"] + 1.0,
        "front": 255 - first["front"],
        "prompt": np.stack([encode_prompt("push a cube")]),
    }
    with torch.no_grad():
        value = policy.value(policy.features(tensors(first))).item()
        for key, other in changed.items():
            assert policy.value(policy.features(tensors({**first, key: other}))).item() != value, key


def test_one_step_density_is_a_gaussian_of_the_real_axes(make, monkeypatch):
    """At t = 1/2 of two steps with velocity 3: sigma = a, std = a / sqrt 2, drift 3 + a^2 / 2 * (1.5 - x) / 0.5."""
    a, x = 0.4, 0.2
    policy = make(path_noise={"type": "sde", "level": a, "one_step": True}, num_flow_steps=2)
    times = []

    def velocity(points, time, prefix):
        return torch.full_like(points, -3.0)  # noise minus actions

    monkeypatch.setattr(policy.network, "velocity", velocity)
    monkeypatch.setattr(policy.network, "embed_times", lambda t: times.append(t.tolist()) or t)
    drawn = torch.zeros(ROWS, policy.num_drawn)
    size = HORIZON * 32
    drawn[:, :size], drawn[:, -1] = x, 1.0
    drawn[:, size : 2 * size] = 2.0
    features = policy.features(tensors(observations()))
    log_prob, entropy, _ = policy.evaluate_actions(features, drawn)
    mean = x + 0.5 * (3.0 + 0.5 * a**2 * (0.5 * 3.0 - x) / 0.5)
    std = a * math.sqrt(0.5)
    each = -0.5 * ((2.0 - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(log_prob.detach().numpy(), NUM_ACTIONS * each, rtol=1e-5)
    one = 0.5 + 0.5 * math.log(2 * math.pi) + math.log(std)
    np.testing.assert_allclose(entropy.detach().numpy(), NUM_ACTIONS * one, rtol=1e-5)
    assert times == [[0.5] * ROWS]  # the network counts time from actions to noise
    padded = drawn.view(ROWS, -1)[:, size : 2 * size].view(ROWS, HORIZON, 32)[..., NUM_ACTIONS:]
    padded += 1.0  # axes that the robot does not have
    assert torch.equal(policy.evaluate_actions(features, drawn)[0], log_prob)


def test_noisy_chunks_have_the_distribution_of_the_flow(make, monkeypatch):
    """For actions from N(0.5, 0.2^2), the velocity is linear and the end of each path has their mean and deviation."""
    rows, m, s = 1500, 0.5, 0.2
    policy = make(path_noise={"type": "sde", "level": 0.5, "one_step": False}, num_flow_steps=50)

    def velocity(x, time, prefix):
        t = (1.0 - time).view(-1, 1, 1)  # time is 1 at the noise
        variance = (1.0 - t) ** 2 + t**2 * s**2
        return -(m + (t * s**2 - (1.0 - t)) / variance * (x - t * m))

    monkeypatch.setattr(policy.network, "velocity", velocity)
    monkeypatch.setattr(policy.network, "embed_times", lambda t: t)
    read = (None, torch.zeros(rows, policy.num_features))
    monkeypatch.setattr(policy, "_read", lambda inputs: read)
    chunk, extras = policy._draw(None, np.zeros(0), ActContext(seed=7))
    assert chunk.mean().item() == pytest.approx(m, abs=0.01)
    assert chunk.std().item() == pytest.approx(s, rel=0.05)
    assert extras["log_prob"].shape == (rows, HORIZON)


def test_published_weights_have_the_heads(make):
    policy, other = (
        make(train="lora", path_noise={"type": "learned"}),
        make(train="lora", path_noise={"type": "learned"}),
    )
    with torch.no_grad():
        for name in ("lora", "critic", "path_noise"):
            for parameter in policy.components[name].parameters():
                parameter.add_(0.1)
    weights = policy.weights()
    other.load(WeightSnapshot(version=7, components=weights, hashes={}))
    ours, theirs = (one.act(observations(), ActContext(seed=1)) for one in (policy, other))
    assert theirs.policy_version == 7
    for name in ("drawn", "log_prob", "value"):
        np.testing.assert_allclose(ours.extras[name], theirs.extras[name], rtol=1e-4, atol=1e-4)
    lacking = {name: arrays for name, arrays in weights.items() if name != "critic"}
    with pytest.raises(StoreError, match="component 'critic' is missing"):
        other.load(WeightSnapshot(version=8, components=lacking, hashes={}))


def test_chunks_of_cached_features_equal_those_of_images(make):
    policy = make(train="expert", cache_vision=True)
    seen = observations()
    cached = {**seen, "front": policy.encode("front", seen["front"])}
    ours, theirs = (policy.act(one, ActContext(seed=1)) for one in (seen, cached))
    np.testing.assert_allclose(ours.actions, theirs.actions, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.extras["value"], theirs.extras["value"], rtol=1e-4, atol=1e-6)
    with pytest.raises(UsageError, match="observation 'front' should be float32"):
        policy.act({**seen, "front": cached["front"][:, 1:]}, ActContext(seed=1))


def make_pi05(folder):
    write_new_model(folder, Pi05Policy.family, horizon=HORIZON)
    config = ValuedPi05Config(
        checkpoint=str(folder), images={"base_0_rgb": "front"}, state=("goal",), fit_stats=True, device="cpu"
    )
    policy = ValuedPi05Policy(config, robot=FakeArm(FakeArmConfig(image_size=(64, 64))).spec)
    rng = np.random.default_rng(0)
    columns = {"goal": rng.normal(size=(50, 3)), "action": rng.normal(size=(50, 7)) * 0.01}
    policy.fit_normalizer({name: values.astype(np.float32) for name, values in columns.items()})
    return policy, {
        "goal": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "front": rng.integers(0, 256, (ROWS, 64, 64, 3), dtype=np.uint8),
        "prompt": np.stack([encode_prompt("push the cube")] * ROWS),
    }


def make_smolvla(folder):
    robot = RobotSpec(
        name="arm",
        embodiment="arm",
        observation={
            "joints": ArraySpec(shape=(9,)),
            "front": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
            "hand": ArraySpec(shape=(48, 64, 3), dtype="uint8"),
        },
        action=ArraySpec(shape=(6,), low=(-9.0,) * 6, high=(9.0,) * 6),
        action_kind="joint_target",
        control_hz=10.0,
    )
    images = {"top": "front", "observation.images.wrist": "hand"}
    config = ValuedSmolVLAConfig(checkpoint=str(write_smolvla(folder)), images=images, device="cpu")
    rng = np.random.default_rng(0)
    return ValuedSmolVLAPolicy(config, robot=robot), {
        "joints": rng.normal(size=(ROWS, 9)).astype(np.float32),
        **{key: rng.integers(0, 256, (ROWS, 48, 64, 3), dtype=np.uint8) for key in ("front", "hand")},
        "prompt": np.stack([encode_prompt("push the cube")] * ROWS),
    }


@pytest.mark.parametrize("make_other", [make_pi05, make_smolvla])
def test_other_families_have_densities_and_values(make_other, tmp_path):
    policy, seen = make_other(tmp_path / "folder")
    policy.components  # noqa: B018 - as a learner
    chunk = policy.act(seen, ActContext(seed=1))
    features, drawn = policy.features(tensors(seen)), torch.from_numpy(chunk.extras["drawn"])
    log_prob, _, value = policy.evaluate_actions(features, drawn)
    np.testing.assert_allclose(log_prob.detach().numpy(), chunk.extras["log_prob"], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(value.detach().numpy(), chunk.extras["value"], rtol=1e-4, atol=1e-5)
    log_prob.sum().backward()
    grads = [p.grad for p in policy.components["expert"].parameters() if p.grad is not None]
    assert max(grad.abs().max() for grad in grads) > 0


def test_ppo_refuses_what_would_replace_the_statistics_and_a_vla_without_values(make):
    with pytest.raises(UsageError, match=r"algorithm\.normalize=true would replace"):
        PPO(PPOConfig(), policy=make())
    with pytest.raises(UsageError, match="'valued_pi0', 'valued_pi05' or 'valued_smolvla'"):
        PPO(PPOConfig(normalize=False), policy=make(kind=Pi0Policy, config=Pi0Config))


def test_steering_is_refused():
    with pytest.raises(ValueError, match="steering is for algorithm dsrl"):
        ValuedPi0Config(checkpoint="pi0", images={"base_0_rgb": "front"}, steering={})
