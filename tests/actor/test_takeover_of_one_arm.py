"""A person takes over some axes of the action; the policy keeps the others."""

import numpy as np
import pytest

from dovetail.actor.actors import ActorConfig, NaiveActor, SequentialActor
from dovetail.actor.control import HUMAN_AXES
from dovetail.core.types import HumanInput, Source
from support.acting import ChunkPolicy, FakeWorkcell, Person, order

LEFT = np.arange(24) < 12


class MovesAll(ChunkPolicy):
    """Moves all joints by a bit more with each action of its chunk."""

    def act(self, observations, context):
        chunk = super().act(observations, context)
        here = observations["joint_pos"][0]
        chunk.actions[0] = here + 0.01 * (1 + np.arange(self.spec.horizon)[:, None])
        return chunk


def run(*, inputs, kind=SequentialActor, probe=True, policy=True):
    cell = FakeWorkcell(bimanual=True, max_steps=8)
    made = MovesAll(cell.robot.spec) if policy else None
    nobody = np.zeros(24, np.bool_)
    actor = kind(
        ActorConfig(replan_after_takeover_s=0.0),
        robot=cell.robot,
        task=cell.task,
        operator=Person(inputs),
        policy=made,
        clock=cell.clock,
        probe=(lambda: {HUMAN_AXES: nobody}) if probe else None,
    )
    return cell, made, actor.run(order())


def drives(value, *, axes=LEFT):
    return HumanInput(action=np.full(24, value, np.float32), axes=axes)


@pytest.mark.parametrize("kind", [SequentialActor, NaiveActor])
def test_policy_continues_with_the_other_arm(kind):
    _, policy, episode = run(kind=kind, inputs={2: drives(0.1), 3: drives(0.1)})
    joints, executed = episode.column("observation/joint_pos"), episode.column("executed")
    for tick in (2, 3):
        np.testing.assert_allclose(
            executed[tick, ~LEFT] - joints[tick, ~LEFT], 0.01, atol=1e-5
        )  # the plan goes on
        assert np.abs(executed[tick, LEFT] - 0.1).max() < np.abs(joints[tick, LEFT] - 0.1).max() + 1e-6
    assert policy.calls == run(kind=kind, inputs={})[1].calls  # the plan stayed valid


def test_step_is_human_and_a_column_has_the_axes():
    _, _, episode = run(inputs={2: drives(0.1), 5: HumanInput(action=np.zeros(24, np.float32))})
    source, axes = episode.column("source"), episode.column(f"extra/{HUMAN_AXES}")
    assert [index for index, one in enumerate(source) if one == Source.HUMAN] == [2, 5]
    assert (axes[2] == LEFT).all() and axes[5].all()
    assert not np.delete(axes, (2, 5), axis=0).any()


def test_proposed_action_has_the_axes_of_both():
    _, _, episode = run(inputs={2: drives(0.1)})
    proposed, joints = episode.column("proposed")[2], episode.column("observation/joint_pos")[2]
    np.testing.assert_allclose(proposed[LEFT], 0.1)
    np.testing.assert_allclose(proposed[~LEFT], joints[~LEFT] + 0.01, atol=1e-5)


def test_without_a_policy_the_other_arm_stands_still():
    _, _, episode = run(policy=False, inputs={tick: drives(0.1) for tick in range(8)})
    joints = episode.column("observation/joint_pos")
    np.testing.assert_allclose(joints[:, ~LEFT], np.repeat(joints[:1, ~LEFT], len(joints), axis=0), atol=1e-6)
    assert np.abs(joints[-1, LEFT] - joints[0, LEFT]).max() > 0.05


def test_runs_without_such_operators_record_no_column():
    _, _, episode = run(probe=False, inputs={2: HumanInput(action=np.zeros(24, np.float32))})
    assert f"extra/{HUMAN_AXES}" not in episode.segments[0].columns
