"""A LeRobot dataset is imported into a new run, and a small VLA is fine-tuned on it, without a robot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.api import evaluate_open_loop
from dovetail.api.datasets import export_dataset, import_dataset
from dovetail.api.episodes import Filter
from dovetail.cli.main import main
from dovetail.core.frozen_base import referenced_base
from dovetail.core.types import Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.weights.store import DiskWeightStore
from support.small_vlas import SMALL_VLAS, write_small_vla

WORLD = """
task: "dovetail.testing.fakes:FakeTask"
robot: {type: "dovetail.testing.fakes:FakeArm", image_size: [64, 64]}
run: {demos: 6, env_steps: 0, eval_episodes: 1, untrained_episodes: 0, video_episodes: 0, seed: 3}
"""
RECORD = "policy: gaussian_mlp\nalgorithm: imitation\n"
FINE_TUNE = """
policy: {type: %s, checkpoint: %s, images: {%s: front}, state: [ee_pose, goal], fit_stats: true, freeze_vision: true,
  cache_vision: true, num_flow_steps: 5, device: cpu}
algorithm: {type: imitation, batch_size: 16, lr: 0.002}
learner: {warmup_updates: 120, bc_updates: 0}
"""


@pytest.mark.extended
@pytest.mark.parametrize("family", SMALL_VLAS)
def test_dataset_is_imported_and_a_vla_learns_it(tmp_path, monkeypatch, family):
    monkeypatch.chdir(tmp_path)
    Path("record.yaml").write_text(WORLD + RECORD)
    assert main(["collect", "record.yaml", "--name", "recorded", "--quiet"]) == 0
    export_dataset(Path("runs/recorded"), Path("data"), Filter(purpose=Purpose.DEMO))

    folder = write_small_vla(family, tmp_path / "model", horizon=4)
    Path("tune.yaml").write_text(WORLD + FINE_TUNE % (family, folder, SMALL_VLAS[family].camera))
    imported = import_dataset("tuned", Path("data"), recipe="tune.yaml")
    assert (imported.num_episodes, imported.num_known) == (6, 0)
    log = EpisodeLog("runs/tuned/episodes")
    assert {log.manifest(name).prompt for name in log.ids()} == {"go to the goal"}
    assert main(["train", "--resume", "tuned", "--no-eval", "--quiet"]) == 0

    actions = np.concatenate([log.load(name).column("executed") for name in log.ids()])
    components = DiskWeightStore("runs/tuned/weights").latest().components
    assert referenced_base(components["vision"]) and not referenced_base(components["expert"])
    statistics = components["normalizer"]
    if "action.mean" in statistics:
        np.testing.assert_allclose(statistics["action.mean"], actions.mean(0), atol=1e-6)
    else:  # pi05
        np.testing.assert_allclose(statistics["action.q01"], np.quantile(actions, 0.01, axis=0), atol=1e-4)
    error = evaluate_open_loop("tuned", Path("data")).errors.relative
    assert error[:3].mean() < 0.7, error  # always giving the mean action has 1; the rotations are noise
