"""What every policy on networks does: what it looks at, its limits, chance, weights in and out."""

import dataclasses

import numpy as np
import pytest

from dovetail.config.plugins import resolve
from dovetail.core.errors import SpecMismatch, StoreError
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.trainable import TrainablePolicy
from dovetail.testing import check_policy
from dovetail.testing.policies import random_inputs
from support.toy_arm import ROBOT, STILL, batch

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
def test_it_keeps_the_contract(name, config):
    donor = make_policy(name, seed=4, **config)
    snapshot = WeightSnapshot(version=9, components=donor.weights(), hashes={})
    check_policy(lambda: make_policy(name, **config), snapshot=snapshot)
    assert isinstance(donor, TrainablePolicy)


# ---- what it looks at


def test_looks_at_everything_low_dimensional_unless_told_otherwise(make):
    assert set(make().spec.observation) == {"joint_pos", "force"}
    assert set(make(inputs=("force",)).spec.observation) == {"force"}


@pytest.mark.parametrize(
    ("name", "key"), [("flow", "fource"), ("flow", "depth"), ("gaussian_mlp", "fource"), ("gaussian_mlp", "depth")]
)
def test_an_input_the_robot_does_not_give(make, name, key):
    with pytest.raises(SpecMismatch, match=f"'{name}' wants input '{key}'.*robot 'arm'"):
        make(inputs=(key,))


def test_history_of_what_it_does_not_see(make):
    with pytest.raises(SpecMismatch, match="wants history of 'force', which it does not see"):
        make(inputs=("joint_pos",), history={"force": 3})


def test_nothing_to_look_at(make, name):
    blind = dataclasses.replace(ROBOT, observation={"front": ROBOT.observation["front"]})
    with pytest.raises(SpecMismatch, match=f"'{name}' has nothing to look at.*robot 'arm'") as refused:
        make(blind)
    assert ("policy.inputs" in str(refused.value)) == (
        name in ("flow", "gaussian_mlp")
    )  # the others see no images


@pytest.mark.parametrize("limits", [{"low": (), "high": ()}, {"high": (3.0, np.inf)}])
def test_an_unbounded_action_is_refused(make, limits):
    unbounded = dataclasses.replace(ROBOT, action=dataclasses.replace(ROBOT.action, **limits))
    with pytest.raises(SpecMismatch, match="needs a bounded action"):
        make(unbounded)


def test_padding_in_history_changes_nothing(make):
    policy = make(inputs=("force",), history={"force": 3})
    seen = np.ones((1, 3, 2), np.float32)
    mask = np.array([[False, True, True]])
    acts = []
    for junk in (0.0, 99.0, np.nan):
        seen[:, 0] = junk
        acts.append(policy.act({"force": seen, "force/mask": mask}, STILL).actions)
    assert np.array_equal(acts[0], acts[1]) and np.array_equal(acts[0], acts[2])
    seen[:, 0] = 99.0
    shown = policy.act({"force": seen, "force/mask": ~np.zeros((1, 3), bool)}, STILL).actions
    assert not np.array_equal(acts[0], shown)


def test_warming_up_is_acting_as_it_will_be_asked_to(make, name, monkeypatch):
    policy, asked = make(inputs=("force",), history={"force": 3}), []
    act = policy.act
    monkeypatch.setattr(policy, "act", lambda seen, context: asked.append((seen, context)) or act(seen, context))
    policy.warmup()
    wanted = random_inputs(policy.spec, np.random.default_rng(0), batch=1)
    for seen, _ in asked:
        assert {k: (v.shape, v.dtype) for k, v in seen.items()} == {
            k: (v.shape, v.dtype) for k, v in wanted.items()
        }
    guided = [context.prefix is not None for _, context in asked]
    assert guided == ([False, True] if name == "flow" else [False])


# ---- limits and chance


def test_actions_stay_within_the_robots_limits(make):
    policy = make()
    chunk = policy.act(batch(1000), ActContext(seed=1))
    assert chunk.actions.shape == (1000, policy.spec.horizon, 2)
    assert chunk.actions.dtype == np.float32
    low, high = ROBOT.action.bounds
    assert (chunk.actions >= low).all() and (chunk.actions <= high).all()


def test_deterministic_and_seeded_acting(make):
    policy, seen = make(), batch()
    calm = [policy.act(seen, ActContext(deterministic=True, seed=s)).actions for s in (None, 1, 2)]
    noisy = [policy.act(seen, ActContext(seed=s)).actions for s in (5, 5, 6)]
    assert np.array_equal(calm[0], calm[1]) and np.array_equal(calm[0], calm[2])
    assert np.array_equal(noisy[0], noisy[1])
    assert not np.array_equal(noisy[0], noisy[2])
    assert np.array_equal(calm[0], make().act(seen, STILL).actions)  # in another process, too


def test_noise_differs_from_row_to_row(make):
    """Trap: one noise drawn for the whole batch."""
    same = {key: np.repeat(value[:1], 8, axis=0) for key, value in batch().items()}
    rows = make().act(same, ActContext(seed=0)).actions.reshape(8, -1)
    assert len(np.unique(rows, axis=0)) == 8


# ---- weights


def with_images(name):
    """Settings that give the policy all its parts, and something to see."""
    image = np.random.default_rng(0).integers(0, 256, (4, 20, 16, 3), np.uint8)
    return ({"inputs": IMAGES}, {**batch(), "front": image}) if name == "flow" else ({}, batch())


def test_weights_travel_with_their_statistics(make, name):
    config, seen = with_images(name)
    one, other = make(**config), make(seed=4, **config)
    one.fit_normalizer({k: 5.0 + 3.0 * v for k, v in batch(100).items()})
    assert not np.array_equal(one.act(seen, STILL).actions, other.act(seen, STILL).actions)
    other.load(WeightSnapshot(version=7, components=one.weights(), hashes={}))
    a, b = (p.act(seen, STILL) for p in (one, other))
    assert np.array_equal(a.actions, b.actions)
    assert b.policy_version == 7


def test_broken_weights_are_refused_and_the_old_ones_stay(make, name):
    config, seen = with_images(name)
    policy, donor = make(**config), make(seed=8, **config)
    donor.fit_normalizer({k: 5.0 + 3.0 * v for k, v in batch(100).items()})
    before = policy.act(seen, STILL)

    def refused(match, spoil):
        weights = {part: {k: v.copy() for k, v in arrays.items()} for part, arrays in donor.weights().items()}
        spoil(weights)
        with pytest.raises(StoreError, match=f"version 2 {match}"):
            policy.load(WeightSnapshot(version=2, components=weights, hashes={}))
        after = policy.act(seen, STILL)
        assert np.array_equal(before.actions, after.actions)
        assert after.policy_version == 0

    for part in donor.components:
        some = next(iter(donor.weights()[part]))
        refused("do not fit .* non-finite", lambda weights, p=part, s=some: weights[p][s].fill(np.nan))
        refused(f"do not fit.*{part}/{some} is .1,.,", lambda w, p=part, s=some: w[p].update({s: np.zeros(1)}))
        refused(f"do not fit.*'{part}', {some} is only", lambda weights, p=part, s=some: weights[p].pop(s))
        refused(f"do not fit policy '{name}'.*no '{part}'", lambda weights, p=part: weights.pop(p))
    refused("do not fit .* non-finite", lambda weights: weights["normalizer"]["mean/force"].fill(np.inf))
    refused("do not fit.*no 'normalizer'", lambda weights: weights.pop("normalizer"))
