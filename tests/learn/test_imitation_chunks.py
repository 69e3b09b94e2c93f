"""Cloning chunks: windows have the policy's length; padding and actions of the policy are not cloned."""

import dataclasses

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from dovetail.core.errors import CheckpointError, UsageError
from dovetail.core.prompts import decode_prompt
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Episode, EpisodeStart, Labels, Observation, Outcome, Purpose, Segment
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.algorithms.rlpd import RLPD, RLPDConfig
from dovetail.learn.batches import batch_arrays
from dovetail.learn.learner import Learner
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.replay.mapped import MappedReplay
from dovetail.testing import check_algorithm
from support.prompt_changes import with_prompts

HORIZON = 4


@pytest.fixture
def make_flow(robot):
    def make(**config):
        config = {"horizon": HORIZON, "hidden": 16, "num_layers": 1, **config}
        return Flow(FlowConfig(**config), robot=robot, seed=0)

    return make


class Spy:
    """An Imitation whose policy records the arguments of its loss."""

    def __init__(self, policy):
        self.given = []
        loss = policy.imitation_loss

        def imitation_loss(features, actions, mask=None, *, generator=None):
            self.given.append((actions.clone(), None if mask is None else mask.clone()))
            return loss(features, actions, mask, generator=generator)

        policy.imitation_loss = imitation_loss
        self.algorithm = Imitation(ImitationConfig(batch_size=8), policy=policy)


def chunks(rows=8, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {
        "observation/joint_pos": rng.normal(size=(rows, 3)).astype(np.float32),
        "action": rng.uniform(-1, 1, (rows, HORIZON, 2)).astype(np.float32),
        "action/mask": np.ones((rows, HORIZON), np.bool_),
        "human": np.ones((rows, HORIZON), np.bool_),
    }
    return TensorDict({name: torch.from_numpy(values) for name, values in arrays.items()}, batch_size=[rows])


def test_requests_windows_of_the_policy(make_flow, policy):
    window = Imitation(ImitationConfig(), policy=make_flow(history={"joint_pos": 3})).sample_request.window
    assert window.horizon == HORIZON
    assert window.history == {"joint_pos": 3}
    assert Imitation(ImitationConfig(), policy=policy).sample_request.window.horizon == 1


@pytest.mark.parametrize("junk", [5.0, np.nan])
def test_padding_does_not_change_the_loss(make_flow, junk):
    weights = []
    for filling in (0.0, junk):
        algorithm = Imitation(ImitationConfig(), policy=make_flow())
        batch = chunks()
        batch["action/mask"][:4, 2:] = False
        batch["action"][:4, 2:] = filling
        metrics = [algorithm.update(batch) for _ in range(3)]
        assert all(np.isfinite(m["imitation_loss"]) for m in metrics)
        weights.append(algorithm.policy_weights()["actor"])
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_actions_after_a_hand_back_are_not_cloned(make_flow):
    """A correction's window may end in actions of the policy, which are not cloned."""
    spy, batch = Spy(make_flow()), chunks(4)
    batch["human"][0] = torch.tensor([1, 1, 0, 0])  # handed back
    batch["human"][1] = torch.tensor([1, 0, 1, 1])  # and taken over again: another correction
    batch["human"][2] = 0  # a demonstration that no person gave
    batch["action/mask"][3] = torch.tensor([1, 1, 1, 0])
    spy.algorithm.update(batch)
    ((_, mask),) = spy.given
    assert mask.int().tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]]


def test_single_actions_have_no_mask(policy, batch):
    spy = Spy(policy)
    spy.algorithm.update(batch)
    ((actions, mask),) = spy.given
    assert mask is None
    assert actions.shape == (8, 2)


def test_chunk_of_one_action_is_cloned(make_flow, batch):
    spy = Spy(make_flow(horizon=1))
    assert np.isfinite(spy.algorithm.update(batch)["imitation_loss"])
    assert spy.given[0][1] is None


def test_gaussian_policy_uses_the_mask(policy, batch):
    features, actions = policy.features({"joint_pos": batch["observation/joint_pos"]}), batch["action"]
    some = torch.tensor([1, 1, 0, 1, 0, 0, 1, 1], dtype=torch.bool)
    expected = policy.imitation_loss(features[some], actions[some])
    masked = policy.imitation_loss(features, torch.where(some[:, None], actions, torch.nan), some)
    torch.testing.assert_close(masked, expected)
    torch.testing.assert_close(policy.imitation_loss(features, actions[:, None], some[:, None]), expected)
    assert policy.imitation_loss(features, actions, torch.zeros(8, dtype=torch.bool)).item() == 0.0


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"horizon": 1},
        {"history": {"joint_pos": 3}},
        {"inputs": ("joint_pos", "front"), "encoder": {"features": 8}},
    ],
)
def test_passes_check_algorithm(robot, config):
    """A checkpoint also has the generator for the flow's noise and times."""
    camera = ArraySpec(shape=(8, 8, 3), dtype="uint8")
    seeing = dataclasses.replace(robot, observation={**robot.observation, "front": camera})
    config = {"horizon": HORIZON, "hidden": 16, "num_layers": 1, **config}
    check_algorithm(
        lambda: Imitation(
            ImitationConfig(batch_size=8), policy=Flow(FlowConfig(**config), robot=seeing, seed=0), seed=1
        ),
        robot=seeing,
    )


def test_another_seed_draws_other_noise(make_flow):
    losses = [Imitation(ImitationConfig(), policy=make_flow(), seed=s).update(chunks()) for s in (1, 1, 2)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_checkpoint_of_another_flow_raises(make_flow):
    state = Imitation(ImitationConfig(), policy=make_flow()).state_dict()
    with pytest.raises(CheckpointError, match="does not fit algorithm 'imitation'"):
        Imitation(ImitationConfig(), policy=make_flow(horizon=8)).load_state_dict(state)


def test_rlpd_with_flow_policy_names_imitation(make_flow):
    with pytest.raises(UsageError, match=r"cannot compute the density .*'imitation'"):
        RLPD(RLPDConfig(batch_size=8, hidden=(16,)), policy=make_flow())


# ---- from a replay


def demonstration(robot, number, num_steps):
    """Step i sees i and does (i / 10, -i / 10)."""
    ticks = np.arange(num_steps)
    observations = np.repeat(np.arange(num_steps + 1, dtype=np.float32)[:, None], 3, axis=1)
    columns = {
        "time_ns": ticks.astype(np.int64),
        "observation/joint_pos": observations[:-1],
        "executed": np.stack((ticks / 10, -ticks / 10), axis=1).astype(np.float32),
        "source": np.ones(num_steps, np.uint8),
        "policy_version": np.zeros(num_steps, np.int64),
        "chunk_id": np.full(num_steps, -1, np.int64),
        "chunk_index": np.zeros(num_steps, np.int64),
    }
    columns["proposed"] = columns["executed"]
    last = Observation(time_ns=num_steps, values={"joint_pos": observations[-1]})
    start = EpisodeStart(
        id=f"demo-{number}",
        task="toy",
        prompt="",
        robot=robot,
        operator="test",
        purpose=Purpose.DEMO,
        seed=0,
        config_hash="",
        started_unix_ns=number,
    )
    segment = Segment(episode_id=start.id, first=0, final=True, columns=columns, last_observation=last)
    labels = Labels(
        episode_id=start.id,
        rewards=np.zeros(num_steps, np.float32),
        discounts=np.ones(num_steps, np.float32),
        success=True,
        confidence=1.0,
        labeler="test",
        version="1",
    )
    return Episode.of(start, [segment], outcome=Outcome.SUCCESS), labels


@pytest.fixture
def demos(robot, tmp_path):
    replay = MappedReplay(folder=tmp_path / "replay")
    replay.open()
    for number, num_steps in enumerate((6, 3, 1)):
        replay.add(*demonstration(robot, number, num_steps))
    yield replay
    replay.close()


def test_flow_trains_with_the_prompt_of_each_step(make_flow, robot, tmp_path):
    """Observation i is i. The prompt is another one from step 2 on, and again from step 5 on."""
    episode, labels = demonstration(robot, 0, 6)
    texts = ["", "", "reach", "reach", "reach", "grasp"]
    flow = make_flow(prompt_features=4)
    given, features = [], flow.features

    def spy(observations):
        given.append((observations["joint_pos"][:, 0].int().tolist(), observations["prompt"].numpy().copy()))
        return features(observations)

    flow.features = spy
    replay = MappedReplay(folder=tmp_path / "replay")
    replay.open()
    replay.add(with_prompts(episode, {2: "reach", 5: "grasp"}), labels)
    algorithm = Imitation(ImitationConfig(batch_size=8), policy=flow)
    Learner(algorithm=algorithm, replay=replay, robot=robot, rng=np.random.default_rng(0)).warm_up(10)
    replay.close()
    seen = {(step, decode_prompt(row)) for steps, rows in given for step, row in zip(steps, rows, strict=True)}
    assert seen == set(enumerate(texts))


def test_replay_masks_actions_past_the_end(make_flow, demos, robot):
    spy = Spy(make_flow())
    learner = Learner(algorithm=spy.algorithm, replay=demos, robot=robot, rng=np.random.default_rng(0))
    learner.warm_up(40)
    lengths = set()
    for actions, mask in spy.given:
        for chunk, known in zip(actions.numpy(), mask.numpy(), strict=True):
            length = int(known.sum())
            lengths.add(length)
            assert known[:length].all()  # what is there comes first
            first = chunk[0, 0]
            np.testing.assert_allclose(chunk[:length, 0], first + np.arange(length) / 10, atol=1e-6)
            np.testing.assert_allclose(chunk[:, 1], -chunk[:, 0])
    assert lengths == {1, 2, 3, 4}
    assert spy.given[0][0].shape == (8, HORIZON, 2)


def test_cloning_chunks_lowers_the_loss(make_flow, demos, robot):
    algorithm = Imitation(ImitationConfig(batch_size=32, lr=3e-3), policy=make_flow(hidden=32))
    learner = Learner(algorithm=algorithm, replay=demos, robot=robot, rng=np.random.default_rng(0))
    first = learner.warm_up(10)["imitation_loss"]
    learner.warm_up(400)
    assert learner.warm_up(450)["imitation_loss"] < 0.2 * first


def test_next_observations_are_not_sampled(make_flow, robot):
    policy = make_flow()
    request = Imitation(ImitationConfig(), policy=policy).sample_request
    names = set(batch_arrays(request, robot))
    assert {f"observation/{key}" for key in policy.spec.observation} <= names
    assert not [name for name in names if name.startswith("next/")]


def test_learning_rate_decays_to_zero_and_resumes(make_flow):
    config = ImitationConfig(batch_size=8, lr_decay_updates=4)
    algorithm = Imitation(config, policy=make_flow())
    for seed in range(2):
        algorithm.update(chunks(seed=seed))
    resumed = Imitation(config, policy=make_flow())
    resumed.load_state_dict(algorithm.state_dict())
    moved = []
    for seed in range(2, 6):
        before = resumed.policy_weights()["actor"]
        before = {name: values.copy() for name, values in before.items()}
        resumed.update(chunks(seed=seed))
        algorithm.update(chunks(seed=seed))
        after = resumed.policy_weights()["actor"]
        moved.append(max(np.abs(after[name] - before[name]).max() for name in before))
        for name, values in algorithm.policy_weights()["actor"].items():
            np.testing.assert_array_equal(values, after[name])
    assert moved[0] > moved[1] > 0.0
    assert moved[2:] == [0.0, 0.0]
