"""Common behavior of network policies: inputs, action limits, randomness, weights."""

import dataclasses

import numpy as np
import pytest
import torch

from dovetail.config.plugins import resolve
from dovetail.core.bfloat16 import to_bfloat16
from dovetail.core.errors import SpecMismatch, StoreError
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.learn.checkpoint import load_checkpoint, save_checkpoint
from dovetail.learn.state import load_policy, policy_state
from dovetail.policies.trainable import TrainablePolicy
from dovetail.testing import check_policy
from dovetail.testing.policies import random_inputs
from dovetail.weights.store import DiskWeightStore
from support.toy_arm import DETERMINISTIC, ROBOT, observations, snapshot_of

SMALL = {"flow": {"horizon": 6, "hidden": 16, "num_layers": 2}, "gaussian_mlp": {"hidden": (16,)}}
IMAGES = ("joint_pos", "force", "front")


@pytest.fixture(params=SMALL)
def name(request):
    return request.param


@pytest.fixture
def make(name):
    return lambda robot=ROBOT, seed=3, **config: make_policy(name, robot=robot, seed=seed, **config)


def make_policy(name, *, robot=ROBOT, seed=3, **config):
    policy = resolve("policy", name)
    return policy(policy.Config(**(SMALL[name] | config)), robot=robot, seed=seed)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("gaussian_mlp", {}),
        ("gaussian_mlp", {"history": {"force": 3}}),
        ("gaussian_mlp", {"horizon": 3}),
        ("gaussian_mlp", {"inputs": ("force", "front"), "history": {"front": 2, "force": 2}}),
        ("gaussian_mlp", {"inputs": ("front",), "encoder": {"type": "resnet", "width": 8, "features": 8}}),
        ("flow", {}),
        ("flow", {"horizon": 1}),
        ("flow", {"inputs": ("front",)}),
        ("flow", {"inputs": ("force", "front"), "history": {"force": 4, "front": 2}}),
    ],
)
def test_network_policy_keeps_the_contract(name, config):
    donor = make_policy(name, seed=4, **config)
    check_policy(lambda: make_policy(name, **config), snapshot=snapshot_of(donor))
    assert isinstance(donor, TrainablePolicy)


# ---- types of weights


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_keep_their_type_through_store_and_checkpoint(make, dtype, tmp_path):
    donor, other = make(seed=4), make()
    for policy in (donor, other):
        for module in policy.components.values():
            module.to(dtype)
    store = DiskWeightStore(tmp_path / "weights")
    store.publish(donor.weights())
    save_checkpoint(tmp_path / "last", policy_state(donor), facts={})
    for load in (
        lambda: other.load(store.latest()),
        lambda: load_policy(other, load_checkpoint(tmp_path / "last")[0]),
    ):
        for module in other.components.values():
            for parameter in module.parameters():
                torch.nn.init.zeros_(parameter)
        load()
        for name, module in donor.components.items():
            for key, value in module.state_dict().items():
                found = other.components[name].state_dict()[key]
                assert found.dtype == dtype and torch.equal(found, value)


def test_bfloat16_weights_with_nan_are_refused(make):
    donor = make(seed=4)
    snapshot = snapshot_of(donor)
    component = next(name for name in snapshot.components if name != "normalizer")
    broken = {key: to_bfloat16(array * np.nan) for key, array in snapshot.components[component].items()}
    with pytest.raises(StoreError, match="holds non-finite numbers"):
        make().load(dataclasses.replace(snapshot, components={**snapshot.components, component: broken}))


# ---- inputs


def test_default_inputs_are_all_low_dimensional_observations(make):
    assert set(make().spec.observation) == {"joint_pos", "force"}
    assert set(make(inputs=("force",)).spec.observation) == {"force"}


@pytest.mark.parametrize(
    ("name", "key"),
    [("flow", "fource"), ("flow", "deepth"), ("gaussian_mlp", "fource"), ("gaussian_mlp", "deepth")],
)
def test_input_that_the_robot_lacks_is_refused(make, name, key):
    with pytest.raises(SpecMismatch, match=f"'{name}' needs input '{key}'.*robot 'arm'"):
        make(inputs=(key,))


def test_history_of_a_key_that_is_no_input_is_refused(make):
    with pytest.raises(SpecMismatch, match="has history of 'force', which is not among its inputs"):
        make(inputs=("joint_pos",), history={"force": 3})


def test_robot_without_low_dimensional_observations_is_refused(make, name):
    blind = dataclasses.replace(ROBOT, observation={"front": ROBOT.observation["front"]})
    with pytest.raises(SpecMismatch, match=f"'{name}' has no input.*robot 'arm'.*policy.inputs"):
        make(blind)


@pytest.mark.parametrize("limits", [{"low": (), "high": ()}, {"high": (3.0, np.inf)}])
def test_unbounded_action_is_refused(make, limits):
    unbounded = dataclasses.replace(ROBOT, action=dataclasses.replace(ROBOT.action, **limits))
    with pytest.raises(SpecMismatch, match="needs a bounded action"):
        make(unbounded)


def test_masked_history_does_not_change_the_action(make):
    policy = make(inputs=("force",), history={"force": 3})
    seen = np.ones((1, 3, 2), np.float32)
    mask = np.array([[False, True, True]])
    acts = []
    for padding in (0.0, 99.0, np.nan):
        seen[:, 0] = padding
        acts.append(policy.act({"force": seen, "force/mask": mask}, DETERMINISTIC).actions)
    assert np.array_equal(acts[0], acts[1]) and np.array_equal(acts[0], acts[2])
    seen[:, 0] = 99.0
    shown = policy.act({"force": seen, "force/mask": ~np.zeros((1, 3), bool)}, DETERMINISTIC).actions
    assert not np.array_equal(acts[0], shown)


def test_warmup_calls_act_with_inputs_of_the_spec(make, name, monkeypatch):
    policy, calls = make(inputs=("force",), history={"force": 3}), []
    act = policy.act
    monkeypatch.setattr(policy, "act", lambda seen, context: calls.append((seen, context)) or act(seen, context))
    policy.warmup()
    expected = random_inputs(policy.spec, np.random.default_rng(0), batch=1)
    for seen, _ in calls:
        assert {k: (v.shape, v.dtype) for k, v in seen.items()} == {
            k: (v.shape, v.dtype) for k, v in expected.items()
        }
    guided = [context.prefix is not None for _, context in calls]
    assert guided == ([False, True] if name == "flow" else [False])


# ---- limits and randomness


def test_actions_are_within_the_robots_limits(make):
    policy = make()
    chunk = policy.act(observations(1000), ActContext(seed=1))
    assert chunk.actions.shape == (1000, policy.spec.horizon, 2)
    assert chunk.actions.dtype == np.float32
    low, high = ROBOT.action.bounds
    assert (chunk.actions >= low).all() and (chunk.actions <= high).all()


def test_deterministic_and_seeded_actions_are_repeatable(make):
    policy, seen = make(), observations()
    deterministic = [policy.act(seen, ActContext(deterministic=True, seed=s)).actions for s in (None, 1, 2)]
    noisy = [policy.act(seen, ActContext(seed=s)).actions for s in (5, 5, 6)]
    assert np.array_equal(deterministic[0], deterministic[1]) and np.array_equal(
        deterministic[0], deterministic[2]
    )
    assert np.array_equal(noisy[0], noisy[1])
    assert not np.array_equal(noisy[0], noisy[2])
    assert np.array_equal(deterministic[0], make().act(seen, DETERMINISTIC).actions)  # also for another instance


def test_each_row_has_its_own_noise(make):
    same = {key: np.repeat(value[:1], 8, axis=0) for key, value in observations().items()}
    rows = make().act(same, ActContext(seed=0)).actions.reshape(8, -1)
    assert len(np.unique(rows, axis=0)) == 8


# ---- weights


def with_images(name):
    """Settings with all components of the policy, and observations for them."""
    image = np.random.default_rng(0).integers(0, 256, (4, 20, 16, 3), np.uint8)
    return ({"inputs": IMAGES}, {**observations(), "front": image}) if name == "flow" else ({}, observations())


def test_weights_include_the_normalizer(make, name):
    config, seen = with_images(name)
    first, second = make(**config), make(seed=4, **config)
    first.fit_normalizer({k: 5.0 + 3.0 * v for k, v in observations(100).items()})
    assert not np.array_equal(first.act(seen, DETERMINISTIC).actions, second.act(seen, DETERMINISTIC).actions)
    second.load(snapshot_of(first, version=7))
    a, b = (p.act(seen, DETERMINISTIC) for p in (first, second))
    assert np.array_equal(a.actions, b.actions)
    assert b.policy_version == 7


def test_invalid_weights_are_refused_and_change_nothing(make, name):
    config, seen = with_images(name)
    policy, donor = make(**config), make(seed=8, **config)
    donor.fit_normalizer({k: 5.0 + 3.0 * v for k, v in observations(100).items()})
    before = policy.act(seen, DETERMINISTIC)

    def refused(match, damage):
        weights = {name: {k: v.copy() for k, v in arrays.items()} for name, arrays in donor.weights().items()}
        damage(weights)
        with pytest.raises(StoreError, match=f"version 2 {match}"):
            policy.load(WeightSnapshot(version=2, components=weights, hashes={}))
        after = policy.act(seen, DETERMINISTIC)
        assert np.array_equal(before.actions, after.actions)
        assert after.policy_version == 0

    for component in donor.components:
        some = next(iter(donor.weights()[component]))
        refused("do not fit .* non-finite", lambda weights, c=component, s=some: weights[c][s].fill(np.nan))
        refused(
            f"do not fit.*{component}/{some} is .1,.,",
            lambda w, c=component, s=some: w[c].update({s: np.zeros(1)}),
        )
        refused(f"do not fit.*'{component}' lacks {some}", lambda weights, c=component, s=some: weights[c].pop(s))
        refused(
            f"do not fit policy '{name}'.*'{component}' is missing", lambda weights, c=component: weights.pop(c)
        )
    refused("do not fit .* non-finite", lambda weights: weights["normalizer"]["mean/force"].fill(np.inf))
    refused("do not fit.*'normalizer' is missing", lambda weights: weights.pop("normalizer"))
