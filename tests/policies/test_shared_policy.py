"""One policy for two arms: both use the same weights, and padding changes neither losses nor gradients."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from dovetail.config.load import load
from dovetail.config.schema import PluginSection
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.specs import ArraySpec, RobotSpec, match
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.policies.embodiments.canonical_space import CanonicalSpace, EmbodimentConfig
from dovetail.policies.embodiments.shared_policy import CanonicalPolicy, SharedConfig, SharedPolicy
from dovetail.policies.trainable import TrainablePolicy
from dovetail.robots.sim import SimRobot, SimRobotConfig
from dovetail.testing import check_policy

TALL = RobotSpec(
    name="tall",
    embodiment="long_arm",
    observation={"joint_pos": ArraySpec(shape=(3,)), "force": ArraySpec(shape=(2,))},
    action=ArraySpec(shape=(3,), low=(-1.0, -1.0, 0.0), high=(1.0, 1.0, 4.0)),
    action_kind="joint_target",
    control_hz=10.0,
)
SHORT = dataclasses.replace(
    TALL,
    name="short",
    embodiment="short_arm",
    observation={"q": ArraySpec(shape=(2,))},
    action=ArraySpec(shape=(2,), low=(-2.0, 0.0), high=(2.0, 1.0)),
)
ARMS = {
    "long_arm": {"observation": {"joint_pos": 3, "force": 2}, "num_actions": 3},
    "short_arm": {
        "observation": {"joint_pos": 2},
        "rename": {"joint_pos": "q"},
        "num_actions": 2,
        "axes": [0, 2],
        "grippers": [1],
    },
}
GIANT = {"giant": {"observation": {"joint_pos": 5, "force": 6}, "num_actions": 6}}
INNER = {
    "gaussian_mlp": {"hidden": [8]},
    "flow": {"hidden": 8, "num_layers": 1, "horizon": 4, "num_flow_steps": 2},
    "flow_actor": {"hidden": 8, "num_layers": 1, "num_flow_steps": 2},
    "transformer": {"hidden": 8, "num_layers": 1, "num_flow_steps": 2, "velocity": "transformer"},
}
DETERMINISTIC = ActContext(deterministic=True)
OWN = {"long_arm": TALL, "short_arm": SHORT}


def config_of(kind, arms=ARMS, **settings):
    inner = {"type": "flow_actor" if kind == "transformer" else kind, **INNER[kind], **settings}
    config = PluginSection.parse("policy", {"type": "shared", "policy": inner, "embodiments": arms}).config
    assert isinstance(config, SharedConfig)
    return config


def make(kind="gaussian_mlp", robot=SHORT, arms=ARMS, seed=0, **settings):
    return SharedPolicy(config_of(kind, arms, **settings), robot=robot, seed=seed)


def seen_by(robot, num=4, seed=0):
    rng = np.random.default_rng(seed)
    return {key: rng.normal(size=(num, *spec.shape)).astype(np.float32) for key, spec in robot.observation.items()}


def tensors(arrays):
    return {key: torch.tensor(value) for key, value in arrays.items()}


def snapshot(policy, version=1):
    return WeightSnapshot(version=version, components=policy.weights(), hashes={})


# ---- each arm


@pytest.mark.parametrize("kind", INNER)
@pytest.mark.parametrize("robot", [TALL, SHORT], ids=lambda robot: robot.name)
def test_shared_policy_of_each_arm_keeps_the_contract(kind, robot):
    check_policy(lambda: make(kind, robot), snapshot=snapshot(make(kind, TALL, seed=3), version=7))
    policy = make(kind, robot)
    assert isinstance(policy, TrainablePolicy)
    match(robot, policy=policy.spec)


@pytest.mark.parametrize("kind", ["gaussian_mlp", "flow"])
def test_history_uses_the_arms_own_keys(kind):
    policy = make(kind, history={"joint_pos": 3, "force": 2})
    assert policy.spec.history == {"q": 3}
    check_policy(lambda: make(kind, history={"joint_pos": 3, "force": 2}))


@pytest.mark.parametrize("robot", [TALL, SHORT], ids=lambda robot: robot.name)
@pytest.mark.parametrize("kind", ["gaussian_mlp", "flow"])
def test_embodiment_is_readable_from_features_with_images(kind, robot):
    """With images, gaussian_mlp embeds the state; the embodiment must not be part of that embedding."""
    seeing = {**robot.observation, "wrist": ArraySpec(shape=(32, 32, 3), dtype="uint8")}
    policy = make(kind, dataclasses.replace(robot, observation=seeing), inputs=["joint_pos", "force", "wrist"])
    seen = {
        key: np.zeros((4, *spec.shape), np.uint8 if spec.is_image else np.float32)
        for key, spec in policy.spec.observation.items()
    }
    features = policy.features(tensors(seen))
    assert features.shape == (4, policy.num_features)
    assert policy.canonical._inner.axis_masks.rows(features).tolist() == [policy.arm.index] * 4
    assert np.isfinite(policy.act(seen, DETERMINISTIC).actions).all()


def test_panda_and_x5_act_with_the_same_weights():
    robots = {arm: SimRobot(SimRobotConfig(arm=arm, action="joint")).spec for arm in ("panda", "x5")}
    assert [robot.action.shape for robot in robots.values()] == [(8,), (7,)]  # 7 and 6 joints, and a gripper
    keys = ("joint_pos", "joint_vel", "gripper")
    arms = {
        robot.embodiment: {
            "observation": {key: robot.observation[key].shape[0] for key in keys},
            "num_actions": robot.action.shape[0],
            "axes": [*range(robot.action.shape[0] - 1), 7],  # one gripper for both
        }
        for robot in robots.values()
    }
    policies = {name: make("flow", robot, arms) for name, robot in robots.items()}
    weights = snapshot(make("flow", robots["panda"], arms, seed=5), version=2)
    for name, policy in policies.items():
        policy.load(weights)
        match(robots[name], policy=policy.spec)
        chunk = policy.act({key: seen_by(robots[name])[key] for key in keys}, DETERMINISTIC)
        low, high = robots[name].action.bounds
        assert chunk.policy_version == 2
        assert chunk.actions.shape == (4, 4, *robots[name].action.shape)
        assert ((chunk.actions >= low - 1e-6) & (chunk.actions <= high + 1e-6)).all()
    panda, x5 = (policy.weights() for policy in policies.values())
    assert all(np.array_equal(panda[name][key], x5[name][key]) for name in panda for key in panda[name])


# ---- padding


def padded(policy, padding, *, num=6):
    """Rows of both arms, filled with `padding` where an arm has no value."""
    canonical_space, rng = policy.canonical_space, np.random.default_rng(0)
    rows = np.arange(num) % 2
    seen = {"embodiment": np.eye(2, dtype=np.float32)[rows]}
    for key, size in canonical_space.sizes.items():
        values = rng.normal(size=(num, size)).astype(np.float32)
        seen[key] = np.where(canonical_space.observation_masks[key][rows], values, np.float32(padding))
    horizon = (policy.spec.horizon,) if policy.spec.horizon > 1 else ()
    actions = rng.uniform(-0.9, 0.9, size=(num, *horizon, canonical_space.num_actions)).astype(np.float32)
    mask = canonical_space.action_masks[rows][:, None] if horizon else canonical_space.action_masks[rows]
    actions = np.where(mask, actions, np.float32(padding))
    return tensors(seen), torch.from_numpy(actions)


def gradients(policy, loss):
    modules = policy.components.values()
    parameters = [p for module in modules for p in module.parameters()]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def losses(policy, seen, actions):
    features = policy.features(seen)
    yield policy.imitation_loss(features, actions, generator=torch.Generator().manual_seed(1))
    if policy.spec.horizon == 1:
        drawn, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(1))
        yield (drawn.sum(-1) + log_prob).sum()


@pytest.mark.parametrize("kind", INNER)
def test_padding_changes_no_loss_and_no_gradient(kind):
    policy = CanonicalPolicy(config_of(kind), robot=TALL)
    plain = padded(policy, 0.0)
    for padding in (7.0, math.nan):
        for ours, theirs in zip(losses(policy, *plain), losses(policy, *padded(policy, padding)), strict=True):
            assert ours.item() == theirs.item()
            for one, other in zip(gradients(policy, ours), gradients(policy, theirs), strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["gaussian_mlp", "flow"])
def test_gradients_of_padding_are_exactly_0(kind):
    policy = make(kind)
    actions = torch.rand(4, *((4,) if kind == "flow" else ()), 2) * 2 - 1
    features = policy.features(tensors(seen_by(SHORT)))
    loss = policy.imitation_loss(features, actions, generator=torch.Generator().manual_seed(0))
    if kind == "gaussian_mlp":
        loss = loss + policy.sample(features, generator=None)[1].sum()
    loss.backward()
    parameters = dict(policy.components["actor"].named_parameters())
    # features: embodiment (2), joint_pos (3), force (2), masks of the last two (5)
    absent, present = [0, 4, 5, 6, 9, 10, 11], [1, 2, 3, 7, 8]
    first = parameters["0.weight" if kind == "gaussian_mlp" else "condition.0.weight"].grad
    assert (first[:, absent] == 0.0).all() and (first[:, present].abs().sum(0) > 0.0).all()
    last = parameters["3.weight" if kind == "gaussian_mlp" else "end.1.weight"].grad.view(-1, 3, 8)
    assert (last[:, 1] == 0.0).all() and (last[:, [0, 2]].abs().sum(-1) > 0.0).all()
    if kind == "flow":
        chunk = parameters["chunk.weight"].grad.view(8, 4, 3)
        assert (chunk[..., 1] == 0.0).all() and (chunk[..., [0, 2]].abs().sum(0) > 0.0).all()


def test_log_density_counts_only_the_arms_own_axes():
    policy = make()
    features = policy.features(tensors(seen_by(SHORT)))
    drawn, log_prob = policy.sample(features, generator=torch.Generator().manual_seed(0))
    outputs = policy.components["actor"](features)[
        :, [0, 2, 3, 5]
    ]  # the means of its two axes, then their log stds
    mean, log_std = outputs[:, :2], -5.0 + 3.0 * (torch.tanh(outputs[:, 2:]) + 1.0)
    raw = torch.atanh(drawn)
    by_hand = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw) - torch.log(1.0 - drawn.square())
    torch.testing.assert_close(log_prob, by_hand.sum(-1), rtol=1e-4, atol=1e-4)
    assert drawn.shape == (4, 2)
    canonical, _ = policy.canonical.sample(features, generator=None)
    assert (canonical[:, 1] == 0.0).all()  # the axis that this arm does not have


@pytest.mark.parametrize("kind", ["flow_actor", "transformer"])
def test_path_density_counts_only_the_arms_own_axes(kind):
    """The density of a path with two axes, computed from the same velocities and noise."""
    policy = make(kind)
    inner = policy.canonical._inner
    features = policy.features(tensors(seen_by(SHORT)))
    mask = inner._axis_mask(features)
    assert mask.tolist() == [[True, False, True]] * 4
    noise = torch.randn(3, 4, 3)
    path, density = inner._path(features, noise)
    x, sigma = torch.where(mask, noise[0], 0.0), inner.sigma(features)
    normal = torch.distributions.Normal(0.0, 1.0)
    by_hand = normal.log_prob(x)[:, [0, 2]].sum(-1)
    for k in range(2):
        t = k / 2
        v = inner._velocity(x, features, torch.full((4,), t), mask)
        mean = x + 0.5 * (v + 0.5 * sigma.square() * (t * v - x) / (1 - t))
        step_std = sigma * math.sqrt(0.5)
        x = torch.where(mask, mean + step_std * noise[k + 1], 0.0)
        by_hand = by_hand + torch.distributions.Normal(mean, step_std).log_prob(x)[:, [0, 2]].sum(-1)
    torch.testing.assert_close(path[-1], x)
    torch.testing.assert_close(density, by_hand, rtol=1e-4, atol=1e-4)


# ---- a third arm, larger than both


def grow(small, large):
    """Copy the weights of a policy of two arms into a policy of three arms; additional weights stay random."""
    ours, theirs = small.canonical, large.canonical
    seen = list(range(2))  # the embodiment
    offset = 3
    for _ in range(2):  # observations, then their masks
        for key, size in ours.canonical_space.sizes.items():
            seen += list(range(offset, offset + size))
            offset += theirs.canonical_space.sizes[key]
    num_actions, wide = ours.canonical_space.num_actions, theirs.canonical_space.num_actions
    horizon = ours.spec.horizon
    axes = [tick * wide + axis for tick in range(horizon) for axis in range(num_actions)]
    time = list(range(offset, offset + 16))
    places = {
        (len(seen), offset): seen,
        (len(seen) + 16, offset + 16): [*seen, *time],
        (2 * num_actions, 2 * wide): [*range(num_actions), *range(wide, wide + num_actions)],
        (len(axes), horizon * wide): axes,
        (len(seen) + 16 + num_actions, offset + 16 + wide): [
            *seen,
            *range(offset, offset + num_actions),
            *range(offset + wide, offset + wide + 16),
        ],
    }
    with torch.no_grad():
        for name, module in ours.components.items():
            for (key, value), into in zip(
                module.state_dict().items(), theirs.components[name].state_dict().values(), strict=True
            ):
                index = [
                    list(range(a)) if a == b else places[(a, b)]
                    for a, b in zip(value.shape, into.shape, strict=True)
                ]
                into[np.ix_(*index)] = value
                assert key


@pytest.mark.parametrize(
    ("kind", "how"), [("flow", "guided"), *((k, how) for k in INNER for how in ("deterministic", "seeded"))]
)
def test_actions_do_not_change_when_a_larger_arm_is_added(kind, how):
    small, large = make(kind), make(kind, arms=ARMS | GIANT, seed=1)
    grow(small, large)
    columns = {"q": np.random.default_rng(0).normal(2.0, 3.0, size=(50, 2))}
    small.fit_normalizer(columns)
    large.fit_normalizer(columns)
    context = {
        "deterministic": DETERMINISTIC,
        "seeded": ActContext(seed=3),
        "guided": ActContext(seed=3, prefix=np.full((4, 3, 2), 0.7, np.float32), delay=1),
    }[how]
    seen = seen_by(SHORT)
    ours, theirs = (policy.act(seen, context).actions for policy in (small, large))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    other = large.act(seen_by(SHORT, seed=1), context).actions
    assert not np.allclose(ours, other, atol=1e-3)  # the actions do depend on the observations


# ---- statistics


def test_each_arm_has_its_own_statistics():
    tall, short = make(robot=TALL), make(robot=SHORT)
    tall.fit_normalizer({"joint_pos": np.array([[0.0, 0, 0], [2, 4, 6]]), "force": np.array([[1.0, 1], [3, 3]])})
    short.load(snapshot(tall))
    short.fit_normalizer({"q": np.array([[10.0, 20], [30, 20]])})
    arrays = short.weights()["normalizer"]
    assert arrays["mean/joint_pos"].tolist() == [[1, 2, 3], [20, 20, 0]]
    assert arrays["std/joint_pos"].tolist() == [[1, 2, 3], [10, pytest.approx(1e-3), 1]]
    assert arrays["mean/force"].tolist() == [[2, 2], [0, 0]]
    features = short.features({"q": torch.tensor([[30.0, 20.0]])})
    # embodiment, joint_pos, force, masks
    assert features.tolist() == [[0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0]]


def test_actions_are_scaled_by_each_arms_limits():
    canonical_space = CanonicalSpace(
        {name: EmbodimentConfig.model_validate(config) for name, config in ARMS.items()}
    )
    short = canonical_space.arm(SHORT)
    assert short.pad_actions(np.array([[1.0, 0.75]])).tolist() == [[0.5, 0.0, 0.5]]
    assert short.cut_actions(np.array([[0.5, 9.0, 0.5]])).tolist() == [[1.0, 0.75]]
    assert canonical_space.arm(TALL).pad_actions(np.array([[1.0, -1.0, 1.0]])).tolist() == [[1.0, -1.0, -0.5]]


# ---- errors


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({"short_arm": {**ARMS["short_arm"], "num_actions": 3, "axes": []}}, "num_actions=3, but robot 'short'"),
        (
            {"short_arm": {**ARMS["short_arm"], "rename": {}}},
            "'joint_pos' 2 values, but robot 'short' has no such",
        ),
        ({"short_arm": {**ARMS["short_arm"], "observation": {"joint_pos": 3}}}, r"has float32\[2\]"),
    ],
)
def test_robot_that_differs_from_its_embodiment_is_refused(change, because):
    with pytest.raises(SpecMismatch, match=because):
        make(arms=ARMS | change)


def test_robot_without_embodiment_is_refused():
    with pytest.raises(
        SpecMismatch, match=r"has neither robot 'short' nor its embodiment 'short_arm'\. Valid: long_arm"
    ):
        make(arms={"long_arm": ARMS["long_arm"]})


def test_policy_without_embodiments_is_refused():
    with pytest.raises(SpecMismatch, match=r"Name them in policy\.embodiments"):
        make(arms={})


@pytest.mark.parametrize(
    ("section", "because"),
    [
        ({"type": "shared", "policy": {"type": "flwo"}, "embodiments": ARMS}, "Did you mean 'flow'"),
        ({"type": "shared", "policy": "remote", "embodiments": ARMS}, "that several arms can share"),
        ({"type": "shared", "policy": {"type": "flow", "hiden": 3}, "embodiments": ARMS}, "hiden"),
        (
            {"type": "shared", "policy": "flow", "embodiments": {"a": {**ARMS["short_arm"], "axes": [1, 1]}}},
            "different numbers",
        ),
    ],
)
def test_invalid_shared_policy_config_is_refused(section, because):
    with pytest.raises(ValueError, match=because):
        PluginSection.parse("policy", section)


def test_config_survives_a_round_trip():
    section = PluginSection.parse("policy", {"type": "shared", "policy": "flow", "embodiments": ARMS})
    assert PluginSection.parse("policy", section.to_plain()) == section


def test_misspelled_setting_of_the_inner_policy_is_named(tmp_path):
    (tmp_path / "shared.json").write_text(
        json.dumps({"policy": {"type": "shared", "policy": {"type": "flow", "hiden": 3}, "embodiments": ARMS}})
    )
    with pytest.raises(
        UsageError, match=r"unknown key 'policy\.policy\.hiden'\. Did you mean 'policy\.policy\.hidden'"
    ):
        load(["push-cube", str(tmp_path / "shared.json")])
