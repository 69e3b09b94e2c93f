"""Peg insertion learns from a classifier's labels as well as from the simulator's verdicts."""

import json

import pytest

from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.store import LabelStore

SEEN = ("robot.images=[wrist]", "robot.image_size=[96,96]", "run.env_steps=600", "run.eval_episodes=60")


@pytest.mark.slow
def test_peg_insertion_learns_from_a_classifier_alone(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def did(*arguments):
        result = cli(*arguments, "--quiet")
        assert result.code == 0, result.err

    did("run", "peg-insertion", *SEEN, "--seed", "100", "--name", "peg-seen")
    did("train", "reward-classifier", "peg-seen")
    did("run", "peg-insertion-classifier", "--seed", "0", "--name", "judged")
    did("run", "peg-insertion", "--seed", "0", "--name", "simulator")
    judged, simulator = (
        json.loads((tmp_path / "runs" / name / "report.json").read_text())["success_after"]["rate"]
        for name in ("judged", "simulator")
    )
    assert judged >= 0.9 * simulator
    # no other labeler took part, and the task's success was hidden
    run = tmp_path / "runs" / "judged"
    log, labels = EpisodeLog(run / "episodes"), LabelStore(run / "labels")
    online_episodes = [log.manifest(name) for name in log.ids() if log.manifest(name).purpose is Purpose.ONLINE]
    assert online_episodes
    for info in online_episodes:
        assert info.operator == "scripted+classifier"  # only the classifier or a timeout ended it
        assert {record.labels.labeler for record in labels.history(info.id)} == {"classifier"}
        assert not log.load(info.id, images=False).column("reward/success").any()
