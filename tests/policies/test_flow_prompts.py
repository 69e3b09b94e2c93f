"""A flow policy with several tasks: the prompt decides the action."""

import numpy as np
import pytest
import torch

from dovetail.config.load import load
from dovetail.core.errors import UsageError
from dovetail.core.prompts import MAX_PROMPT_BYTES, decode_prompt, encode_prompt
from dovetail.core.specs import PolicySpec
from dovetail.core.types import (
    ActContext,
    Episode,
    EpisodeOrder,
    EpisodeStart,
    Labels,
    Observation,
    Outcome,
    Purpose,
    Segment,
    View,
)
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.learn.algorithms.imitation import Imitation, ImitationConfig
from dovetail.learn.batches import Batches
from dovetail.learn.learner import Learner
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.replay.mapped import MappedReplay
from dovetail.runs.assembly.build import build_assembly
from dovetail.testing import check_policy
from dovetail.testing.fakes import FakeTask
from support.toy_arm import ROBOT
from support.toy_run import TOY

LEFT, RIGHT = "push the cube to the left", "push the cube to the right"


def make(**config):
    return Flow(FlowConfig(horizon=4, hidden=32, num_layers=1, prompt_features=16, **config), robot=ROBOT, seed=0)


def demo(number, prompt, action):
    """A demonstration whose observations do not depend on the prompt."""
    size = 12
    columns = {
        "time_ns": np.arange(size) * 10**8,
        "proposed": np.full((size, *ROBOT.action.shape), action, np.float32),
        "source": np.ones(size, np.uint8),
        "policy_version": np.zeros(size, np.int64),
        "chunk_id": np.full(size, -1),
        "chunk_index": np.zeros(size, np.int64),
    }
    columns["executed"] = columns["proposed"]
    for key, spec in ROBOT.observation.items():
        columns[f"observation/{key}"] = np.zeros((size, *spec.shape), spec.dtype)
    name = f"20260101T000000-00000000{number}-arm-000000000000"
    last = Observation(
        time_ns=size * 10**8, values={k: np.zeros(s.shape, s.dtype) for k, s in ROBOT.observation.items()}
    )
    start = EpisodeStart(
        id=name, task="push", prompt=prompt, robot=ROBOT, operator="none", purpose=Purpose.DEMO, seed=0,
        config_hash="", started_unix_ns=number,
    )  # fmt: skip
    segment = Segment(episode_id=name, first=0, final=True, columns=columns, last_observation=last)
    labels = Labels(
        episode_id=name, rewards=np.zeros(size, np.float32), discounts=np.ones(size, np.float32), success=True,
        confidence=1.0, labeler="x", version="1",
    )  # fmt: skip
    return Episode.of(start, [segment], outcome=Outcome.SUCCESS), labels


def inputs(spec, prompt):
    seen = {key: np.zeros((1, *array.shape), array.dtype) for key, array in spec.observation.items()}
    return {**seen, "prompt": encode_prompt(prompt)[None]}


def test_prompted_flow_keeps_the_policy_contract():
    policy = make()
    assert policy.spec.prompted
    assert PolicySpec.from_json(policy.spec.to_json()) == policy.spec
    check_policy(make)


@pytest.mark.extended
def test_same_observation_with_another_prompt_gives_another_action(tmp_path):
    """Trained through the replay, which stores the prompt of each episode."""
    torch.manual_seed(0)
    policy, (low, high) = make(), ROBOT.action.bounds
    replay = MappedReplay(
        MappedReplay.Config(capacity_rows=1000), folder=tmp_path, keys=tuple(policy.spec.observation)
    )
    replay.open()
    middle, reach = (low + high) / 2, (high - low) / 2
    for number in range(6):
        prompt, share = ((LEFT, 0.5), (RIGHT, -0.5))[number % 2]
        replay.add(*demo(number, prompt, middle + share * reach))
    learner = Learner(
        algorithm=Imitation(ImitationConfig(batch_size=32), policy=policy),
        replay=replay,
        robot=ROBOT,
        rng=np.random.default_rng(0),
        utd=1,
        start_after_steps=0,
        num_ahead=0,
    )
    learner.warm_up(300)
    for prompt, share in ((LEFT, 0.5), (RIGHT, -0.5), (f"please {LEFT}", 0.5)):  # known words and a new one
        actions = policy.act(inputs(policy.spec, prompt), ActContext(deterministic=True)).actions[0]
        np.testing.assert_allclose((actions - middle) / reach, share, atol=0.2)
    replay.close()


def test_replay_returns_the_prompt_of_each_row(tmp_path):
    replay = MappedReplay(MappedReplay.Config(capacity_rows=200, keep_demos=False), folder=tmp_path, keys=())
    replay.open()
    for number in range(30):  # more than fit, so the oldest are removed
        replay.add(*demo(number, text(number), np.float32(number / 100)))
    into = {
        "action": np.zeros((64, *ROBOT.action.shape), np.float32),
        "prompt": np.zeros((64, MAX_PROMPT_BYTES), np.uint8),
    }
    replay.sample(into, view=View(), rng=np.random.default_rng(0))
    for action, prompt in zip(into["action"], into["prompt"], strict=True):
        assert bytes(prompt).rstrip(b"\0").decode() == text(round(float(action[0]) * 100))
    assert len(list((tmp_path / "prompts").iterdir())) == 10  # each long prompt once, short ones in the record
    replay.close()


def text(number):
    """A third of them are long, and end in different letters."""
    return f"task {number}" if number % 3 else "ü" * 300 + f" task {number}"


def test_batch_is_as_wide_as_its_longest_prompt(tmp_path):
    replay = MappedReplay(
        MappedReplay.Config(capacity_rows=500, keep_demos=False), folder=tmp_path, keys=("joint_pos",)
    )
    replay.open()
    policy = Flow(FlowConfig(horizon=1, prompt_features=8, inputs=("joint_pos",)), robot=ROBOT, seed=0)
    request = Imitation(ImitationConfig(batch_size=16), policy=policy).sample_request
    batches = Batches(request=request, robot=ROBOT, replay=replay, rng=np.random.default_rng(0), num_ahead=0)
    replay.add(*demo(1, "short", np.float32(0.1)))
    assert [tuple(batch["prompt"].shape) for batch in batches.take(1)] == [(16, 256)]
    replay.add(*demo(2, "long " * 200, np.float32(0.2)))
    for batch in batches.take(1):
        assert batch["prompt"].shape == (16, 1024)
        wide = torch.nn.functional.pad(batch["prompt"], (0, 1024))
        encoder = policy.encoder["prompt"]
        torch.testing.assert_close(encoder(batch["prompt"]), encoder(wide))  # padding does not count
    replay.close()


LONG = "ö" * 1000
RUN = TOY.replace("policy: {type: gaussian_mlp, hidden: [32, 32]}", "policy: {type: flow, prompt_features: 8}")


def test_long_prompt_reaches_policy_episode_and_log(tmp_path, monkeypatch):
    (tmp_path / "toy.yaml").write_text(RUN)
    monkeypatch.setattr(FakeTask, "prompt", LONG)
    seen, act = [], Flow.act
    monkeypatch.setattr(
        Flow, "act", lambda self, inputs, context: seen.append(inputs["prompt"]) or act(self, inputs, context)
    )
    assembly = build_assembly(load([tmp_path / "toy.yaml"]))
    try:
        spool = Spool(tmp_path / "spool")
        order = EpisodeOrder(
            id="20260101T000000-000000001-arm-000000000000", purpose=Purpose.EVAL, seed=1, index=0, config_hash="0"
        )
        episode = assembly.actor_for(Purpose.EVAL, spool=spool).run(order)
    finally:
        assembly.close()
    assert seen[-1].shape == (1, 2048) and decode_prompt(seen[-1][0]) == LONG
    log = EpisodeLog(tmp_path / "episodes")
    log.commit(spool.load(episode.id))
    assert log.load(episode.id).prompt == log.manifest(episode.id).prompt == LONG


def test_prompt_over_the_limit_is_refused_before_anything_moves(tmp_path, monkeypatch):
    (tmp_path / "toy.yaml").write_text(RUN)
    monkeypatch.setattr(FakeTask, "prompt", "x" * 5000)
    with pytest.raises(UsageError, match="has 5000 bytes, but at most 4096"):
        build_assembly(load([tmp_path / "toy.yaml"]))


@pytest.mark.parametrize("prompt_features", [0, 8])
def test_spec_is_prompted_only_with_prompt_features(prompt_features):
    policy = Flow(FlowConfig(horizon=2, prompt_features=prompt_features), robot=ROBOT, seed=0)
    assert policy.spec.prompted is (prompt_features > 0)
    assert ("encoder" in policy.components) is (prompt_features > 0)
