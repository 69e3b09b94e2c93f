"""The flow policy: Euler steps, inputs, guidance. For training see test_flow_learning, for common behavior
test_network_policies."""

import dataclasses

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.errors import UsageError
from dovetail.core.types import ActContext
from dovetail.policies.flows.flow import Flow, FlowConfig
from support.toy_arm import DETERMINISTIC, ROBOT, features_of, observations

SMALL = {"horizon": 6, "hidden": 16, "num_layers": 2}


def make(robot=ROBOT, seed=3, **config):
    return Flow(FlowConfig(**(SMALL | config)), robot=robot, seed=seed)


def denormalized(actions):
    """Actions in the robot's units from actions in [-1, 1]."""
    low, high = ROBOT.action.bounds
    return (low + (actions + 1) / 2 * (high - low)).astype(np.float32)


def committed(num=4, length=6, seed=7):
    return denormalized(np.random.default_rng(seed).uniform(-1, 1, (num, length, 2)))


def test_config_type_flow_has_these_defaults():
    assert resolve("policy", "flow") is Flow
    policy = make()
    assert policy.spec.guidable
    assert policy.spec.horizon == 6
    assert FlowConfig().horizon == 16
    assert FlowConfig().num_flow_steps == 5
    assert FlowConfig().guidance.model_dump() == {"schedule": "exp", "beta": 5.0, "jacobian": "vjp"}


def test_deterministic_noise_is_fixed_or_from_the_seed():
    seen = observations()
    for kind in ("fixed", "seeded"):
        policy = make(deterministic_noise=kind)
        unseeded, first, again, two = (
            policy.act(seen, ActContext(deterministic=True, seed=seed)).actions for seed in (None, 1, 1, 2)
        )
        assert np.array_equal(unseeded, policy.act(seen, DETERMINISTIC).actions)
        assert np.array_equal(first, again)
        assert np.array_equal(first, two) == np.array_equal(first, unseeded) == (kind == "fixed")


def test_sampling_with_density_is_refused():
    policy = make()
    features = features_of(policy)
    with pytest.raises(UsageError, match=r"cannot compute the density of its actions.*'imitation'"):
        policy.sample(features, generator=None)


@pytest.mark.parametrize("num_flow_steps", [1, 2, 5])
def test_number_of_euler_steps_is_the_configured_one(num_flow_steps):
    policy = make(num_flow_steps=num_flow_steps)
    times, forward = [], policy.components["actor"].forward
    policy.components["actor"].forward = lambda x, features, t: (
        times.append(t[0].item()) or forward(x, features, t)
    )
    plain = policy.act(observations(), DETERMINISTIC).actions
    assert times == pytest.approx([k / num_flow_steps for k in range(num_flow_steps)])
    features = features_of(policy)
    x = policy._noise(features, DETERMINISTIC)
    for t in times[:num_flow_steps]:
        x = x + (forward(x, features, torch.full((4,), t)) - x) / (1 - t) / num_flow_steps
    np.testing.assert_allclose(plain, denormalized(x.detach().clamp(-1, 1).numpy()), rtol=1e-5, atol=1e-6)


# ---- images


def test_images_stay_uint8_until_the_encoder():
    policy = make(inputs=("force", "front"))
    assert policy.num_features == 2 + 64
    image = np.random.default_rng(0).integers(0, 256, (2, 20, 16, 3), np.uint8)
    force = np.zeros((2, 2), np.float32)
    seen = torch.from_numpy(image)
    features = policy.features({"force": torch.from_numpy(force), "front": seen})
    assert seen.dtype == torch.uint8
    assert features.requires_grad  # the encoder is trained too
    as_floats = policy._encoder["camera_front"].convolutions(seen.permute(0, 3, 1, 2) / 255.0 - 0.5)
    assert as_floats.abs().max() < 10
    first, second = (policy.act({"force": force, "front": i}, DETERMINISTIC).actions for i in (image, 255 - image))
    assert not np.array_equal(first, second)
    assert set(policy.components) == {"actor", "encoder"}


def test_masked_frames_do_not_change_the_action():
    policy = make(inputs=("front",), history={"front": 2})
    image = np.random.default_rng(0).integers(0, 256, (1, 2, 20, 16, 3), np.uint8)
    mask = np.array([[False, True]])
    before = policy.act({"front": image, "front/mask": mask}, DETERMINISTIC).actions
    image[:, 0] = 0
    assert np.array_equal(before, policy.act({"front": image, "front/mask": mask}, DETERMINISTIC).actions)
    image[:, 1] = 0
    assert not np.array_equal(before, policy.act({"front": image, "front/mask": mask}, DETERMINISTIC).actions)


# ---- guidance


def guided(policy, prefix, *, delay=2, horizon=2, seen=None):
    context = ActContext(deterministic=True, prefix=prefix, delay=delay, horizon=horizon)
    return policy.act(seen or observations(len(prefix)), context).actions


def test_prefix_moves_the_chunk_towards_it():
    policy, prefix = make(), committed()
    plain, with_prefix = policy.act(observations(), DETERMINISTIC).actions, guided(policy, prefix)
    low, high = ROBOT.action.bounds
    errors = [np.abs((actions - prefix) / (high - low))[:, :2].mean() for actions in (plain, with_prefix)]
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize("schedule", ["exp", "linear", "ones", "zeros"])
@pytest.mark.parametrize("padding", [0.0, 1e6, np.nan])
def test_padding_of_a_prefix_is_ignored(schedule, padding):
    """H = 6 and s = 2: only four actions of the prefix count."""
    policy, prefix = make(guidance={"schedule": schedule}), committed()
    padded = prefix.copy()
    padded[:, 4:] = padding
    assert np.array_equal(guided(policy, prefix), guided(policy, padded))
    assert np.array_equal(guided(policy, prefix), guided(policy, prefix[:, :4]))


def test_short_prefix_equals_one_padded_with_nan():
    policy, prefix = make(), committed()
    unknown = prefix.copy()
    unknown[:, 3:] = np.nan
    short = guided(policy, prefix[:, :3])
    assert np.isfinite(short).all()
    assert np.array_equal(short, guided(policy, unknown))
    assert not np.array_equal(short, guided(policy, prefix))


@pytest.mark.parametrize(("delay", "horizon", "length"), [(2, 6, 6), (0, 99, 6), (2, 2, 0)])
def test_prefix_without_valid_actions_changes_nothing(delay, horizon, length):
    policy = make()
    plain = policy.act(observations(), DETERMINISTIC).actions
    np.testing.assert_allclose(
        guided(policy, committed()[:, :length], delay=delay, horizon=horizon), plain, rtol=1e-5, atol=1e-6
    )


def test_guidance_does_not_depend_on_the_robots_units():
    """Guidance of denormalized actions would weight axes by their units."""
    policy, prefix = make(), committed()
    low, high = ROBOT.action.bounds
    factor, offset = np.array([1000.0, 0.01], np.float32), np.array([-40.0, 3.0], np.float32)
    limits = {"low": tuple((low * factor + offset).tolist()), "high": tuple((high * factor + offset).tolist())}
    rescaled = make(dataclasses.replace(ROBOT, action=dataclasses.replace(ROBOT.action, **limits)))
    first, second = guided(policy, prefix), guided(rescaled, prefix * factor + offset)
    np.testing.assert_allclose((second - offset) / factor, first, rtol=1e-4, atol=2e-4)


def test_vjp_and_identity_jacobian_differ():
    prefix = committed()
    true, identity = (guided(make(guidance={"jacobian": j}), prefix) for j in ("vjp", "identity"))
    assert np.abs(true - identity).max() > 1e-3


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_guidance_works_in_every_gradient_mode(mode):
    """`inference_mode` allows no vjp, so `act` has to leave it."""
    policy, prefix = make(inputs=("force", "front")), committed(2)
    seen = {"force": observations(2)["force"], "front": np.full((2, 20, 16, 3), 9, np.uint8)}
    expected = guided(policy, prefix, seen=seen)
    with mode():
        assert np.array_equal(guided(policy, prefix, seen=seen), expected)
    assert all(p.grad is None for module in policy.components.values() for p in module.parameters())


def test_guided_chunk_is_repeatable_and_leaves_the_prefix_unchanged():
    policy, prefix = make(), committed()
    prefix.setflags(write=False)
    assert np.array_equal(guided(policy, prefix), guided(policy, prefix))


def test_each_row_uses_its_own_prefix():
    policy, prefix = make(), committed()
    prefix[2, 3:] = np.nan
    together = guided(policy, prefix)
    for row in range(4):
        seen = {key: value[row : row + 1] for key, value in observations().items()}
        alone = guided(policy, prefix[row : row + 1], seen=seen)
        np.testing.assert_allclose(together[row], alone[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(6, 2), (4, 6, 3), (3, 6, 2)])
def test_prefix_of_wrong_shape_is_refused(shape):
    with pytest.raises(UsageError, match=r"prefix should be \[4, H, 2\]"):
        make().act(observations(), ActContext(prefix=np.zeros(shape, np.float32)))
