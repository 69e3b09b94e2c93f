"""Distillation into a vision-language-action model: it starts from the weights and statistics of its run."""

import numpy as np
import pytest

import dovetail
from dovetail.api.distillation import EXPORTS, distill
from dovetail.weights.store import DiskWeightStore

BASE = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 30, tolerance: 0.02}
robot: {type: "dovetail.testing.fakes:FakeArm", image_size: [64, 64]}
policy:
  {type: pi0, new: {horizon: 4}, images: {base_0_rgb: front}, state: [ee_pose, goal], fit_stats: true, num_flow_steps: 1}
algorithm: {type: imitation, batch_size: 2, lr: 1.0e-3}
learner: {bc_updates: 0, warmup_updates: 1}
run: {demos: 2, env_steps: 0, eval_episodes: 1, untrained_episodes: 0, video_episodes: 0}
"""


@pytest.mark.extended
def test_distilled_vla_starts_from_the_weights_and_statistics_of_its_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "base.yaml").write_text(BASE)
    runs = tmp_path / "runs"
    base = dovetail.train(tmp_path / "base.yaml", runs_dir=runs, name="base", evaluate=False)
    slow = {"algorithm.lr": 1e-12, "algorithm.weight_decay": 0.0}
    made = distill(base, "base", slow, name="new", num_updates=1, runs_dir=runs, evaluate=False)

    assert made.num_episodes == 2
    assert made.run.config.policy.config.checkpoint == str(runs / "base" / EXPORTS / "v00000001")
    old, new = (DiskWeightStore(runs / name / "weights").latest() for name in ("base", "new"))
    assert old is not None and new is not None and old.components.keys() == new.components.keys()
    for component, arrays in old.components.items():
        for name, array in arrays.items():
            assert np.allclose(new.components[component][name], array, atol=1e-6), (component, name)
