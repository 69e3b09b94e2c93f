"""The advantage indicator of a flow: what it changes, classifier-free guidance, and committed actions with it."""

import numpy as np
import pytest
import torch

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.flows.guidance import guided_velocity
from dovetail.testing import check_policy

ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={"joint_pos": ArraySpec(shape=(3,))},
    action=ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)
SEEN = {"joint_pos": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}


def make(seed=0, *, trained=True, **config):
    small = {"horizon": 4, "hidden": 16, "num_layers": 1, "num_flow_steps": 2, "advantage_input": True}
    policy = Flow(FlowConfig(**(small | config)), robot=ROBOT, seed=seed)
    if trained and policy.takes_advantage:  # as if training had given the indicator an effect
        weight = policy.components["actor"].condition[0].weight
        num_features = policy.num_features
        with torch.no_grad():
            weight[:, num_features - 2 : num_features] = torch.randn(
                len(weight), 2, generator=torch.Generator().manual_seed(5)
            )
    return policy


def features(policy, *indicators):
    observations = {"joint_pos": torch.zeros(len(indicators), 3), "advantage": torch.tensor(indicators)}
    return policy.features(observations)


def test_keeps_the_policy_contract():
    check_policy(lambda: make(advantage_guidance=2.0))


def test_indicator_is_the_last_two_features():
    policy = make()
    assert policy.num_features == 5
    assert features(policy, 1, -1, 0)[:, 3:].tolist() == [[1, 0], [0, 1], [0, 0]]
    assert policy.features({"joint_pos": torch.zeros(1, 3)})[:, 3:].tolist() == [[0, 0]]


def test_without_the_setting_nothing_changes():
    policy = make(advantage_input=False)
    assert policy.num_features == 3
    assert not policy.takes_advantage
    assert features(policy, 1).shape == (1, 3)


def test_untrained_indicator_has_no_effect():
    policy = make(trained=False)
    x, t = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0)), torch.full((3,), 0.5)
    velocity = policy._velocity(x[:1].expand(3, -1, -1), features(policy, 1, -1, 0), t)
    torch.testing.assert_close(velocity, velocity[:1].expand(3, -1, -1))


def noise_and_velocities(policy, t=0.5):
    x = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(0))
    at = torch.full((2,), t)
    v_none, v_positive = (policy._velocity(x, features(policy, i, i), at) for i in (0, 1))
    return x, v_none, v_positive


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_acting_velocity_is_none_plus_weighted_difference(weight):
    policy = make(advantage_guidance=weight)
    x, v_none, v_positive = noise_and_velocities(policy)
    assert not torch.allclose(v_none, v_positive)
    found = policy._acting_velocity(features(policy, 0, 0), x, 0.5)
    torch.testing.assert_close(found, v_none + weight * (v_positive - v_none))


def test_weight_1_equals_the_conditional_policy():
    policy = make(advantage_guidance=1.0)
    x, _, v_positive = noise_and_velocities(policy)
    assert torch.equal(policy._acting_velocity(features(policy, 0, 0), x, 0.5), v_positive)


def test_act_draws_the_chunks_of_a_positive_advantage():
    """Euler steps by hand with the velocity of I = 1."""
    policy = make()
    chunk = policy.act(SEEN, ActContext(seed=3)).actions
    seen = policy.features({"joint_pos": torch.from_numpy(SEEN["joint_pos"]), "advantage": torch.ones(2)})
    with torch.no_grad():
        x = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(3))
        for step in range(2):
            x = x + policy._velocity(x, seen, torch.full((2,), step / 2)) / 2
    np.testing.assert_allclose(chunk, x.clamp(-1, 1).numpy(), atol=1e-6)


def test_committed_actions_guide_the_guided_velocity():
    """Real-time chunking differentiates none + w (positive - none), not the conditional velocity alone."""
    policy = make(advantage_guidance=2.0, num_flow_steps=4)
    prefix = np.full((2, 4, 2), 0.3, np.float32)
    context = ActContext(seed=3, prefix=prefix, delay=1, horizon=2)
    found = policy.act(SEEN, context).actions
    seen = {
        i: policy.features({"joint_pos": torch.from_numpy(SEEN["joint_pos"]), "advantage": torch.full((2,), i)})
        for i in (0, 1)
    }

    def velocity(x, t):
        at = torch.full((2,), t)
        v_none, v_positive = (policy._velocity(x, seen[i], at) for i in (0, 1))
        return v_none + 2.0 * (v_positive - v_none)

    committed = policy._committed(2, {}, context)
    x = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        for step in range(4):
            v = guided_velocity(
                velocity,
                x,
                step / 4,
                target=committed.target,
                weights=committed.weights,
                beta=5.0,
                jacobian="vjp",
            )
            x = x + v / 4
    np.testing.assert_allclose(found, x.clamp(-1, 1).numpy(), atol=1e-5)
    plain = policy.act(SEEN, ActContext(seed=3)).actions
    assert np.abs(found[:, 0] - 0.3).max() < np.abs(plain[:, 0] - 0.3).max()
