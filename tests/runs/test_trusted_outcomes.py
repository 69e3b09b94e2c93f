"""Which outcomes may be compared with labels."""

import dataclasses
import itertools

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.types import Labels, Outcome
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.experience import EpisodeRecord
from dovetail.runs.folder import RunFolder
from dovetail.runs.trusted_outcomes import TrustedOutcomes
from support.lamp_lighting_runs import lamp_episode, lamp_run

SUCCESS, FAILURE, TIMEOUT = Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIMEOUT
HIDDEN, ENDED_BY_LABELER = ("labeling.hide_success=true",), ("labeling.terminate_on_success={}",)
BY_TASK = {"operator": "none", "outcome": SUCCESS}  # shows that the task reports successes


@pytest.fixture
def solved_with(tmp_path):
    """The trusted outcome of an episode in a run that has the episodes `others`."""
    log = EpisodeLog(lamp_run(tmp_path / "lamp", [lamp_episode(0, success=True)]).episodes)
    info, runs = log.manifest(log.ids()[0]), itertools.count()

    def solved_with(*others, overrides=(), labeler="vlm", **how):
        folder = RunFolder.create(tmp_path / f"run{next(runs)}", load(["peg-insertion"], overrides))
        own = dataclasses.replace(info, config_hash=folder.config_hash, judgement=None)
        outcomes = TrustedOutcomes(folder)
        for other in others:
            outcomes.add(dataclasses.replace(own, **other))
        zeros = np.zeros(8, np.float32)
        labels = Labels(
            episode_id=info.id,
            rewards=zeros,
            discounts=zeros,
            success=True,
            confidence=1.0,
            labeler=labeler,
            version="1",
        )
        return outcomes.solved(EpisodeRecord(info=dataclasses.replace(own, **how), labels=labels))

    return solved_with


@pytest.mark.parametrize(
    ("how", "solved"),
    [
        ({"outcome": SUCCESS}, True),
        ({"outcome": FAILURE}, False),
        ({"outcome": TIMEOUT}, False),
        ({"outcome": TIMEOUT, "judgement": SUCCESS}, True),
        ({"outcome": SUCCESS, "judgement": FAILURE}, False),
        ({"outcome": FAILURE, "has_success": False}, None),
    ],
)
def test_task_outcome_is_trusted_and_a_judgement_overrides_it(solved_with, how, solved):
    assert solved_with(BY_TASK, **how) is solved


@pytest.mark.parametrize(
    "others",
    [
        (),
        ({"operator": "none", "outcome": TIMEOUT},),
        ({"operator": "gamepad", "outcome": SUCCESS},),  # the task's, or a person's
        ({"operator": "none+browser", "outcome": SUCCESS},),
        ({**BY_TASK, "config_hash": "of another run"},),
        ({**BY_TASK, "task": "of another robot"},),
    ],
)
def test_timeout_is_not_trusted_without_a_success_by_the_task(solved_with, others):
    assert solved_with(*others, outcome=TIMEOUT) is None
    assert solved_with(*others, outcome=TIMEOUT, judgement=FAILURE) is False


def test_hidden_success_is_trusted_from_persons_only(solved_with):
    """The task still decides the outcome of demonstrations."""
    assert solved_with(BY_TASK, overrides=HIDDEN, outcome=TIMEOUT) is None
    assert solved_with(BY_TASK, overrides=HIDDEN, outcome=FAILURE) is None  # the task may have been solved before
    assert solved_with(overrides=HIDDEN, outcome=SUCCESS) is True
    assert solved_with(overrides=HIDDEN, outcome=TIMEOUT, judgement=SUCCESS) is True
    assert solved_with(overrides=HIDDEN, outcome=TIMEOUT, judgement=FAILURE) is False


@pytest.mark.parametrize("outcome", [SUCCESS, FAILURE, TIMEOUT])
def test_correction_of_a_person_is_not_compared(solved_with, outcome):
    assert solved_with(BY_TASK, labeler="human", outcome=outcome) is None


def test_labeler_is_not_compared_with_its_own_verdict(solved_with):
    ended = {"operator": "none+classifier", "outcome": SUCCESS, "judgement": SUCCESS}
    assert solved_with(BY_TASK, overrides=ENDED_BY_LABELER, **ended) is None
    assert solved_with(ended, overrides=ENDED_BY_LABELER, outcome=TIMEOUT) is None  # no evidence about the task
    assert solved_with(BY_TASK, overrides=ENDED_BY_LABELER, outcome=SUCCESS) is True  # the task was first
    assert solved_with(BY_TASK, overrides=ENDED_BY_LABELER, outcome=TIMEOUT) is False
