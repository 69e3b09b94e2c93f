"""Training of the flow: two modes, continuation of a prefix, a task from demonstrations."""

import numpy as np
import pytest
import torch

from dovetail.config.load import load
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun

HORIZON, NUM_ACTIONS = 8, 2
ROBOT = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={"phase": ArraySpec(shape=(1,))},
    action=ArraySpec(shape=(NUM_ACTIONS,), low=(-1.0, 0.0), high=(1.0, 10.0)),
    action_kind="ee_delta",
    control_hz=10.0,
)


def right_path(phase):
    """The path on the right of an obstacle, normalized [B, H, A]. The left path is its mirror image."""
    along = phase[..., None] + np.arange(HORIZON) / HORIZON  # [B, H]
    return np.stack((0.3 + 0.5 * np.sin(along), 0.6 * np.cos(along)), axis=-1).astype(np.float32)


def train(num_updates=700, *, guidance=None, garbage=None, short=False):
    """Train on both paths equally. With `short`, chunks end early and contain `garbage` after their end."""
    config = FlowConfig(horizon=HORIZON, hidden=64, num_layers=2, guidance=guidance or {})
    policy = Flow(config, robot=ROBOT, seed=0)
    parameters = [p for module in policy.components.values() for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    for _ in range(num_updates):
        phase = rng.uniform(0, 1, 128).astype(np.float32)
        actions = right_path(phase) * rng.choice((-1, 1), (128, 1, 1)).astype(np.float32)
        mask = np.ones((128, HORIZON), bool)
        if short:
            mask = np.arange(HORIZON) < rng.integers(1, HORIZON + 1, (128, 1))
            actions[~mask] = garbage
        features = policy.features({"phase": torch.from_numpy(phase[:, None])})
        loss = policy.imitation_loss(
            features, torch.from_numpy(actions), torch.from_numpy(mask), generator=generator
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


@pytest.fixture(scope="module")
def two_modes():
    return train()


def normalized(policy, actions):
    return policy.normalize_actions(torch.from_numpy(actions)).numpy()


def test_samples_show_both_modes_and_little_between(two_modes):
    phase = np.full((200, 1), 0.4, np.float32)
    chunks = normalized(two_modes, two_modes.act({"phase": phase}, ActContext(seed=0)).actions)
    right = right_path(phase[:1, 0])[0]
    to_right, to_left = (np.abs(chunks - path).mean((1, 2)) for path in (right, -right))
    assert 0.3 < (to_right < to_left).mean() < 0.7
    assert (np.minimum(to_right, to_left) < 0.15).mean() > 0.85  # the two are 1.0 apart


def test_deterministic_chunk_is_one_of_the_modes(two_modes):
    """Without noise it would be the mean of both modes."""
    phase = np.linspace(0, 1, 11, dtype=np.float32)
    chunks = normalized(
        two_modes, two_modes.act({"phase": phase[:, None]}, ActContext(deterministic=True)).actions
    )
    right = right_path(phase)
    nearest = np.minimum(*(np.abs(chunks - path).mean((1, 2)) for path in (right, -right)))
    assert nearest.mean() < 0.15


@pytest.mark.parametrize("garbage", [7.0, np.nan])
def test_masked_actions_do_not_change_the_weights(garbage):
    """Neither as a target nor as an input, bit for bit."""
    first, second = (train(5, garbage=filling, short=True).weights()["actor"] for filling in (0.0, garbage))
    assert all(np.isfinite(value).all() for value in first.values())
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_loss_without_valid_actions_is_zero():
    policy = Flow(FlowConfig(horizon=HORIZON), robot=ROBOT)
    features, actions = torch.zeros(3, 1), torch.full((3, HORIZON, NUM_ACTIONS), torch.nan)
    assert policy.imitation_loss(features, actions, torch.zeros(3, HORIZON, dtype=torch.bool)).item() == 0.0


@pytest.mark.extended
def test_training_on_incomplete_chunks_learns_whole_chunks():
    policy = train(garbage=0.9, short=True)
    phase = np.linspace(0, 1, 11, dtype=np.float32)
    chunks = normalized(policy, policy.act({"phase": phase[:, None]}, ActContext(deterministic=True)).actions)
    right = right_path(phase)
    nearest = np.minimum(*(np.abs(chunks - path).mean(2) for path in (right, -right)))  # [B, H]
    assert nearest.mean(0).max() < 0.25


@pytest.mark.parametrize("schedule", ["exp", "ones", "zeros"])
def test_guided_chunk_continues_the_prefix(two_modes, schedule):
    policy = Flow(
        FlowConfig(horizon=HORIZON, hidden=64, num_layers=2, guidance={"schedule": schedule}), robot=ROBOT
    )
    policy.components["actor"].load_state_dict(two_modes.components["actor"].state_dict())
    delay, horizon = 3, 3
    seen = {"phase": np.random.default_rng(1).uniform(0, 0.6, (100, 1)).astype(np.float32)}
    plain = policy.act(seen, ActContext(seed=3)).actions
    # the prefix follows the other mode than this noise
    right = right_path(seen["phase"][:, 0])
    is_right = (normalized(policy, plain) * right).sum((1, 2)) > 0
    chosen = np.where(is_right[:, None, None], -right, right)
    low, high = ROBOT.action.bounds
    prefix = (low + (chosen + 1) / 2 * (high - low)).astype(np.float32)
    guided = policy.act(seen, ActContext(seed=3, prefix=prefix, delay=delay, horizon=horizon)).actions
    errors = [np.abs(normalized(policy, a) - chosen)[:, :delay].mean((1, 2)) for a in (plain, guided)]  # [B]
    assert errors[0].min() > 0.8
    # where the flow has already decided on a mode, its derivative is 0 and guidance has no effect
    assert np.median(errors[1]) < 0.05 * np.median(errors[0])
    assert (errors[1] < 0.15).mean() > 0.75
    # the rest of the chunk stays in the same mode as the prefix
    follows = (normalized(policy, guided)[:, -horizon:] * chosen[:, -horizon:]).sum((1, 2)) > 0
    assert np.array_equal(follows, errors[1] < 0.5)


TOY = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 40, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm"}
operator: {type: none}
actor: {type: sequential, execution_horizon: 4}
policy: {type: flow, horizon: 8, hidden: 64, num_layers: 2, inputs: [ee_pose, goal]}
algorithm: {type: imitation}
learner: {utd: 1, warmup_updates: 0, bc_updates: 800}
run: {demos: 40, env_steps: 40, eval_episodes: 20, untrained_episodes: 20, video_episodes: 1}
"""


@pytest.mark.extended
def test_flow_learns_a_task_from_demonstrations(tmp_path):
    """Scripted demonstrations, replay, imitation, and deterministic rollouts with the sequential actor."""
    (tmp_path / "toy.yaml").write_text(TOY)
    run = InlineRun(RunFolder.create(tmp_path / "run", load([tmp_path / "toy.yaml"], ())))
    run.run()
    assert run.status.evaluations["untrained"].success.rate <= 0.1
    assert run.status.evaluations["cloning"].success.rate >= 0.9
