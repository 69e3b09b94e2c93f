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
BY_TASK = {"operator": "none", "outcome": SUCCESS}  # so it tells of successes


@pytest.fixture
def said(tmp_path):
    """What is known of an episode in a run, once others were heard of."""
    log = EpisodeLog(lamp_run(tmp_path / "lamp", [lamp_episode(0, success=True)]).episodes)
    info, runs = log.manifest(log.ids()[0]), itertools.count()

    def said(*others, overrides=(), labeler="vlm", **how):
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

    return said


@pytest.mark.parametrize(
    ("how", "solved"),
    [
        ({"outcome": SUCCESS}, True),
        ({"outcome": FAILURE}, False),
        ({"outcome": TIMEOUT}, False),
        ({"outcome": TIMEOUT, "judgement": SUCCESS}, True),
        ({"outcome": SUCCESS, "judgement": FAILURE}, False),
    ],
)
def test_outcomes_of_a_task_and_of_persons(said, how, solved):
    assert said(BY_TASK, **how) is solved


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
def test_task_that_only_times_out(said, others):
    assert said(*others, outcome=TIMEOUT) is None
    assert said(*others, outcome=TIMEOUT, judgement=FAILURE) is False


def test_hidden_success_is_known_to_persons_only(said):
    """Demonstrations are still judged by the task."""
    assert said(BY_TASK, overrides=HIDDEN, outcome=TIMEOUT) is None
    assert said(BY_TASK, overrides=HIDDEN, outcome=FAILURE) is None  # it may have been done before
    assert said(overrides=HIDDEN, outcome=SUCCESS) is True
    assert said(overrides=HIDDEN, outcome=TIMEOUT, judgement=SUCCESS) is True
    assert said(overrides=HIDDEN, outcome=TIMEOUT, judgement=FAILURE) is False


@pytest.mark.parametrize("outcome", [SUCCESS, FAILURE, TIMEOUT])
def test_correction_of_a_person_is_not_compared(said, outcome):
    assert said(BY_TASK, labeler="human", outcome=outcome) is None


def test_labeler_is_not_compared_with_its_own_verdict(said):
    ended = {"operator": "none+classifier", "outcome": SUCCESS, "judgement": SUCCESS}
    assert said(BY_TASK, overrides=ENDED_BY_LABELER, **ended) is None
    assert said(ended, overrides=ENDED_BY_LABELER, outcome=TIMEOUT) is None  # and shows nothing of the task
    assert said(BY_TASK, overrides=ENDED_BY_LABELER, outcome=SUCCESS) is True  # the task was first
    assert said(BY_TASK, overrides=ENDED_BY_LABELER, outcome=TIMEOUT) is False
