from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

from dovetail.core.contracts import Labeler
from dovetail.core.errors import UsageError
from dovetail.core.types import Episode, Outcome
from dovetail.labels.outcome import OutcomeConfig, OutcomeLabeler

Make = Callable[..., Episode]
SUCCESS, FAILURE, TIMEOUT, ABORTED = Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIMEOUT, Outcome.ABORTED


def test_outcome_labeler_implements_contract() -> None:
    assert isinstance(OutcomeLabeler(), Labeler)
    assert OutcomeLabeler.Config is OutcomeConfig


@pytest.mark.parametrize(
    ("outcome", "judgement", "rewards", "discounts", "success"),
    [
        (SUCCESS, None, [0, 0, 1], [1, 1, 0], True),
        (FAILURE, None, [0, 0, -2], [1, 1, 0], False),
        (TIMEOUT, None, [0, 0, 0], [1, 1, 1], False),  # not terminal: it bootstraps, and is no failure
        (TIMEOUT, SUCCESS, [0, 0, 1], [1, 1, 0], True),
        (TIMEOUT, FAILURE, [0, 0, -2], [1, 1, 1], False),  # labeled a failure, but the time ran out: it bootstraps
        (SUCCESS, FAILURE, [0, 0, -2], [1, 1, 0], False),
        (SUCCESS, TIMEOUT, [0, 0, 0], [1, 1, 1], False),
    ],
)
def test_labels_match_values_computed_by_hand(
    make_episode: Make,
    outcome: Outcome,
    judgement: Outcome | None,
    rewards: list[float],
    discounts: list[float],
    success: bool,
) -> None:
    labels = OutcomeLabeler(OutcomeConfig(failure_reward=-2.0)).label(make_episode(outcome, judgement=judgement))
    np.testing.assert_array_equal(labels.rewards, np.array(rewards, np.float32))
    np.testing.assert_array_equal(labels.discounts, np.array(discounts, np.float32))
    assert labels.rewards.dtype == labels.discounts.dtype == np.float32
    assert (labels.success, labels.episode_id, labels.labeler) == (success, "e1", "outcome")


def test_task_outcome_is_used_without_operator_wins(make_episode: Make) -> None:
    labels = OutcomeLabeler(OutcomeConfig(operator_wins=False)).label(make_episode(SUCCESS, judgement=FAILURE))
    assert labels.success


def test_step_penalty_and_one_step(make_episode: Make) -> None:
    labeler = OutcomeLabeler(OutcomeConfig(step_penalty=0.25, success_reward=2.0))
    np.testing.assert_array_equal(labeler.label(make_episode(SUCCESS)).rewards, [-0.25, -0.25, 1.75])
    np.testing.assert_array_equal(labeler.label(make_episode(SUCCESS, num_steps=1)).rewards, [1.75])


def test_success_bootstraps_if_it_is_not_terminal(make_episode: Make) -> None:
    labeler = OutcomeLabeler(OutcomeConfig(success_is_terminal=False))
    assert labeler.label(make_episode(SUCCESS)).discounts.tolist() == [1, 1, 1]
    assert labeler.label(make_episode(FAILURE)).discounts.tolist() == [1, 1, 0]


def test_version_of_the_default_settings_is_that_of_0_6() -> None:
    assert OutcomeLabeler().version == "1-7a5e0e89"
    assert OutcomeLabeler(OutcomeConfig(success_is_terminal=False)).version != OutcomeLabeler().version


def test_dense_reward_is_sum_of_components(make_episode: Make) -> None:
    labeler = OutcomeLabeler(OutcomeConfig(dense=True, step_penalty=0.5))
    labels = labeler.label(make_episode(TIMEOUT, reach=[1, 2, 3], grasp=[0, 0, 4]))
    np.testing.assert_array_equal(labels.rewards, [0.5, 1.5, 6.5])
    np.testing.assert_array_equal(labels.discounts, [1, 1, 1])
    with pytest.raises(UsageError, match="no reward components"):
        labeler.label(make_episode(SUCCESS))


@pytest.mark.parametrize(("outcome", "judgement"), [(ABORTED, None), (ABORTED, SUCCESS), (SUCCESS, ABORTED)])
def test_aborted_episode_is_refused(make_episode: Make, outcome: Outcome, judgement: Outcome | None) -> None:
    with pytest.raises(UsageError, match="aborted"):
        OutcomeLabeler(OutcomeConfig(operator_wins=False)).label(make_episode(outcome, judgement=judgement))


def test_settings_change_version(make_episode: Make) -> None:
    episode = make_episode(SUCCESS)
    versions = {OutcomeLabeler(OutcomeConfig(step_penalty=p)).label(episode).version for p in (0.0, 0.0, 0.1)}
    assert len(versions) == 2


def test_negative_step_penalty_is_refused() -> None:
    with pytest.raises(ValidationError):
        OutcomeConfig(step_penalty=-1.0)
