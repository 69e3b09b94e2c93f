"""Batches of two arms: padded, masked, and learned from by one policy."""

import dataclasses

import numpy as np
import pytest
import torch

from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import ActContext, SampleRequest, View, WeightSnapshot, Window
from dovetail.learn.algorithms.hg_dagger import HGDAgger, HGDAggerConfig
from dovetail.learn.algorithms.hi_ors import HiORS, HiORSConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.batches import Batches, batch_arrays
from dovetail.learn.learner import Learner
from dovetail.learn.mixed_replay import MixedReplay
from dovetail.policies.embodiments.shared_policy import CanonicalPolicy, SharedConfig, SharedPolicy
from dovetail.testing.algorithms import check_algorithm

TALL = RobotSpec(
    name="tall",
    embodiment="long_arm",
    observation={"joint_pos": ArraySpec(shape=(3,))},
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
    "long_arm": {"observation": {"joint_pos": 3}, "num_actions": 3, "grippers": (2,)},
    "short_arm": {
        "observation": {"joint_pos": 2},
        "rename": {"joint_pos": "q"},
        "num_actions": 2,
        "axes": (0, 2),
    },
}


class Steps:
    """A replay of random joint positions with the actions of an expert."""

    def __init__(self, robot, rule, *, num=200, seed=0):
        rng = np.random.default_rng(seed)
        (self.key,) = robot.observation
        self.joints = rng.uniform(-1, 1, size=(num, *robot.observation[self.key].shape)).astype(np.float32)
        self.actions = rule(self.joints).astype(np.float32)
        self.asked = []

    def size(self, view):
        return len(self.joints) if view.part != "online" else 0

    def sample(self, into, *, view, rng, window):
        self.asked.append(window.history)
        rows = rng.integers(len(self.joints), size=len(into["action"]))
        for name, out in into.items():
            value = {
                f"observation/{self.key}": self.joints,
                f"next/{self.key}": self.joints,
                "action": self.actions,
                "achieved": self.actions,
            }.get(name, np.ones(len(self.joints)))
            value = value[rows]
            extra = out.ndim - value.ndim  # a horizon, or history
            out[:] = value.reshape(len(rows), *(1,) * extra, *value.shape[1:])


def tall_rule(joints):
    return np.stack((0.8 * joints[:, 0], -0.5 * joints[:, 1], 2.0 + joints[:, 2]), axis=1)


def short_rule(joints):
    return np.stack((-1.5 * joints[:, 1], 0.5 + 0.4 * joints[:, 0]), axis=1)


def config_of(kind="gaussian_mlp", **settings):
    return SharedConfig.model_validate({"policy": {"type": kind, **settings}, "embodiments": ARMS})


@pytest.fixture
def steps():
    return {"tall": Steps(TALL, tall_rule), "short": Steps(SHORT, short_rule)}


@pytest.fixture
def mixed(steps):
    return lambda policy, **options: MixedReplay(
        policy.canonical_space, [(TALL, steps["tall"]), (SHORT, steps["short"])], **options
    )


REQUEST = SampleRequest(observation_keys=("embodiment", "joint_pos"), rows={View(): 64})


def test_batch_has_padded_rows_of_both_arms(mixed, steps):
    policy = CanonicalPolicy(config_of(), robot=TALL)
    batches = Batches(request=REQUEST, robot=policy.robot, replay=mixed(policy), rng=np.random.default_rng(0))
    (batch,) = batches.take(1)
    short = batch["embodiment"] == 1
    assert 10 < int(short.sum()) < 54
    assert batch["action_mask"][short].tolist() == [[True, False, True]] * int(short.sum())
    assert batch["action_mask"][~short].all()
    assert torch.equal(batch["observation/embodiment"], torch.eye(2)[batch["embodiment"]])
    assert torch.equal(batch["next/embodiment"], torch.eye(2)[batch["embodiment"]])
    assert (batch["observation/joint_pos"][short][:, 2] == 0.0).all()
    assert (batch["action"][short][:, 1] == 0.0).all()
    joints = batch["observation/joint_pos"].numpy()
    by_hand = short_rule(joints[short]) / [2.0, 0.5] - [0.0, 1.0]  # scaled to -1..1 of this arm's limits
    np.testing.assert_allclose(batch["action"][short][:, [0, 2]], by_hand, atol=1e-6)
    by_hand = tall_rule(joints[~short]) / [1.0, 1.0, 2.0] - [0.0, 0.0, 1.0]
    np.testing.assert_allclose(batch["action"][~short], by_hand, atol=1e-6)
    assert torch.equal(policy.normalize_actions(batch["action"]), batch["action"].clamp(-1, 1))


def test_rows_per_arm_follow_steps_or_shares(mixed):
    policy = CanonicalPolicy(config_of(), robot=TALL)
    arrays = batch_arrays(dataclasses.replace(REQUEST, rows={View(): 4000}), policy.robot)

    def share(**options):
        mixed(policy, **options).sample(arrays, view=View(), rng=np.random.default_rng(0))
        return arrays["embodiment"].mean()

    assert share() == pytest.approx(0.5, abs=0.03)
    assert share(shares={"long_arm": 1.0, "short_arm": 3.0}) == pytest.approx(0.75, abs=0.03)
    assert share(shares={"long_arm": 1.0, "short_arm": 0.0}) == 0.0


def test_history_uses_each_arms_own_keys(mixed, steps):
    policy = CanonicalPolicy(config_of(history={"joint_pos": 2}), robot=TALL)
    request = dataclasses.replace(REQUEST, window=Window(history={"joint_pos": 2}))
    batches = Batches(request=request, robot=policy.robot, replay=mixed(policy), rng=np.random.default_rng(0))
    (batch,) = batches.take(1)
    assert (steps["tall"].asked, steps["short"].asked) == ([{"joint_pos": 2}], [{"q": 2}])
    assert batch["observation/joint_pos"].shape == (64, 2, 3)
    assert batch["observation/joint_pos/mask"].all()


def test_unsupported_mixtures_raise(mixed, steps):
    policy = CanonicalPolicy(config_of(), robot=TALL)
    other = dataclasses.replace(SHORT, action_kind="ee_delta")
    with pytest.raises(SpecMismatch, match="ee_delta and joint_target"):
        MixedReplay(policy.canonical_space, [(TALL, steps["tall"]), (other, steps["short"])])
    limits = {"low": (-1.0,), "high": (1.0,), "max_speed": (1.0,)}
    mobile = RobotSpec(
        name="short",
        embodiment="short_arm",
        observation=SHORT.observation,
        parts=(
            ActionPart(name="arm", kind="joint_target", unit="rad", names=("j",), measured="q[0:1]", **limits),
            ActionPart(name="base", kind="velocity", unit="m/s", names=("v",), hold="zero", **limits),
        ),
        control_hz=10.0,
    )
    with pytest.raises(SpecMismatch, match=r"cannot have joint_target and joint_target \+ velocity actions"):
        MixedReplay(policy.canonical_space, [(TALL, steps["tall"]), (mobile, steps["short"])])
    with pytest.raises(UsageError, match="long_arm, short_arm"):
        mixed(policy, shares={"long_arm": 1.0})
    with pytest.raises(UsageError, match="'online' is empty"):
        mixed(policy).sample(
            batch_arrays(REQUEST, policy.robot), view=View(part="online"), rng=np.random.default_rng(0)
        )


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["gaussian_mlp", "flow"])
def test_one_policy_imitates_both_arms(kind, mixed, steps):
    settings = {"hidden": (64, 64)} if kind == "gaussian_mlp" else {"hidden": 64, "num_layers": 2, "horizon": 1}
    config = config_of(kind, **settings)
    policy = CanonicalPolicy(config, robot=TALL, seed=0)
    replay = mixed(policy)
    everything = batch_arrays(dataclasses.replace(REQUEST, rows={View(): 400}), policy.robot)
    replay.sample(everything, view=View(), rng=np.random.default_rng(1))
    policy.fit_normalizer({key: everything[f"observation/{key}"] for key in policy.spec.observation})
    algorithm = Imitation(ImitationConfig(batch_size=64, lr=3e-3, lr_decay_updates=800), policy=policy, seed=0)
    learner = Learner(algorithm=algorithm, replay=replay, robot=policy.robot, rng=np.random.default_rng(0))
    learner.warm_up(800)
    weights = WeightSnapshot(version=1, components=learner.policy_weights(), hashes={})
    for robot, rule in ((TALL, tall_rule), (SHORT, short_rule)):
        arm = SharedPolicy(config, robot=robot, seed=3)
        arm.load(weights)
        (key,) = robot.observation
        joints = (
            np.random.default_rng(9)
            .uniform(-0.9, 0.9, size=(100, *robot.observation[key].shape))
            .astype(np.float32)
        )
        done = arm.act({key: joints}, ActContext(deterministic=True)).actions[:, 0]
        half_range = (np.array(robot.action.high) - robot.action.low) / 2
        error = np.abs((done - rule(joints)) / half_range)
        assert error.mean() < 0.04, (robot.name, error.mean())


CHUNKS = {"kind": "flow", "hidden": 8, "num_layers": 1, "horizon": 3}


@pytest.mark.parametrize(
    ("algorithm", "config", "policy"),
    [
        (Imitation, ImitationConfig(batch_size=8), CHUNKS),
        (HGDAgger, HGDAggerConfig(batch_size=8), CHUNKS),
        (HiORS, HiORSConfig(batch_size=8), CHUNKS),
        (RLPD, RLPDConfig(batch_size=8, hidden=(8,), actor_every=1, bc_weight=0.1), {"hidden": (8,)}),
    ],
)
def test_algorithms_pass_checks_on_mixed_batches(algorithm, config, policy):
    robot = CanonicalPolicy(config_of(**policy), robot=TALL).robot
    check_algorithm(
        lambda: algorithm(config, policy=CanonicalPolicy(config_of(**policy), robot=TALL), seed=0), robot=robot
    )


def test_target_entropy_counts_existing_axes():
    """Log-densities cover three and two axes. With the padded count, the target entropy would be too low."""
    policy = CanonicalPolicy(config_of(hidden=(8,)), robot=TALL)
    assert RLPD(RLPDConfig(hidden=(8,)), policy=policy)._target_entropy == -2.5


@pytest.mark.parametrize("algorithm", [Imitation, HGDAgger, HiORS])
def test_values_on_missing_axes_are_ignored(algorithm, mixed):
    """Values on missing axes do not change the weights."""
    results = []
    for spoilt in (0.0, 0.7):
        policy = CanonicalPolicy(config_of(**CHUNKS), robot=TALL)
        learner = algorithm(algorithm.Config(batch_size=16), policy=policy, seed=0)
        request = dataclasses.replace(learner.sample_request, when_empty=View())
        batches = Batches(request=request, robot=policy.robot, replay=mixed(policy), rng=np.random.default_rng(0))
        for batch in batches.take(3):
            batch = {name: value.clone() for name, value in batch.items()}
            for name in ("action", "achieved"):
                if name in batch:
                    there = batch["action_mask"][:, None].expand_as(batch[name])
                    batch[name] = torch.where(there, batch[name], spoilt)
            learner.update(batch)
        results.append(learner.policy_weights()["actor"])
    assert all(np.array_equal(results[0][key], results[1][key]) for key in results[0])


def test_hi_ors_imitates_each_arms_gripper_commands(monkeypatch):
    policy = CanonicalPolicy(config_of(**CHUNKS), robot=TALL)
    learner = HiORS(HiORSConfig(batch_size=2, min_motion_std=0.0), policy=policy, seed=0)
    asked = []
    monkeypatch.setattr(policy, "normalize_actions", lambda actions, _: asked.append(actions.clone()) or actions)
    batch = {
        name: torch.from_numpy(array) for name, array in batch_arrays(learner.sample_request, policy.robot).items()
    }
    batch["embodiment"] = torch.tensor([0, 1])
    batch["observation/embodiment"] = torch.eye(2)
    batch["action/mask"][:] = True
    batch["action"][:] = 0.25
    batch["achieved"][:] = -0.5
    learner.update(batch)
    assert asked[0][:, 0].tolist() == [[-0.5, -0.5, 0.25], [-0.5, -0.5, -0.5]]
