"""From a judgement to what steps earn, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.types import Episode, Outcome, Segment
from dovetail.labels._rewards import Stage, progress_rewards, stages
from dovetail.labels.outcome import OutcomeConfig, OutcomeLabeler
from dovetail.labels.chain import LabelerChain


def test_progress_is_paid_by_its_change() -> None:
    """Trap: absolute progress, summed up, pays whoever dawdles."""
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
        ([0, 1, 0, 1], [0, 0, 0.2, 0.2], [0, 0.2, 0.3, 0]),  # lost and found: paid once
        ([0, 0, 1, 1], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0]),  # both at once
        ([0, 0, 0, 0], [0, 0, 0.0, 0.09], [0, 0, 0, 0]),
        (
            [0, 0, 1, 1, 1],
            [0.1, 0.1, 0.1, 0.2, 0.3],
            [0, 0.2, 0, 0],
        ),  # T + 1: high from the beginning earns nothing
    ],
)
def test_a_stage_is_paid_when_it_is_first_reached(
    grasped: list[float], height: list[float], rewards: list[float]
) -> None:
    measured = {"grasped": np.array(grasped), "height": np.array(height)}
    assert stages(4, (GRASPED, LIFTED), measured) == pytest.approx(rewards)


def test_stages_of_an_outcome(make_episode: Callable[..., Episode]) -> None:
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
    with pytest.raises(UsageError, match=r"'num_in_bx', which nobody measures here\. Did you mean 'num_in_box'\?"):
        OutcomeLabeler(OutcomeConfig(stages=(Stage(metric="num_in_bx", at_least=1, reward=1),))).label(episode)


def test_stages_that_nobody_measures_are_refused_before_anything_is_recorded() -> None:
    """Trap: a labeler required a key that nobody recorded, swallowed the error and dropped every episode."""
    panel = LabelerChain([OutcomeLabeler(OutcomeConfig(stages=(GRASPED,)))])
    assert panel.reads_metrics
    panel.check_metrics({"grasped", "distance_mm"})
    with pytest.raises(UsageError, match="labeler 'outcome' has a stage of metric 'grasped'"):
        panel.check_metrics({"distance_mm"})
    assert not LabelerChain([OutcomeLabeler()]).reads_metrics
