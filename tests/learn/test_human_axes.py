"""A person takes over one of two arms: what they drove is cloned, and not what the policy did with the other arm."""

import numpy as np
import pytest
import torch

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.learn.algorithms.hi_ors import HiORS, HiORSConfig
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.batches import only_driven_axes
from dovetail.policies.discrete_gripper import margin_loss
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from support.joint_arm import HORIZON, TWO_ARMS, learner_of, make_episode, make_flow, spy_on

GRIPPING = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={"gripper": ArraySpec(shape=(2,), names=("opening", "command"))},
    action=ArraySpec(shape=(3,), names=("dx", "dy", "gripper"), low=(-1.0, -1.0, 0.0), high=(1.0, 1.0, 1.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)
NUM_STEPS = 12
CORRECTED = range(4, 10)


def flow(horizon):
    return make_flow(TWO_ARMS, horizon=horizon)


def gaussian(horizon):
    return GaussianMLP(GaussianMLPConfig(hidden=(8,), horizon=horizon), robot=TWO_ARMS, seed=0)


ALGORITHMS = {
    "imitation": lambda horizon: Imitation(ImitationConfig(batch_size=64), policy=flow(horizon)),
    "hi_ors": lambda horizon: HiORS(
        HiORSConfig(batch_size=64, demo_share=0.0, imitated_actions="executed", min_motion_std=0.0), policy=flow(horizon)
    ),
    "rlpd": lambda horizon: RLPD(
        RLPDConfig(batch_size=64, bc_weight=1.0, hidden=(8,), actor_every=1), policy=gaussian(horizon)
    ),
}  # fmt: skip


def episode():
    """Action i is (i / 100, -i / 100). A person drives the left arm in steps 4 to 9."""
    ticks = np.arange(NUM_STEPS)
    actions = np.stack((ticks, -ticks), axis=1) / 100
    return make_episode("one", actions, human=CORRECTED, robot=TWO_ARMS, human_axes=(True, False))


@pytest.mark.parametrize("horizon", [1, HORIZON])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_arm_that_the_policy_drove_during_a_takeover_is_not_cloned(open_replay, name, horizon):
    algorithm = ALGORITHMS[name](horizon)
    given = spy_on(algorithm._policy)
    learner_of(algorithm, open_replay(episode()), robot=TWO_ARMS).step(env_steps=NUM_STEPS)
    left, right = set(), set()  # the steps that are cloned
    for actions, mask in given:
        steps = (actions.reshape(-1, 2)[:, 0] * 100).round().int()
        driven = mask.reshape(-1, 2)
        left |= set(steps[driven[:, 0]].tolist())
        right |= set(steps[driven[:, 1]].tolist())
    policy_steps = set(range(NUM_STEPS)) - set(CORRECTED)
    if name == "hi_ors":  # it imitates the whole of a successful episode
        assert left == set(range(NUM_STEPS))
        assert right == policy_steps
    else:
        assert left == set(CORRECTED)
        assert right == set()


def test_mask_of_axes_by_hand():
    """Row 0: the policy. Row 1: a person on the left axis. Row 2: a person on both, after the episode's end."""
    human = torch.tensor([False, True, True])
    axes = torch.tensor([[False, False], [True, False], [True, True]])
    steps = torch.tensor([True, True, False])
    batch = {"human": human, "human_axes": axes}
    expected = [[True, True], [True, False], [False, False]]
    assert only_driven_axes(steps, batch).tolist() == expected
    assert only_driven_axes(None, batch).tolist() == [*expected[:2], [True, True]]
    assert only_driven_axes(steps, {"human": human}) is steps


def test_discrete_gripper_masks_motion_and_grip_by_axis():
    """Motion errors 0 and 2 and a grip. The mask decides which of them count: (0 + 4) / 2 for both motions."""
    policy = GaussianMLP(GaussianMLPConfig(hidden=(8,), gripper="discrete"), robot=GRIPPING, seed=0)
    features = policy.features({"gripper": torch.zeros(2, 2)})
    x, y = torch.tanh(policy._distribution(features)[0]).detach().T
    actions = torch.stack((x, y + 2.0, -torch.ones(2)), dim=1)

    def loss(*mask):
        return policy.imitation_loss(features, actions, torch.tensor([mask] * 2)).item()

    assert loss(True, False, False) == pytest.approx(0.0, abs=1e-10)
    assert loss(True, True, False) == pytest.approx(2.0, rel=1e-5)
    grip = margin_loss(policy._grasp(features), torch.zeros(2, dtype=torch.bool)).item()
    assert loss(True, True, True) == pytest.approx(2.0 + grip, rel=1e-5)
