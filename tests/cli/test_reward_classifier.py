"""`dovetail train reward-classifier`."""

import json

import pytest
from PIL import Image

from dovetail.labels.learned.classifier import ClassifierConfig, ClassifierLabeler
from support.lamp_lighting_runs import lamp_episode, lamp_episodes, lamp_run

QUICK = ("updates=40", "check_every=10", "batch_size=32", "shift=1", "encoder.features=32", "unsure_frames=0")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lamp_run(tmp_path / "runs" / "one", lamp_episodes(12))
    lamp_run(tmp_path / "runs" / "two", lamp_episodes(12, first=100))
    return tmp_path


def test_training_writes_a_classifier_and_two_figures(cli, runs):
    result = cli("train", "reward-classifier", "one", "two", *QUICK)
    assert result.code == 0, result.err
    assert "held out" in result.out
    assert "classifiers/peg_insertion" in result.out
    folder = runs / "classifiers" / "peg_insertion"
    for name in ("curves.png", "mistakes.png"):
        with Image.open(folder / name) as picture:
            assert picture.width > 800
    facts = json.loads((folder / "classifier.json").read_text())["facts"]
    assert len(facts["episodes"]) == 24
    assert {episode["held_out"] for episode in facts["episodes"]} == {True, False}
    assert {(score["what"], score["held_out"]): score["errors"] for score in facts["scores"]}[
        "episodes", True
    ] == 0
    labeler = ClassifierLabeler(ClassifierConfig(folder=str(folder)))
    assert labeler.label(lamp_episode(900, success=True)).success


def test_an_existing_folder_is_never_overwritten(cli, runs):
    assert cli("train", "reward-classifier", "one", *QUICK, "--out", "here", "--quiet").code == 0
    again = cli("train", "reward-classifier", "one", *QUICK, "--out", "here")
    assert again.code == 2
    assert "here exists already" in again.line


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "name the runs to learn from"),
        (("oone",), "no run named 'oone'"),
        (("one", "camera=[front]"), "unknown key 'camera'. Did you mean 'cameras'?"),
        (("one", "cameras=[fron]"), "has no camera 'fron'. Did you mean 'front'?"),
        (("one", "precision=2"), "'precision' should be less than or equal to 1"),
        (("one", "encoder.type=frozen"), "needs a file"),
        (("one", "--name", "a", "--out", "b"), "not both"),
    ],
)
def test_wrong_use_is_refused_in_one_line(cli, runs, arguments, problem):
    result = cli("train", "reward-classifier", *arguments)
    assert result.code == 2
    assert problem in result.line
    assert not (runs / "classifiers").exists()


def test_help_mentions_reward_classifier(cli):
    assert "reward-classifier" in cli("train", "--help").out
    result = cli("train", "peg-insertion", "--out", "x")
    assert result.code == 2
    assert "reward-classifier only" in result.line
