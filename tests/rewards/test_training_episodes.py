"""Which label is the ground truth of an episode for classifier training."""

import dataclasses

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Labels, Outcome
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.human import human_labels
from dovetail.labels.learned.training import TrainingConfig
from dovetail.labels.store import LabelStore
from dovetail.rewards.training_episodes import ground_truths, labeled_episodes
from support.lamp_lighting_runs import ROBOT, SIDE, lamp_episode, lamp_run

CONFIG = TrainingConfig(cameras=("front",))
BY_CLASSIFIER = ("labels=[{type: classifier, folder: somewhere}]",)


def add_label(folder, episode, labeler, *, success):
    LabelStore(folder.labels).add(labels_of(episode, labeler, success=success))


def labels_of(episode, labeler, *, success):
    if labeler == "human":
        return human_labels(
            episode.id,
            num_steps=len(episode),
            outcome=episode.outcome,
            judgement=Outcome.SUCCESS if success else Outcome.FAILURE,
            by="anna",
        )
    rewards = np.zeros(len(episode), np.float32)
    rewards[-1] = success
    return Labels(
        episode_id=episode.id,
        rewards=rewards,
        discounts=np.ones(len(episode), np.float32),
        success=success,
        confidence=1.0,
        labeler=labeler,
        version="1",
    )


def test_human_label_has_priority_over_task_outcome(tmp_path):
    episodes = [lamp_episode(number, success=True) for number in range(2)]
    folder = lamp_run(tmp_path / "run", episodes)
    add_label(folder, episodes[0], "human", success=False)
    for episode in episodes:
        add_label(folder, episode, "outcome", success=True)  # later, but ignored
    assert [(truth.success, truth.by_person) for truth in ground_truths(folder)] == [(False, True), (True, False)]


def test_newest_human_label_is_used(tmp_path):
    episode = lamp_episode(0, success=True)
    folder = lamp_run(tmp_path / "run", [episode])
    for success in (True, False):
        add_label(folder, episode, "human", success=success)
    assert [truth.success for truth in ground_truths(folder)] == [False]


def test_retracted_and_discarded_labels_are_ignored(tmp_path):
    kept, thrown = lamp_episode(0, success=True), lamp_episode(1, success=True)
    folder = lamp_run(tmp_path / "run", [kept, thrown])
    add_label(folder, kept, "human", success=False)
    LabelStore(folder.labels).retract(labels_of(kept, "human", success=False))
    LabelStore(folder.labels).add(
        human_labels(thrown.id, num_steps=8, outcome=thrown.outcome, judgement=Outcome.ABORTED, by="anna")
    )
    assert [(truth.info.id, truth.success) for truth in ground_truths(folder)] == [(kept.id, True)]


def test_episode_without_labels_uses_its_outcome(tmp_path):
    judged_by_operator = dataclasses.replace(lamp_episode(0, success=False), judgement=Outcome.SUCCESS)
    folder = lamp_run(
        tmp_path / "run",
        [
            judged_by_operator,
            lamp_episode(1, success=True),
            lamp_episode(2, success=False),
            lamp_episode(3, success=True, outcome=Outcome.ABORTED),
        ],
    )
    assert [truth.success for truth in ground_truths(folder)] == [True, True, False]


def test_labels_of_models_are_never_used(tmp_path):
    """Neither its labels nor an end that it may have caused are used."""
    episodes = [lamp_episode(number, success=True) for number in range(3)]
    folder = lamp_run(tmp_path / "run", episodes, overrides=BY_CLASSIFIER)
    ended = dataclasses.replace(
        lamp_episode(3, success=True), operator="scripted+classifier", judgement=Outcome.SUCCESS
    )
    EpisodeLog(folder.episodes).commit(ended)
    add_label(folder, episodes[0], "classifier", success=True)
    add_label(folder, episodes[1], "vlm", success=True)
    assert ground_truths(folder) == []
    add_label(folder, episodes[2], "human", success=False)
    assert [(truth.info.id, truth.success) for truth in ground_truths(folder)] == [(episodes[2].id, False)]
    add_label(folder, ended, "outcome", success=True)  # repeats the classifier's verdict during the episode
    assert [truth.info.id for truth in ground_truths(folder)] == [episodes[2].id]


def test_judgement_at_console_has_priority_over_task(tmp_path):
    episode = dataclasses.replace(
        lamp_episode(0, success=True), operator="scripted+browser", judgement=Outcome.FAILURE
    )
    folder = lamp_run(tmp_path / "run", [episode])
    assert [truth.success for truth in ground_truths(folder)] == [False]


def test_frames_are_loaded_with_their_robot(tmp_path):
    episodes = [lamp_episode(0, success=True), lamp_episode(1, success=False)]
    folder = lamp_run(tmp_path / "run", episodes)
    read = []
    found, robot = labeled_episodes(ground_truths(folder), CONFIG, on_read=read.append)
    assert robot == EpisodeLog(folder.episodes).manifest(episodes[0].id).robot
    assert [episode.success for episode in found] == [True, False]
    assert found[0].frames["front"].shape == (9, SIDE, SIDE, 3)
    assert (found[0].frames["front"][-1] == episodes[0].last_observation.values["front"]).all()
    assert read == [1, 2]


def test_runs_with_different_cameras_are_refused(tmp_path):
    other = dataclasses.replace(
        ROBOT, observation={**ROBOT.observation, "front": ArraySpec(shape=(8, 8, 3), dtype="uint8")}
    )
    runs = [
        lamp_run(tmp_path / "a", [lamp_episode(0, success=True)]),
        lamp_run(tmp_path / "b", [lamp_episode(1, success=True)]),
    ]
    found = [truth for run in runs for truth in ground_truths(run)]
    found[1] = dataclasses.replace(found[1], info=dataclasses.replace(found[1].info, robot=other))
    with pytest.raises(UsageError, match=r"'front' is uint8\[16, 16, 3\] in run .*a, but uint8\[8, 8, 3\]"):
        labeled_episodes(found, CONFIG)
    with pytest.raises(UsageError, match="no episode of these runs"):
        labeled_episodes([], CONFIG)
