"""A whole run with a small VLA: interrupted and resumed it gives the same weights, and it learns by each method."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import Interrupted
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.weights.store import DiskWeightStore
from support.small_vlas import SMALL_VLAS, write_small_vla

SHORT = (
    "run.seed=3",
    "run.demos=2",
    "learner.bc_updates=2",
    "run.env_steps=40",
    "learner.utd=0.2",
    "run.eval_episodes=1",
    "run.video_episodes=0",
    "algorithm.batch_size=8",
    "task.time_limit_s=2",
    "run.checkpoint_every_s=0.001",  # after each episode
)

POLICY = (
    "policy={{type: {family}, checkpoint: {model}, images: {{{camera}: front}}, state: [task_state], "
    "fit_stats: true, freeze_vision: true, cache_vision: true, num_flow_steps: 2, device: cpu}}"
)


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(name, recipe, *, family="pi0", resume=False, **settings):
        path, model = tmp_path / name, tmp_path / family
        more = (
            []
            if family == "pi0"
            else [POLICY.format(family=family, model=model, camera=SMALL_VLAS[family].camera)]
        )
        if more and not model.exists():
            write_small_vla(family, model, horizon=8)
        folder = RunFolder.open(path) if resume else RunFolder.create(path, load([recipe], [*SHORT, *more]))
        return InlineRun(folder, **settings)

    return make


def weights_of(path):
    snapshot = DiskWeightStore(path / "weights").latest()
    return {f"{c}/{n}": v for c, arrays in snapshot.components.items() for n, v in arrays.items()}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("recipe", "family"),
    [
        ("push-by-prompt", "pi0"),
        ("push-by-prompt", "smolvla"),
        ("push-by-prompt-hi-ors", "pi0"),
        ("push-by-prompt-recap", "pi0"),
    ],
)
def test_resumed_run_is_bit_exact(make, tmp_path, recipe, family):
    make("whole", recipe, family=family).run()
    done = []
    cut = make("cut", recipe, family=family, should_stop=lambda: len(done) >= 5)  # asked after each update
    keep = cut.runtime.learner.keep_if_due
    cut.runtime.learner.keep_if_due = lambda: (keep(), cut.runtime.learner.learner and done.append(1))
    with pytest.raises(Interrupted):
        cut.run()
    state, _ = load_checkpoint(tmp_path / "cut" / "checkpoints" / "last")
    assert state["algorithm/num_updates"] <= 5
    make("cut", recipe, resume=True).run()
    whole, again = weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut")
    assert whole.keys() == again.keys()
    assert all(np.array_equal(whole[key], again[key]) for key in whole)
    states = [load_checkpoint(tmp_path / name / "checkpoints" / "last")[0] for name in ("whole", "cut")]
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[0])
