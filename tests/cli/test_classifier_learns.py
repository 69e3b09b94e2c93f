"""A classifier's word for it is enough: the peg is learned from it as from the simulator's own verdict."""

import json

import pytest

from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.store import LabelStore

SEEN = ("robot.images=[wrist]", "robot.image_size=[96,96]", "run.env_steps=600", "run.eval_episodes=60")


@pytest.mark.slow
def test_the_peg_is_learned_from_a_classifier_alone(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def did(*arguments):
        result = cli(*arguments, "--quiet")
        assert result.code == 0, result.err

    did("run", "peg-insertion", *SEEN, "--seed", "100", "--name", "peg-seen")
    did("train", "reward-classifier", "peg-seen")
    did("run", "peg-insertion-classifier", "--seed", "0", "--name", "judged")
    did("run", "peg-insertion", "--seed", "0", "--name", "told")
    judged, told = (
        json.loads((tmp_path / "runs" / name / "report.json").read_text())["success_after"]["rate"]
        for name in ("judged", "told")
    )
    assert judged >= 0.9 * told
    # nobody else had a say, and nothing was told by the task
    run = tmp_path / "runs" / "judged"
    log, labels = EpisodeLog(run / "episodes"), LabelStore(run / "labels")
    practice = [log.manifest(one) for one in log.ids() if log.manifest(one).purpose is Purpose.ONLINE]
    assert practice
    for info in practice:
        assert info.operator == "scripted+classifier"  # who alone may have ended it, but for time
        assert {record.labels.labeler for record in labels.history(info.id)} == {"classifier"}
        assert not log.load(info.id, images=False).column("reward/success").any()
