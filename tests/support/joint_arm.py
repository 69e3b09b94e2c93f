"""A toy arm: two joints that reach their command within one tick, and policies with chunks of four actions."""

import dataclasses

import numpy as np

from dovetail.core.action_parts import ActionPart
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import (
    ActContext,
    Episode,
    EpisodeStart,
    Labels,
    Observation,
    Outcome,
    Purpose,
    Segment,
    View,
)
from dovetail.learn.algorithms.imitation import Imitation
from dovetail.learn.learner import Learner
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.replay.mapped import MappedReplay

HORIZON = 4
_JOINT = {"kind": "joint_target", "unit": "rad", "low": (-1.0,), "high": (1.0,), "max_speed": (5.0,)}
ARM = RobotSpec(
    name="arm",
    embodiment="toy",
    observation={"joint_pos": ArraySpec(shape=(2,))},
    action=ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
    action_kind="joint_target",
    control_hz=10.0,
)


TWO_ARMS = RobotSpec(
    name="arms",
    embodiment="toys",
    observation={"joint_pos": ArraySpec(shape=(2,))},
    parts=(
        ActionPart(name="left", names=("l",), measured="joint_pos[0:1]", **_JOINT),
        ActionPart(name="right", names=("r",), measured="joint_pos[1:2]", **_JOINT),
    ),
    control_hz=10.0,
)


def make_flow(robot=ARM, **config):
    return Flow(FlowConfig(**{"horizon": HORIZON, "hidden": 32, "num_layers": 1, **config}), robot=robot, seed=0)


def make_episode(
    name,
    actions,
    *,
    start=(0.0, 0.0),
    human=(),
    demo=False,
    success=True,
    rewards=None,
    robot=ARM,
    human_axes=None,
):
    """An episode in which each action is reached, and its labels. `human` are the ticks of a person (all, in a demo), who
    drives `human_axes` (None: all)."""
    actions = np.asarray(actions, np.float32)
    num_steps = len(actions)
    seen = np.concatenate((np.asarray([start], np.float32), actions))
    source = np.isin(np.arange(num_steps), range(num_steps) if demo else human).astype(np.uint8)
    columns = {
        "time_ns": np.arange(num_steps, dtype=np.int64),
        "observation/joint_pos": seen[:-1],
        "proposed": actions,
        "executed": actions,
        "source": source,
        "policy_version": np.zeros(num_steps, np.int64),
        "chunk_id": np.full(num_steps, -1, np.int64),
        "chunk_index": np.zeros(num_steps, np.int64),
    }
    if human_axes is not None:
        columns["extra/human_axes"] = source[:, None].astype(np.bool_) & np.array(human_axes, np.bool_)
    begin = EpisodeStart(
        id=name,
        task="toy",
        prompt="",
        robot=robot,
        operator="test",
        purpose=Purpose.DEMO if demo else Purpose.ONLINE,
        seed=0,
        config_hash="",
        started_unix_ns=0,
    )
    last = Observation(time_ns=num_steps, values={"joint_pos": seen[-1]})
    segment = Segment(episode_id=name, first=0, final=True, columns=columns, last_observation=last)
    given = np.zeros(num_steps, np.float32)
    given[-1] = float(success)
    discounts = np.ones(num_steps, np.float32)
    discounts[-1] = 0.0
    labels = Labels(
        episode_id=name,
        rewards=given if rewards is None else np.asarray(rewards, np.float32),
        discounts=discounts,
        success=success,
        confidence=1.0,
        labeler="test",
        version="1",
    )
    outcome = Outcome.SUCCESS if success else Outcome.FAILURE
    return Episode.of(begin, [segment], outcome=outcome), labels


def fill(folder, *episodes):
    replay = MappedReplay(folder=folder)
    replay.open()
    for episode, labels in episodes:
        replay.add(episode, labels)
    return replay


class ImitateEverything(Imitation):
    """Clones every step, also the policy's own and failures: a baseline."""

    @property
    def sample_request(self):
        request = super().sample_request
        return dataclasses.replace(request, rows={View(): sum(request.rows.values())}, waits=True)


def spy_on(policy):
    """Record (actions, mask) of each call of `imitation_loss`."""
    given, loss = [], policy.imitation_loss

    def imitation_loss(features, actions, mask=None, *, generator=None):
        given.append((actions.clone(), None if mask is None else mask.clone()))
        return loss(features, actions, mask, generator=generator)

    policy.imitation_loss = imitation_loss
    return given


def chunks_of(policy, states, *, seed=0):
    """The policy's chunks in these states, [B, H, A]."""
    return policy.act({"joint_pos": np.asarray(states, np.float32)}, ActContext(seed=seed)).actions


def learner_of(algorithm, replay, *, robot=ARM, **settings):
    return Learner(algorithm=algorithm, replay=replay, robot=robot, rng=np.random.default_rng(0), **settings)
