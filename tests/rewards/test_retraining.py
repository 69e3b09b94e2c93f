"""Retraining of a classifier with human corrections, in a real background process."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import time

import pytest
import torch

from dovetail.config.load import load
from dovetail.core.types import Outcome
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.human import human_labels
from dovetail.labels.learned.classifier import ClassifierConfig, ClassifierLabeler
from dovetail.labels.learned.folder import save_classifier
from dovetail.labels.learned.training import TrainingConfig, train
from dovetail.labels.outcome import OutcomeLabeler
from dovetail.labels.store import LabelStore
from dovetail.policies.images.encoders import EncoderConfig
from dovetail.rewards.classifier_training import facts_of
from dovetail.rewards.retraining import Retraining, make_retraining, retrain
from dovetail.rewards.training_episodes import ground_truths, labeled_episodes
from dovetail.runs.folder import RunFolder
from dovetail.runs.roles import store
from dovetail.runtime import inline
from support.lamp_lighting_runs import ROBOT, lamp_episode, lamp_episodes, lamp_run
from support.toy_run import TOY

CONFIG = TrainingConfig(
    cameras=("front",),
    updates=60,
    check_every=10,
    batch_size=32,
    shift=1,
    unsure_frames=0,
    encoder=EncoderConfig(features=32),
)


def glaring(number):
    """A failed episode with a completely bright last image, which a classifier trained on lamps takes for success."""
    episode = lamp_episode(number, success=False)
    segment = episode.segments[0]
    pictures = segment.columns["observation/front"].copy()
    pictures[-1:] = 255
    last = segment.last_observation
    bright = dataclasses.replace(last, values={**last.values, "front": pictures[-1]})
    columns = {**segment.columns, "observation/front": pictures}
    return dataclasses.replace(
        episode, segments=(dataclasses.replace(segment, columns=columns, last_observation=bright),)
    )


@pytest.fixture
def run(tmp_path):
    """A run whose classifier was trained before, without glare, and its labeler."""
    torch.set_num_threads(1)
    before = lamp_run(tmp_path / "before", lamp_episodes(16))
    found = ground_truths(before)
    episodes, _ = labeled_episodes(found, CONFIG)
    trained = train(episodes, CONFIG, robot=ROBOT)
    save_classifier(tmp_path / "first", trained, facts=facts_of(trained, found))
    section = f"labels=[{{type: classifier, folder: {tmp_path / 'first'}, retrain_after: 4}}]"
    folder = lamp_run(tmp_path / "run", [], overrides=(section,))
    labeler = ClassifierLabeler(
        ClassifierConfig(folder=str(tmp_path / "first")), folder=folder.path / "classifiers"
    )
    return folder, labeler


def record_episode(folder, labeler, episode, *, person):
    """Commit an episode with the classifier's labels and, unless `person` is None, a person's; return the first verdict."""
    EpisodeLog(folder.episodes).commit(episode)
    store, labels = LabelStore(folder.labels), labeler.label(episode)
    store.add(labels)
    if person is not None:
        judgement = Outcome.SUCCESS if person else Outcome.FAILURE
        store.add(
            human_labels(
                episode.id, num_steps=len(episode), outcome=episode.outcome, judgement=judgement, by="anna"
            )
        )
    return labels.success


def wait_for(retraining, *, timeout_s=900.0):
    until_s = time.monotonic() + timeout_s
    while retraining.is_running:
        assert time.monotonic() < until_s, "the process that trains takes too long"
        retraining.poll()
        time.sleep(0.05)


def assert_handles_glare(folder, labeler):
    """The classifier handles glare in new episodes and still recognizes lamps."""
    assert not labeler.label(glaring(500)).success
    assert [labeler.label(lamp_episode(600 + n, success=n % 2 == 0)).success for n in range(6)] == [
        True,
        False,
    ] * 3


@pytest.mark.extended
def test_retraining_fixes_corrected_false_positives(run):
    folder, labeler = run
    mistaken = [record_episode(folder, labeler, glaring(100 + n), person=False) for n in range(4)]
    assert all(mistaken), "the test needs a classifier that can be fooled"
    result = retrain(folder, labeler.path)
    assert result["by_people"] == 4
    assert result["errors_about_people"][1] < result["errors_about_people"][0] == 4
    assert result["errors_held_out"][1] <= result["errors_held_out"][0]
    labeler.adopt(result["name"])
    assert_handles_glare(folder, labeler)


@pytest.mark.slow  # the low-priority process may take minutes on a busy machine
def test_retraining_runs_in_background_process(run):
    folder, labeler = run
    first = labeler.version
    retraining = Retraining(folder, labeler, after=4)
    for number in range(4):
        record_episode(folder, labeler, glaring(100 + number), person=False)
    retraining.poll()
    assert retraining.is_running
    assert labeler.version == first  # the run keeps its classifier
    wait_for(retraining)
    (event,) = folder.events("classifier retrained")
    assert event["taken_up"], event
    assert event["version"] == labeler.version != first
    assert_handles_glare(folder, labeler)
    # a restart continues with the new classifier and does not train again
    config = ClassifierConfig(folder=folder.config.labels[0].config.folder)
    again = ClassifierLabeler(config, folder=folder.path / "classifiers")
    assert again.version == labeler.version
    resumed = Retraining(folder, again, after=4)
    resumed.poll()
    assert not resumed.is_running


def test_retraining_starts_after_enough_labels(run, monkeypatch):
    """The process itself is a stand-in that answers at once."""
    folder, labeler = run
    first, retraining = labeler.version, Retraining(folder, labeler, after=4)
    for number in range(3):
        record_episode(folder, labeler, glaring(100 + number), person=False)
    retraining.poll()
    assert not retraining.is_running  # three are not four
    shutil.copytree(labeler.path, folder.path / "classifiers" / "retrained-1")
    popen = subprocess.Popen
    answer = json.dumps({"name": "retrained-1", "by_people": 4})

    def stand_in(arguments, **settings):
        assert arguments[-2:] == [str(folder.path), str(labeler.path)]
        return popen([sys.executable, "-c", f"print({answer!r})"], **settings)

    monkeypatch.setattr(subprocess, "Popen", stand_in)
    record_episode(folder, labeler, glaring(103), person=False)
    retraining.poll()
    assert retraining.is_running
    wait_for(retraining)
    (event,) = folder.events("classifier retrained")
    assert (event["taken_up"], event["by_people"]) == (True, 4)
    assert labeler.path.name == "retrained-1"
    assert labeler.version == first  # a copy is the same one
    retraining.poll()
    assert not retraining.is_running  # the same labels are no reason twice


def test_agreeing_labels_start_no_retraining(run):
    folder, labeler = run
    retraining = Retraining(folder, labeler, after=4)
    for number in range(6):
        record_episode(
            folder, labeler, lamp_episode(200 + number, success=number % 2 == 0), person=number % 2 == 0
        )
    retraining.poll()
    assert not retraining.is_running


@pytest.mark.extended
def test_worse_classifier_is_not_adopted(run):
    """Wrong corrections make the held-out errors worse, so the old classifier stays."""
    folder, labeler = run
    for number in range(6):
        record_episode(folder, labeler, lamp_episode(300 + number, success=False), person=number % 2 == 0)
    result = retrain(folder, labeler.path)
    (before, after), (held_before, held_after) = result["errors_about_people"], result["errors_held_out"]
    assert before == 3
    assert ("name" in result) == (after < before and held_after <= held_before)
    assert [path.name for path in (folder.path / "classifiers").glob("retrained-*")] == (
        [result["name"]] if "name" in result else []
    )


def test_killed_training_process_keeps_old_classifier(run):
    folder, labeler = run
    first = labeler.version
    retraining = Retraining(folder, labeler, after=1)
    record_episode(folder, labeler, glaring(400), person=False)
    retraining.poll()
    assert retraining._process is not None
    retraining._process.popen.kill()
    wait_for(retraining)
    (event,) = folder.events("classifier retrained")
    assert not event["taken_up"]
    assert "has died" in event["error"]
    assert labeler.version == first
    assert json.loads((folder.path / "classifiers" / "current.json").read_text())["name"] in first


def test_training_process_exits_with_its_run(run):
    folder, labeler = run
    retraining = Retraining(folder, labeler, after=1)
    record_episode(folder, labeler, glaring(401), person=False)
    retraining.poll()
    process = retraining._process
    assert process is not None
    retraining.close()
    assert process.has_ended
    assert not list(folder.events("classifier retrained"))


def test_only_configured_classifier_is_retrained(run):
    folder, labeler = run
    assert labeler.retrain_after is None
    assert make_retraining(folder, [OutcomeLabeler(), labeler]) is None
    asks = ClassifierLabeler(folder.config.labels[0].config)
    assert isinstance(make_retraining(folder, [OutcomeLabeler(), asks]), Retraining)


def test_run_polls_retraining_between_episodes(tmp_path, monkeypatch):
    class Spy:
        polls, closed = 0, False

        def poll(self):
            self.polls += 1

        def close(self):
            self.closed = True

    spy = Spy()
    monkeypatch.setattr(store, "make_retraining", lambda folder, labelers: spy)
    (tmp_path / "toy.yaml").write_text(TOY)
    done = inline.InlineRun(RunFolder.create(tmp_path / "run", load([tmp_path / "toy.yaml"])))
    done.run()
    assert spy.polls >= done.status.episodes > 0
    assert spy.closed
