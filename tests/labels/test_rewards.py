"""Rewards compared with values computed by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.types import Episode, Outcome, Segment
from dovetail.labels._rewards import Stage, progress_rewards, stages
from dovetail.labels.chain import LabelerChain
from dovetail.labels.outcome import OutcomeConfig, OutcomeLabeler


def test_progress_reward_is_change_of_progress() -> None:
    """Absolute progress as a reward would favor slow episodes."""
    quick = progress_rewards(4, [0, 4], [0.0, 1.0])
    assert quick == pytest.approx([0.25] * 4)
    slow = progress_rewards(40, [0, 4, 40], [0.0, 0.9, 1.0])
    assert slow.sum() == pytest.approx(quick.sum())
    there_and_back = progress_rewards(4, [0, 2, 4], [0.0, 0.8, 0.0])
    assert there_and_back == pytest.approx([0.4, 0.4, -0.4, -0.4])
    assert there_and_back.sum() == pytest.approx(0.0)


GRASPED = Stage(metric="grasped", at_least=1.0, reward=0.2)
LIFTED = Stage(metric="height", at_least=0.1, reward=0.3)


@pytest.mark.parametrize(
    ("grasped", "height", "rewards"),
    [
        ([0, 1, 1, 1], [0, 0, 0.1, 0.2], [0, 0.2, 0.3, 0]),
        ([0, 1, 0, 1], [0, 0, 0.2, 0.2], [0, 0.2, 0.3, 0]),  # reached twice: rewarded once
        ([0, 0, 1, 1], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0]),  # both at once
        ([0, 0, 0, 0], [0, 0, 0.0, 0.09], [0, 0, 0, 0]),
        (
            [0, 0, 1, 1, 1],
            [0.1, 0.1, 0.1, 0.2, 0.3],
            [0, 0.2, 0, 0],
        ),  # T + 1: high from the beginning earns nothing
    ],
)
def test_stage_reward_is_given_once_when_reached(
    grasped: list[float], height: list[float], rewards: list[float]
) -> None:
    measured = {"grasped": np.array(grasped), "height": np.array(height)}
    assert stages(4, (GRASPED, LIFTED), measured) == pytest.approx(rewards)


def test_outcome_labeler_adds_stage_rewards(make_episode: Callable[..., Episode]) -> None:
    bare = make_episode(Outcome.SUCCESS)
    columns = {**bare.segments[0].columns, "metric/num_in_box": np.array([0, 1, 2], np.float32)}
    segment = Segment(
        episode_id="e1", first=0, final=True, columns=columns, last_observation=bare.last_observation
    )
    episode = Episode.of(bare.start, [segment], outcome=Outcome.SUCCESS)
    cubes = tuple(Stage(metric="num_in_box", at_least=number, reward=0.25) for number in (1, 2, 3))
    labels = OutcomeLabeler(OutcomeConfig(stages=cubes, step_penalty=0.1)).label(episode)
    assert labels.rewards == pytest.approx([-0.1, 0.15, 1.15])
    assert labels.version != OutcomeLabeler(OutcomeConfig(step_penalty=0.1)).label(episode).version
    with pytest.raises(UsageError, match=r"'num_in_bx', which does not exist here\. Did you mean 'num_in_box'\?"):
        OutcomeLabeler(OutcomeConfig(stages=(Stage(metric="num_in_bx", at_least=1, reward=1),))).label(episode)


def test_stage_with_unknown_metric_is_refused_before_recording() -> None:
    """A labeler that needs an unrecorded key must not silently drop every episode."""
    chain = LabelerChain([OutcomeLabeler(OutcomeConfig(stages=(GRASPED,)))])
    assert chain.reads_metrics
    chain.check_metrics({"grasped", "distance_mm"})
    with pytest.raises(UsageError, match="labeler 'outcome' has a stage with metric 'grasped'"):
        chain.check_metrics({"distance_mm"})
    assert not LabelerChain([OutcomeLabeler()]).reads_metrics
