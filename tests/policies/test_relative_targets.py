"""Targets as offsets from the measured position: `policy.relative_parts`."""

import numpy as np
import pytest
import torch

from dovetail.core.action_parts import ActionPart
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig

ARM = ActionPart(
    name="arm", kind="joint_target", unit="rad", names=("a", "b"), low=(-2.0, -2.0), high=(2.0, 2.0),
    max_speed=(1.0, 0.5), measured="state[1:3]",
)  # fmt: skip
HAND = ActionPart(
    name="hand", kind="gripper", unit="1", names=("hand",), low=(0.0,), high=(1.0,), hold="last", max_speed=(2.0,)
)
ROBOT = RobotSpec(
    name="two_joints",
    embodiment="two_joints",
    observation={"state": ArraySpec(shape=(3,)), "goal": ArraySpec(shape=(2,))},
    parts=(ARM, HAND),
    control_hz=10.0,
)
SETTINGS = {"horizon": 2, "relative_parts": ["arm"], "history": {"state": 3}}


def make(kind: str, **changes: object) -> Flow | GaussianMLP:
    if kind == "flow":
        return Flow(FlowConfig.from_mapping(SETTINGS | changes), robot=ROBOT)
    return GaussianMLP(GaussianMLPConfig.from_mapping(SETTINGS | changes), robot=ROBOT)


def observed() -> dict[str, np.ndarray]:
    """Two rows with three ticks; the newest positions are 0.5, -1 and 1.95, 0."""
    state = np.zeros((2, 3, 3), np.float32)
    state[:, :2] = 9.0  # older ticks do not count
    state[:, 2] = [[7.0, 0.5, -1.0], [7.0, 1.95, 0.0]]
    return {"state": state, "state/mask": np.ones((2, 3), np.bool_), "goal": np.zeros((2, 2), np.float32)}


@pytest.mark.parametrize("kind", ["flow", "gaussian_mlp"])
def test_an_offset_is_relative_to_how_far_the_axis_moves_during_a_chunk(kind) -> None:
    """2 ticks at 10 Hz: 0.2 rad and 0.1 rad. The gripper, which nothing measures, keeps its limits: 0 ... 1 to -1 ... 1."""
    inputs = {key: torch.from_numpy(value) for key, value in observed().items()}
    actions = torch.tensor([[[0.6, -1.05, 1.0], [0.3, -0.9, 0.5]], [[1.95, 0.02, 0.0], [5.0, -0.02, 0.25]]])
    normalized = make(kind).normalize_actions(actions, inputs)
    expected = [[[0.5, -0.5, 1.0], [-1.0, 1.0, 0.0]], [[0.0, 0.2, -1.0], [1.0, -0.2, -0.5]]]
    np.testing.assert_allclose(normalized, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["flow", "gaussian_mlp"])
def test_a_chunk_starts_at_the_newest_measured_position_and_keeps_the_limits(kind) -> None:
    policy = make(kind)
    chunk = policy.act(observed(), ActContext(seed=3)).actions  # [2, 2, 3]
    assert np.abs(chunk[0, :, 0] - 0.5).max() <= 0.2 and np.abs(chunk[0, :, 1] + 1.0).max() <= 0.1
    assert chunk[..., :2].max() <= 2.0
    inputs = {key: torch.from_numpy(value) for key, value in observed().items()}
    again = policy.normalize_actions(torch.from_numpy(chunk), inputs)
    shifted = {**observed(), "state": observed()["state"] - np.float32([0.0, 0.25, 0.0])}
    policy._normalizer.mean["state"] -= np.float32([0.0, 0.25, 0.0])  # the networks see the same
    moved = policy.act(shifted, ActContext(seed=3)).actions
    np.testing.assert_allclose(moved[0, :, 0], chunk[0, :, 0] - 0.25, atol=1e-5)
    np.testing.assert_allclose(moved[..., 1:], chunk[..., 1:], atol=1e-5)
    assert again.abs().max() <= 1.0


def test_a_prefix_is_guided_in_offsets() -> None:
    """Guidance towards committed actions compares offsets with offsets, so it brings the chunk nearer to them."""
    policy = make("flow", history={}, guidance={"jacobian": "identity"})
    rows = {"state": np.float32([[0.0, 1.0, -1.0]]), "goal": np.zeros((1, 2), np.float32)}
    prefix = np.float32([[[1.1, -1.05, 0.5], [1.2, -1.1, 0.5]]])
    guided = policy.act(rows, ActContext(deterministic=True, prefix=prefix, delay=1, horizon=1)).actions
    free = policy.act(rows, ActContext(deterministic=True)).actions
    assert np.abs(guided - prefix)[0, 0, :2].max() < 0.5 * np.abs(free - prefix)[0, 0, :2].max()


def test_what_cannot_be_relative_is_refused() -> None:
    with pytest.raises(SpecMismatch, match="part 'hand' of robot 'two_joints' has no `measured` observation"):
        make("flow", relative_parts=["hand"])
    with pytest.raises(SpecMismatch, match=r"is measured by 'state'. Add it to policy.inputs"):
        make("flow", inputs=["goal"], history={})
    with pytest.raises(SpecMismatch, match="has no action part 'arms'"):
        make("flow", relative_parts=["arms"])
    with pytest.raises(UsageError, match="needs the observations"):
        make("flow").normalize_actions(torch.zeros(2, 2, 3))
