"""Soft actor-critics on images: training of the encoder, random shifts and gradient clipping."""

import numpy as np
import pytest
import torch

from dovetail.core.errors import UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import WeightSnapshot
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.algorithms.sac import SAC, SACConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.policies.images.backbones import MobileNetV2, save_backbone
from dovetail.policies.images.encoders import random_shift
from dovetail.testing.algorithms import check_algorithm

ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={"joint_pos": ArraySpec(shape=(3,)), "front": ArraySpec(shape=(16, 16, 3), dtype="uint8")},
    action=ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)


def make_policy(**config):
    settings = {"inputs": ("joint_pos", "front"), "hidden": (16,), "encoder": {"features": 8}, "state_features": 4}
    return GaussianMLP(GaussianMLPConfig(**(settings | config)), robot=ROBOT, seed=0)


def make(policy, kind=SAC, **config):
    model = SACConfig if kind is SAC else RLPDConfig
    return kind(model(**{"batch_size": 8, "hidden": (16,), **config}), policy=policy, seed=0)


@pytest.fixture
def image_batch(batch):
    rng = np.random.default_rng(1)
    images = {f"{side}/front": rng.integers(0, 256, (8, 16, 16, 3), np.uint8) for side in ("observation", "next")}
    return batch | {name: torch.from_numpy(values) for name, values in images.items()}


def copies(module):
    return [p.detach().clone() for p in module.parameters()]


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", [SAC, RLPD])
@pytest.mark.parametrize("config", [{}, {"history": {"front": 2}}, {"inputs": ("front",)}])
def test_passes_check_algorithm(kind, config):
    check_algorithm(lambda: make(make_policy(**config), kind, actor_every=2), robot=ROBOT)


def test_only_the_critic_trains_the_encoder(image_batch):
    """Regression: the critic never trained the encoder."""
    policy = make_policy()
    algorithm = make(policy, actor_after=10**9)
    before = copies(policy.encoder)
    algorithm.update(image_batch)
    assert not any(torch.equal(a, b) for a, b in zip(before, policy.encoder.parameters(), strict=True))
    # the actor's step changes the actor only, also with cloning
    algorithm = make(policy, RLPD, bc_weight=1.0)
    encoder, actor = copies(policy.encoder), copies(policy.components["actor"])
    features = policy.features(
        {"joint_pos": image_batch["observation/joint_pos"], "front": image_batch["observation/front"]}
    )
    algorithm._update_actor(image_batch, features.detach(), image_batch["action"], use_q=True)
    assert equal(encoder, policy.encoder.parameters())
    assert not equal(actor, policy.components["actor"].parameters())


def test_actor_gets_detached_features(image_batch):
    algorithm = make(make_policy())
    given = []
    algorithm._update_actor = lambda features: given.append(features) or {}
    algorithm.update(image_batch)
    assert not given[0].requires_grad


def test_targets_use_the_slow_encoder(image_batch):
    policy = make_policy()
    algorithm = make(policy, tau=0.25, random_shift=0, actor_after=10**9)
    start = copies(policy.encoder)
    algorithm.update(image_batch)
    for slow, old, new in zip(
        algorithm._target_encoder.parameters(), start, policy.encoder.parameters(), strict=True
    ):
        torch.testing.assert_close(slow, 0.75 * old + 0.25 * new.detach())
    # the next target uses it: computed here with the same noise
    generator = torch.Generator()
    generator.set_state(algorithm._generator.get_state())
    following = {"joint_pos": image_batch["next/joint_pos"], "front": image_batch["next/front"]}
    now = {"joint_pos": image_batch["observation/joint_pos"], "front": image_batch["observation/front"]}
    with torch.no_grad():
        slow = policy.features(following, encoder=algorithm._target_encoder)
        assert not torch.equal(slow, policy.features(following))
        actions, _ = policy.sample(slow, generator=generator)
        targets = image_batch["reward"] + image_batch["discount"] * algorithm._target(
            torch.cat((slow, actions), 1)
        ).amin(0)
        q = algorithm._critic(torch.cat((policy.features(now), image_batch["action"]), 1))
    assert algorithm.update(image_batch)["critic_loss"] == pytest.approx(
        float((q - targets).square().mean()), rel=1e-4
    )


def test_encoder_and_critic_are_clipped_separately(image_batch):
    """Regression: with clipping over the whole model, a large gradient of one component shrinks all others."""
    policy = make_policy()
    algorithm = make(policy, max_grad_norm=0.01, actor_after=10**9)
    algorithm.update(image_batch)
    for parameters in (algorithm._critic.parameters(), policy.encoder.parameters()):
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        assert norm == pytest.approx(0.01, rel=1e-3)


def test_actor_and_encoder_are_averaged(image_batch):
    policy = make_policy()
    algorithm = make(policy, actor_average=0.75)
    name = "camera_front.convolutions.0.weight"
    start = policy.weights()["encoder"][name]
    algorithm.update(image_batch)
    expected = 0.75 * start + 0.25 * policy.weights()["encoder"][name]
    np.testing.assert_allclose(algorithm.policy_weights()["encoder"][name], expected, rtol=1e-5, atol=1e-7)
    make_policy().load(WeightSnapshot(version=1, components=algorithm.policy_weights(), hashes={}))


def test_resumed_updates_are_identical(image_batch):
    first = make(make_policy(), actor_every=2)
    for _ in range(3):
        first.update(image_batch)
    state = first.state_dict()
    expected = [dict(first.update(image_batch)) for _ in range(3)]
    second = make(make_policy(), actor_every=2)
    second.load_state_dict(state)
    assert [dict(second.update(image_batch)) for _ in range(3)] == expected


# ---- random shifts


def test_random_shift_moves_each_row_separately():
    ramp = torch.arange(36, dtype=torch.uint8).view(1, 6, 6, 1).expand(64, -1, -1, -1)
    moved = random_shift(ramp, pad=2, generator=torch.Generator().manual_seed(0))
    met = set()
    for image in moved[..., 0].tolist():
        dy, dx = next(  # of the middle, which is never beyond the border
            (dy, dx) for dy in range(-2, 3) for dx in range(-2, 3) if image[2][2] == 6 * (2 + dy) + 2 + dx
        )
        met.add((dy, dx))
        rows, columns = ([min(max(i + d, 0), 5) for i in range(6)] for d in (dy, dx))
        assert image == [[6 * y + x for x in columns] for y in rows]
    assert len(met) > 15  # of 25


def test_random_shift_moves_frames_of_a_history_together():
    frames = torch.randint(0, 256, (8, 1, 10, 10, 3), dtype=torch.uint8).expand(-1, 3, -1, -1, -1)
    moved = random_shift(frames, pad=3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(moved[:, 0], moved[:, 2])
    assert not torch.equal(moved, frames)


@pytest.mark.parametrize(("config", "pixels"), [({}, 4), ({"random_shift": 2}, 2), ({"random_shift": 0}, 0)])
def test_encoder_sees_the_configured_shift(image_batch, monkeypatch, config, pixels):
    """Regression: `enable_drq` was set but never read. Observation and next observation shift separately."""
    policy = make_policy()
    looked, features = [], policy.features
    monkeypatch.setattr(
        policy, "features", lambda given, **more: looked.append(given["front"]) or features(given, **more)
    )
    asked = []
    monkeypatch.setattr(
        "dovetail.learn.algorithms._soft_actor_critic.random_shift",
        lambda images, *, pad, generator: asked.append(pad) or random_shift(images, pad=pad, generator=generator),
    )
    image_batch["next/front"] = image_batch["observation/front"].clone()
    make(policy, **config).update(image_batch)
    assert asked == [pixels] * (2 if pixels else 0)
    assert torch.equal(looked[0], image_batch["observation/front"]) is (pixels == 0)
    assert torch.equal(looked[0], looked[1]) is (pixels == 0)


def test_random_shift_without_images_raises_usage_error(policy, tmp_path):
    with pytest.raises(UsageError, match="'gaussian_mlp' has no images"):
        make(policy, random_shift=4)
    file = tmp_path / "net.safetensors"
    save_backbone(MobileNetV2(), file, arch="mobilenet_v2")
    frozen = make_policy(encoder={"type": "frozen", "file": str(file), "features": 8})
    with pytest.raises(UsageError, match="stores features of a frozen encoder"):
        make(frozen, random_shift=4)
    assert make(frozen)._shift == 0
