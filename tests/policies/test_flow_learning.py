"""What a flow learns: two ways of doing a thing, to go on from what was committed, and a task from demonstrations."""

import numpy as np
import pytest
import torch

from dovetail.config.load import load
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import ActContext
from dovetail.policies.flow import Flow, FlowConfig
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


def right_way(phase):
    """Past the obstacle on the right, normalised [B, H, A]; on the left is its mirror image."""
    along = phase[..., None] + np.arange(HORIZON) / HORIZON  # [B, H]
    return np.stack((0.3 + 0.5 * np.sin(along), 0.6 * np.cos(along)), axis=-1).astype(np.float32)


def trained(num_updates=700, *, guidance=None, garbage=None, short=False):
    """On both ways, half and half; chunks that end early hold `garbage` past their end."""
    config = FlowConfig(horizon=HORIZON, hidden=64, num_layers=2, guidance=guidance or {})
    policy = Flow(config, robot=ROBOT, seed=0)
    parameters = [p for module in policy.components.values() for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    for _ in range(num_updates):
        phase = rng.uniform(0, 1, 128).astype(np.float32)
        actions = right_way(phase) * rng.choice((-1, 1), (128, 1, 1)).astype(np.float32)
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
def two_ways():
    return trained()


def normalized(policy, actions):
    return policy.normalize_actions(torch.from_numpy(actions)).numpy()


def test_both_ways_appear_and_hardly_anything_between(two_ways):
    phase = np.full((200, 1), 0.4, np.float32)
    chunks = normalized(two_ways, two_ways.act({"phase": phase}, ActContext(seed=0)).actions)
    right = right_way(phase[:1, 0])[0]
    to_right, to_left = (np.abs(chunks - way).mean((1, 2)) for way in (right, -right))
    assert 0.3 < (to_right < to_left).mean() < 0.7
    assert (np.minimum(to_right, to_left) < 0.15).mean() > 0.85  # the two are 1.0 apart


def test_a_calm_chunk_is_one_of_the_ways(two_ways):
    """From no noise at all it would be the mean of both, where nobody ever went."""
    phase = np.linspace(0, 1, 11, dtype=np.float32)
    chunks = normalized(two_ways, two_ways.act({"phase": phase[:, None]}, ActContext(deterministic=True)).actions)
    right = right_way(phase)
    nearest = np.minimum(*(np.abs(chunks - way).mean((1, 2)) for way in (right, -right)))
    assert nearest.mean() < 0.15


@pytest.mark.parametrize("garbage", [7.0, np.nan])
def test_what_is_masked_teaches_nothing(garbage):
    """Bit for bit: neither as a target nor as what the network sees beside the rest."""
    one, other = (trained(5, garbage=junk, short=True).weights()["actor"] for junk in (0.0, garbage))
    assert all(np.isfinite(value).all() for value in one.values())
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_loss_over_nothing_is_nothing():
    policy = Flow(FlowConfig(horizon=HORIZON), robot=ROBOT)
    features, actions = torch.zeros(3, 1), torch.full((3, HORIZON, NUM_ACTIONS), torch.nan)
    assert policy.imitation_loss(features, actions, torch.zeros(3, HORIZON, dtype=torch.bool)).item() == 0.0


def test_chunks_learn_from_the_parts_that_are_there():
    """From nothing but chunks that end early: the ends are learned from those that reach them."""
    policy = trained(garbage=0.9, short=True)
    phase = np.linspace(0, 1, 11, dtype=np.float32)
    chunks = normalized(policy, policy.act({"phase": phase[:, None]}, ActContext(deterministic=True)).actions)
    right = right_way(phase)
    nearest = np.minimum(*(np.abs(chunks - way).mean(2) for way in (right, -right)))  # [B, H]
    assert nearest.mean(0).max() < 0.25


@pytest.mark.parametrize("schedule", ["exp", "ones", "zeros"])
def test_a_guided_chunk_goes_on_from_what_was_committed(two_ways, schedule):
    policy = Flow(
        FlowConfig(horizon=HORIZON, hidden=64, num_layers=2, guidance={"schedule": schedule}), robot=ROBOT
    )
    policy.components["actor"].load_state_dict(two_ways.components["actor"].state_dict())
    delay, horizon = 3, 3
    seen = {"phase": np.random.default_rng(1).uniform(0, 0.6, (100, 1)).astype(np.float32)}
    plain = policy.act(seen, ActContext(seed=3)).actions
    # the robot goes the other way than this noise would
    way = right_way(seen["phase"][:, 0])
    is_right = (normalized(policy, plain) * way).sum((1, 2)) > 0
    chosen = np.where(is_right[:, None, None], -way, way)
    low, high = ROBOT.action.bounds
    prefix = (low + (chosen + 1) / 2 * (high - low)).astype(np.float32)
    guided = policy.act(seen, ActContext(seed=3, prefix=prefix, delay=delay, horizon=horizon)).actions
    missed = [np.abs(normalized(policy, a) - chosen)[:, :delay].mean((1, 2)) for a in (plain, guided)]  # [B]
    assert missed[0].min() > 0.8
    # where the noise has settled on its own way before it is pulled, the flow's derivative is 0 and nothing can be done
    assert np.median(missed[1]) < 0.05 * np.median(missed[0])
    assert (missed[1] < 0.15).mean() > 0.75
    # what nobody committed to goes the same way, because the flow knows that nobody changes sides
    follows = (normalized(policy, guided)[:, -horizon:] * chosen[:, -horizon:]).sum((1, 2)) > 0
    assert np.array_equal(follows, missed[1] < 0.5)


TOY = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 40, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm"}
operator: {type: none}
actor: {type: sequential, execution_horizon: 4}
policy: {type: flow, horizon: 8, hidden: 64, num_layers: 2, inputs: [ee_pose, goal]}
algorithm: {type: imitation}
learner: {utd: 1, warmup_updates: 0, bc_updates: 800}
run: {demos: 40, env_steps: 40, eval_episodes: 20, untrained_episodes: 20, showcase_episodes: 1}
"""


def test_it_learns_a_task_from_demonstrations(tmp_path):
    """Scripted demonstrations, through replay and imitation, to calm rollouts with the sequential actor."""
    (tmp_path / "toy.yaml").write_text(TOY)
    run = InlineRun(RunFolder.create(tmp_path / "run", load([tmp_path / "toy.yaml"], ())))
    run.run()
    assert run.status.rates["untrained"].rate <= 0.1
    assert run.status.rates["cloning"].rate >= 0.9
