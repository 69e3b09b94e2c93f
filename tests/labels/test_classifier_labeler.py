"""The success classifier: training, labels and refused inputs."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from dovetail.core.errors import StoreError, UsageError
from dovetail.core.specs import ArraySpec
from dovetail.core.types import Observation, Outcome
from dovetail.labels.learned.classifier import ClassifierConfig, ClassifierLabeler
from dovetail.labels.learned.folder import load_classifier, save_classifier
from dovetail.labels.learned.frames import NO, UNSURE, YES, hold_out, labeled_episode, select_observations
from dovetail.labels.learned.network import SuccessNet
from dovetail.labels.learned.report import mistakes, scores
from dovetail.labels.learned.training import TrainingConfig, balanced_loss, train
from dovetail.policies.images.backbones import ResNet, save_backbone
from dovetail.policies.images.encoders import EncoderConfig
from support.lamp_lighting_runs import ROBOT, lamp_episode, lamp_episodes

QUICK = {
    "updates": 40,
    "check_every": 10,
    "batch_size": 32,
    "shift": 1,
    "cameras": ("front",),
    "encoder": EncoderConfig(features=32),
}


def seen(episodes, keys=("front",)):
    return [
        labeled_episode(episode, keys=keys, success=episode.outcome is Outcome.SUCCESS, unsure_frames=0)
        for episode in episodes
    ]


@pytest.fixture(scope="module")
def trained():
    torch.set_num_threads(1)
    return train(seen(lamp_episodes(24)), TrainingConfig(**QUICK), robot=ROBOT)


@pytest.fixture
def folder(trained, tmp_path):
    save_classifier(tmp_path / "lamp", trained, facts={"task": "lamp"})
    return tmp_path / "lamp"


@pytest.fixture
def labeler(folder):
    return ClassifierLabeler(ClassifierConfig(folder=str(folder)))


def test_folder_is_staged_under_a_name_that_others_cannot_guess(trained, tmp_path, monkeypatch):
    """A folder that waits under the name of a process id, even one that cannot be removed, is not used."""
    guessed = tmp_path / f".lamp.{os.getpid()}.tmp"
    guessed.mkdir()
    (guessed / "kept").touch()
    rename, staged = os.rename, []
    monkeypatch.setattr(os, "rename", lambda source, target: (staged.append(source.name), rename(source, target)))
    for name in ("lamp", "lamp2"):
        save_classifier(tmp_path / name, trained, facts={})
    assert (guessed / "kept").exists()
    assert [re.fullmatch(r"\.lamp2?\.[0-9a-f]{16}\.tmp", name) is not None for name in staged] == [True, True]


# ---- training


def test_classifier_generalizes_to_held_out_episodes(labeler):
    fresh = lamp_episodes(10, first=1000)
    assert [labeler.label(episode).success for episode in fresh] == [
        episode.outcome is Outcome.SUCCESS for episode in fresh
    ]


def test_all_parameters_receive_gradients():
    """A head inside no_grad would keep its random initialization."""
    torch.manual_seed(0)
    net = SuccessNet(EncoderConfig(features=8), **select_observations(ROBOT, cameras=["front"], proprio=["meter"]))
    frames = net.encode(seen(lamp_episodes(2), ("front", "meter"))[0].frames)
    balanced_loss(net, frames, frames).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_inference_normalizes_like_training(tmp_path):
    """Inference must normalize like training; the meter's values around 1000 would reveal a difference."""
    config = TrainingConfig(**{**QUICK, "proprio": ("meter",), "jitter": 0.0})
    dark = [
        dataclasses.replace(episode, segments=(_without_lamp(episode.segments[0]),))
        for episode in lamp_episodes(24)
    ]
    trained = train(seen(dark, ("front", "meter")), config, robot=ROBOT)
    save_classifier(tmp_path / "meter", trained, facts={})
    labeler = ClassifierLabeler(ClassifierConfig(folder=str(tmp_path / "meter")))
    for episode, p in zip(dark, trained.probabilities, strict=True):
        assert labeler.probabilities(episode) == pytest.approx(p, abs=1e-6)
    held = [dark[place] for place in trained.held_out]
    assert [labeler.label(episode).success for episode in held] == [
        episode.outcome is Outcome.SUCCESS for episode in held
    ]


def _without_lamp(segment):
    """Only the meter shows success."""
    dark = np.full_like(segment.columns["observation/front"], 60)
    last = segment.last_observation
    values = {**last.values, "front": dark[0]}
    return dataclasses.replace(
        segment,
        columns={**segment.columns, "observation/front": dark},
        last_observation=dataclasses.replace(last, values=values),
    )


def test_training_is_deterministic_for_a_seed(trained):
    again = train(seen(lamp_episodes(24)), TrainingConfig(**QUICK), robot=ROBOT)
    assert again.threshold == trained.threshold
    assert all((a == b).all() for a, b in zip(again.probabilities, trained.probabilities, strict=True))


def test_frozen_encoder_is_unchanged_and_saved_with_classifier(tmp_path):
    file = tmp_path / "encoder.safetensors"
    torch.manual_seed(3)
    save_backbone(ResNet(width=8), file, arch="resnet10")
    frozen = EncoderConfig(type="frozen", arch="resnet10", file=str(file), stride=8, features=32)
    trained = train(seen(lamp_episodes(24)), TrainingConfig(**{**QUICK, "encoder": frozen}), robot=ROBOT)
    save_classifier(tmp_path / "lamp", trained, facts={})
    before = file.read_bytes()
    file.unlink()
    labeler = ClassifierLabeler(ClassifierConfig(folder=str(tmp_path / "lamp")))
    assert (tmp_path / "lamp" / "encoder.safetensors").read_bytes() == before
    assert labeler.probabilities(lamp_episodes(1)[0]) == pytest.approx(trained.probabilities[0], abs=1e-6)
    assert not any("frozen" in name for name in trained.net.state_dict())


# ---- training data


def test_last_frames_of_success_are_positive_and_earlier_ones_unsure():
    episode = labeled_episode(
        lamp_episode(0, success=True), keys=["front"], success=True, positive_frames=2, unsure_frames=1
    )
    assert episode.truth.tolist() == [NO] * 6 + [UNSURE] + [YES] * 2
    failed = labeled_episode(lamp_episode(0, success=False), keys=["front"], success=False)
    assert failed.truth.tolist() == [NO] * 9


def test_frames_after_reward_are_positive():
    rewards = np.zeros(8, np.float32)
    rewards[3] = 1.0  # earned by step 3: from the observation after it on
    episode = labeled_episode(
        lamp_episode(0, success=True), keys=["front"], success=True, rewards=rewards, unsure_frames=1
    )
    assert episode.truth.tolist() == [NO] * 3 + [UNSURE] + [YES] * 5


def test_long_episodes_keep_all_positive_frames():
    episode = labeled_episode(
        lamp_episode(0, success=True, num_steps=50), keys=["front"], success=True, unsure_frames=0, most_frames=10
    )
    assert episode.truth.tolist() == [NO] * 8 + [YES] * 2
    assert episode.rows[[0, -3, -1]].tolist() == [0, 48, 50]
    assert len(episode.frames["front"]) == 10


def test_split_is_by_episode(trained):
    """Frames of one episode on both sides would make the scores too good."""
    learned, held = hold_out(trained.episodes, share=0.25)
    assert not set(learned) & set(held)
    assert sorted(learned + held) == list(range(24))
    assert list(trained.held_out) == held
    assert {trained.episodes[place].success for place in held} == {True, False}
    # an episode stays on the same side of the split, independent of the other episodes
    more = [*seen(lamp_episodes(24, first=5000)), *trained.episodes]
    assert [place - 24 for place in hold_out(more, share=0.25)[1] if place >= 24] == held


def test_one_episode_of_each_class_is_held_out():
    few = seen(lamp_episodes(4))
    learned, held = hold_out(few, share=0.01)
    assert sorted(few[place].success for place in held) == [False, True]
    assert sorted(few[place].success for place in learned) == [False, True]


def test_training_needs_two_successes():
    with pytest.raises(UsageError, match="at least two successful episodes"):
        train(seen(lamp_episodes(2)), TrainingConfig(**QUICK), robot=ROBOT)


def test_scores_and_mistakes_of_trained_classifier(trained):
    by_episode = scores(trained)[0]
    assert (by_episode.what, by_episode.held_out, by_episode.errors) == ("episodes", True, 0)
    assert by_episode.num == len(trained.held_out)
    assert (by_episode.precision, by_episode.recall, by_episode.auc) == (1.0, 1.0, 1.0)
    worst = mistakes(trained, most=5)
    assert [episode.off_by for episode in worst] == sorted((episode.off_by for episode in worst), reverse=True)
    # a classifier that is wrong about one frame shows that one first
    p = [array.copy() for array in trained.probabilities]
    p[1][4] = 0.999
    spoilt = dataclasses.replace(trained, probabilities=p)
    first = mistakes(spoilt, most=5)[0]
    assert (first.episode, first.frame, first.truth) == (1, 4, False)


# ---- labels


def test_success_reward_and_termination_at_last_step(labeler):
    done = labeler.label(lamp_episode(500, success=True, outcome=Outcome.TIMEOUT))
    assert done.success
    assert done.rewards.tolist() == [0.0] * 7 + [1.0]
    assert done.discounts.tolist() == [1.0] * 7 + [0.0]
    assert done.labeler == "classifier"
    failed = labeler.label(lamp_episode(501, success=False, outcome=Outcome.TIMEOUT))
    assert not failed.success
    assert not failed.rewards.any()
    assert failed.discounts.all()  # a timeout only stopped the recording


def test_label_ignores_task_outcome(labeler):
    """The label depends on the classifier, not on the recorded outcome."""
    assert not labeler.label(lamp_episode(502, success=False, outcome=Outcome.SUCCESS)).success
    assert labeler.label(lamp_episode(503, success=True, outcome=Outcome.FAILURE)).success


def test_success_needs_consecutive_frames(folder):
    episode = lamp_episode(504, success=True)  # in the last two
    for consecutive, success in ((1, True), (2, True), (3, False)):
        config = ClassifierConfig(folder=str(folder), consecutive=consecutive)
        assert ClassifierLabeler(config).label(episode).success is success


def test_progress_reward_is_change_of_progress(folder):
    """Absolute progress as a reward would favor slow episodes."""
    labeler = ClassifierLabeler(ClassifierConfig(folder=str(folder), reward="progress"))
    episode = lamp_episode(505, success=True)
    p = labeler.probabilities(episode)
    labels = labeler.label(episode)
    assert labels.rewards == pytest.approx(np.diff(p), abs=1e-6)
    assert labels.rewards.sum() == pytest.approx(p[-1] - p[0], abs=1e-5)


def test_confidence_is_probability_of_given_label(labeler):
    for episode in (lamp_episode(506, success=True), lamp_episode(507, success=False)):
        p = labeler.probabilities(episode)[-2:].mean()
        labels = labeler.label(episode)
        assert labels.confidence == pytest.approx(p if labels.success else 1 - p)
        assert labels.confidence > 0.5


def test_single_observation_has_same_probability_as_in_episode(labeler):
    episode = lamp_episode(508, success=True)
    p = labeler.probabilities(episode)
    assert labeler.judge(episode.last_observation) == pytest.approx(p[-1], abs=1e-5)
    assert labeler.judge(episode.last_observation) >= labeler.threshold
    first = {key: episode.column(f"observation/{key}")[0] for key in ROBOT.observation}
    assert labeler.judge(Observation(time_ns=0, values=first)) < labeler.threshold


def test_version_depends_on_network_and_settings(folder):
    versions = {
        ClassifierLabeler(ClassifierConfig(folder=str(folder), **rule)).version
        for rule in ({}, {"threshold": 0.7}, {"consecutive": 3}, {"reward": "progress"})
    }
    assert len(versions) == 4
    assert all(version.startswith(load_classifier(folder).version) for version in versions)


def test_aborted_episode_is_refused(labeler):
    with pytest.raises(UsageError, match="aborted"):
        labeler.label(lamp_episode(509, success=True, outcome=Outcome.ABORTED))


# ---- refused inputs


def test_camera_of_other_size_is_refused(labeler):
    small = ArraySpec(shape=(8, 8, 3), dtype="uint8")
    robot = dataclasses.replace(ROBOT, observation={**ROBOT.observation, "front": small})
    with pytest.raises(
        UsageError, match=r"trained on camera 'front' with uint8\[16, 16, 3\].* has uint8\[8, 8, 3\]"
    ):
        labeler.check(robot)
    blind = dataclasses.replace(ROBOT, observation={"meter": ROBOT.observation["meter"]})
    with pytest.raises(UsageError, match="needs camera 'front', which robot 'lamplighter' does not have"):
        labeler.check(blind)


def test_missing_camera_is_refused():
    with pytest.raises(UsageError, match=r"no camera 'frint'. Did you mean 'front'\?"):
        select_observations(ROBOT, cameras=["frint"], proprio=[])
    with pytest.raises(UsageError, match=r"no low-dimensional observation 'metre'. Did you mean 'meter'\?"):
        select_observations(ROBOT, cameras=[], proprio=["metre"])


@pytest.mark.parametrize("name", ["weights.safetensors", "classifier.json"])
def test_any_changed_byte_is_refused(folder, name):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        load_classifier(folder)


def test_missing_file_is_named_in_error(folder):
    (folder / "weights.safetensors").unlink()
    with pytest.raises(StoreError, match=r"weights\.safetensors is missing"):
        load_classifier(folder)


def test_missing_classifier_error_says_how_to_train_one(tmp_path):
    labeler = ClassifierLabeler(ClassifierConfig(folder=str(tmp_path / "none")))  # a constructor does no I/O
    with pytest.raises(UsageError, match="dovetail train reward-classifier"):
        labeler.check(ROBOT)


def test_pickle_file_is_never_loaded(folder, tmp_path):
    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (Path.touch, (mark,))

    (folder / "weights.safetensors").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(StoreError):
        load_classifier(folder)
    assert not mark.exists()


def test_existing_folder_is_never_overwritten(folder, trained):
    with pytest.raises(UsageError, match="already exists"):
        save_classifier(folder, trained, facts={})


# ---- the run's copy


def test_run_keeps_copy_of_classifier(folder, tmp_path):
    config = ClassifierConfig(folder=str(folder))
    episode = lamp_episode(510, success=True)
    before = ClassifierLabeler(config, folder=tmp_path / "run").label(episode)
    folder.rename(tmp_path / "gone")
    after = ClassifierLabeler(config, folder=tmp_path / "run").label(episode)
    assert (after.version, after.confidence) == (before.version, before.confidence)


def test_labeling_with_other_classifier_keeps_run_classifier(folder, tmp_path, trained):
    own = ClassifierLabeler(ClassifierConfig(folder=str(folder)), folder=tmp_path / "run").version
    save_classifier(tmp_path / "other", dataclasses.replace(trained, threshold=0.9), facts={})
    other = ClassifierLabeler(ClassifierConfig(folder=str(tmp_path / "other")), folder=tmp_path / "run")
    assert other.threshold == 0.9
    assert ClassifierLabeler(ClassifierConfig(folder=str(folder)), folder=tmp_path / "run").version == own


def test_adopt_verifies_classifier_before_use(folder, tmp_path, trained):
    config = ClassifierConfig(folder=str(folder))
    labeler = ClassifierLabeler(config, folder=tmp_path / "run")
    old = labeler.version
    save_classifier(tmp_path / "run" / "newer", dataclasses.replace(trained, threshold=0.9), facts={})
    save_classifier(tmp_path / "run" / "broken", dataclasses.replace(trained, threshold=0.8), facts={})
    (tmp_path / "run" / "broken" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(StoreError):
        labeler.adopt("broken")
    assert labeler.version == old
    labeler.adopt("newer")
    assert labeler.threshold == 0.9
    assert labeler.version != old
    assert ClassifierLabeler(config, folder=tmp_path / "run").version == labeler.version  # after a restart too
