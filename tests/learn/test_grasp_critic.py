"""The grasp critic of a discrete gripper, against numbers computed by hand."""

import dataclasses

import numpy as np
import pytest
import torch

from dovetail.core.errors import UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.algorithms.sac import SAC, SACConfig
from dovetail.policies.discrete_gripper import margin_loss
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from dovetail.testing.algorithms import check_algorithm
from dovetail.testing.policies import check_policy

ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={
        "joint_pos": ArraySpec(shape=(3,)),
        "gripper": ArraySpec(shape=(2,), names=("opening", "command")),
    },
    action=ArraySpec(shape=(3,), names=("dx", "gripper", "dy"), low=(-1.0, 0.0, -1.0), high=(1.0, 1.0, 1.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)


class ConstantCritic(torch.nn.Module):
    """The same values of close, keep and open for every observation."""

    def __init__(self, *values):
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor([values]))

    def forward(self, features):
        return self.values.expand(len(features), -1)


def make_policy(**config):
    return GaussianMLP(
        GaussianMLPConfig(**{"hidden": (16,), "gripper": "discrete", **config}), robot=ROBOT, seed=0
    )


def make(policy, kind=SAC, **config):
    model = SACConfig if kind is SAC else RLPDConfig
    return kind(model(**{"batch_size": 4, "hidden": (16,), **config}), policy=policy, seed=0)


@pytest.fixture
def grasps():
    """Four transitions: an open gripper stays open or closes; a closed one stays closed or opens with success."""
    commands, executed = [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]
    rng = np.random.default_rng(0)
    arrays = {
        "observation/joint_pos": rng.normal(size=(4, 3)),
        "next/joint_pos": rng.normal(size=(4, 3)),
        "observation/gripper": np.stack((np.full(4, 0.5), commands), axis=1),
        "next/gripper": np.stack((np.full(4, 0.5), executed), axis=1),
        "action": np.stack((rng.uniform(-1, 1, 4), executed, rng.uniform(-1, 1, 4)), axis=1),
        "reward": np.array([0.0, 0.0, 0.0, 1.0]),
        "discount": np.array([0.9, 0.9, 0.9, 0.0]),
    }
    batch = {name: torch.from_numpy(values.astype(np.float32)) for name, values in arrays.items()}
    return batch | {"human": torch.tensor([True, True, False, False])}


def test_policy_and_algorithms_pass_checks():
    check_policy(make_policy)
    for kind in (SAC, RLPD):
        check_algorithm(lambda kind=kind: make(make_policy(), kind, actor_every=2), robot=ROBOT)


def test_target_is_double_dqn_with_switch_penalty(grasps):
    """The online network chooses to keep (0.3); the target network values that at 0.5, and its own best choice at 0.9."""
    policy = make_policy()
    algorithm = make(policy)
    algorithm._grasp.network, algorithm._grasp.target = (
        ConstantCritic(0.1, 0.3, 0.2),
        ConstantCritic(0.9, 0.5, 0.0),
    )
    actions = policy.normalize_actions(grasps["action"])
    targets, same = algorithm._grasp.targets(grasps, actions, torch.zeros(4, 5))
    # 0.9 * 0.5; the second and the last one switch, for 0.02
    np.testing.assert_allclose(targets, [0.45, 0.45 - 0.02, 0.45, 1.0 - 0.02], atol=1e-6)
    # open stayed open: stay or open; it closed: close; closed stayed closed: close or stay; it opened: open
    assert same.int().tolist() == [[0, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 1]]
    # squared distances: .15 .25 | .33 | .35 .15 | .78, over six choices
    errors = [0.3 - 0.45, 0.2 - 0.45, 0.1 - 0.43, 0.1 - 0.45, 0.3 - 0.45, 0.2 - 0.98]
    loss = algorithm._grasp.loss(torch.zeros(4, 5), targets, same)
    assert loss.item() == pytest.approx(sum(e * e for e in errors) / 6, rel=1e-5)


def test_target_range_clips_before_the_penalty(grasps):
    policy = make_policy()
    algorithm = make(policy, target_range=(0.0, 1.0))
    algorithm._grasp.network, algorithm._grasp.target = (
        ConstantCritic(0.1, 0.3, 0.2),
        ConstantCritic(0.9, 5.0, 0.0),
    )
    actions = policy.normalize_actions(grasps["action"])
    targets, _ = algorithm._grasp.targets(grasps, actions, torch.zeros(4, 5))
    np.testing.assert_allclose(targets, [1.0, 0.98, 1.0, 0.98], atol=1e-6)


def test_critic_and_actor_do_not_see_the_gripper(grasps):
    policy = make_policy()
    algorithm = make(policy, actor_every=1)
    assert algorithm._critic.weights[0].shape[1] == 5 + 2
    assert algorithm._target_entropy == -1.0
    assert torch.equal(algorithm._grasp.without_gripper(grasps["action"]), grasps["action"][:, [0, 2]])
    losses = []
    for command in (0.0, 1.0):
        grasps["action"][:, 1] = command
        losses.append(make(policy, actor_after=10**9).update(grasps)["critic_loss"])
    assert losses[0] == losses[1]


def test_target_network_moves_by_tau_and_is_in_the_checkpoint(grasps):
    policy = make_policy()
    algorithm = make(policy, tau=0.25, actor_after=10**9)
    before = [p.detach().clone() for p in policy.grasp.parameters()]
    algorithm.update(grasps)
    for slow, old, new in zip(
        algorithm._grasp.target.parameters(), before, policy.grasp.parameters(), strict=True
    ):
        torch.testing.assert_close(slow, 0.75 * old + 0.25 * new.detach())
    assert any(name.startswith("grasp_target/") for name in algorithm.state_dict())


def test_best_choice_closes_keeps_or_opens():
    """Keep repeats the last command. A value in between would half open the gripper."""
    policy = make_policy(gripper_epsilon=0.0)
    for command in (0.0, 1.0):
        observation = {
            "joint_pos": np.zeros((1, 3), np.float32),
            "gripper": np.array([[0.5, command]], np.float32),
        }
        for values, command_sent in (((1.0, 0.0, 0.0), 0.0), ((0.0, 1.0, 0.0), command), ((0.0, 0.0, 1.0), 1.0)):
            policy._grasp = ConstantCritic(*values)
            for context in (ActContext(deterministic=True), ActContext(seed=1)):
                assert policy.act(observation, context).actions[0, 0, 1] == command_sent
        curious = make_policy(gripper_epsilon=1.0)
        command_sent = {float(curious.act(observation, ActContext(seed=s)).actions[0, 0, 1]) for s in range(30)}
        assert command_sent == {0.0, 1.0}


def test_cloning_uses_a_margin_loss():
    values = torch.tensor([[0.2, 0.0, 0.1], [0.2, 0.0, 0.1]])
    # closed: better by exactly the margin; opened: the worst rival is 0.2 + 0.1, against 0.1
    assert margin_loss(values, torch.tensor([False, True])).item() == pytest.approx((0.0 + 0.2) / 2)
    policy, cloner = make_policy(), None
    cloner = Imitation(ImitationConfig(batch_size=4, lr=0.01), policy=policy)
    batch = {
        "observation/joint_pos": torch.eye(4, 3),
        "observation/gripper": torch.zeros(4, 2),
        "action": torch.tensor([[0.5, float(i % 2), -0.5] for i in range(4)]),
    }
    for _ in range(200):
        cloner.update(batch)
    observation = {key: batch[f"observation/{key}"].numpy() for key in ("joint_pos", "gripper")}
    actions = policy.act(observation, ActContext(deterministic=True)).actions[:, 0]
    assert actions[:, 1].tolist() == [0.0, 1.0, 0.0, 1.0]
    np.testing.assert_allclose(actions[:, [0, 2]], [[0.5, -0.5]] * 4, atol=0.1)


def test_only_rlpd_clones_the_gripper(grasps):
    grasps["human"][:] = True
    plain, cloning = (make(make_policy(), RLPD, bc_weight=w).update(grasps)["grasp_loss"] for w in (0.0, 10.0))
    assert cloning > plain


def test_frozen_grasp_critic_stays_and_the_arm_learns(grasps):
    policy = make_policy(components={"grasp": {"frozen": True}})
    policy.load_components(lambda *_: pytest.fail("there is nothing to read"))
    algorithm = make(policy, RLPD, bc_weight=1.0, actor_every=1)
    before = algorithm.policy_weights()
    metrics = algorithm.update(grasps)
    assert "actor_loss" in metrics and "grasp_loss" not in metrics
    after = algorithm.policy_weights()
    assert all(np.array_equal(before["grasp"][key], after["grasp"][key]) for key in before["grasp"])
    assert not any("grasp" in key for key in algorithm.state_dict() if not key.startswith("policy/"))


def test_masked_actions_are_not_cloned(grasps):
    policy, mask = make_policy(), torch.tensor([True, False, True, True])
    features = policy.features({key: grasps[f"observation/{key}"] for key in ("joint_pos", "gripper")})
    actions = policy.normalize_actions(grasps["action"])
    expected = policy.imitation_loss(features[mask], actions[mask])
    actions[1] = torch.nan  # as for Hi-ORS, if the achieved action is unknown
    torch.testing.assert_close(policy.imitation_loss(features, actions, mask), expected)


def test_robot_without_gripper_raises_usage_error():
    blind = dataclasses.replace(ROBOT, observation={"joint_pos": ROBOT.observation["joint_pos"]})
    with pytest.raises(UsageError, match="needs observation 'gripper' with a 'command' value"):
        GaussianMLP(GaussianMLPConfig(gripper="discrete"), robot=blind)
    fist = dataclasses.replace(ROBOT, action=ArraySpec(shape=(1,), low=(-1.0,), high=(1.0,)))
    with pytest.raises(UsageError, match="needs one gripper axis, but the action has 0"):
        GaussianMLP(GaussianMLPConfig(gripper="discrete"), robot=fist)
    with pytest.raises(UsageError, match=r"Set policy\.horizon=1"):
        make_policy(horizon=2)
