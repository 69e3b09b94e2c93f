"""Runs that several real processes learn for: the same as ever, resumable, and ended in one line when one of them dies."""

import os
import signal

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import FailureError, UsageError
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun, Interrupted
from dovetail.runtime.onpolicy.training import check_practice
from dovetail.runtime.ranks import RankGroup
from support.toy_run import TOY

TWO = (
    "learner.ranks=2",
    "learner.bc_updates=0",
    "run.untrained_episodes=0",
    "run.eval_episodes=1",
    "run.env_steps=60",
)


@pytest.fixture
def make(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)

    def make(name, *overrides, resume=False, **settings):
        where = tmp_path / name
        folder = RunFolder.open(where) if resume else RunFolder.create(where, load([path], [*TWO, *overrides]))
        return InlineRun(folder, **settings)

    return make


def state_of(path):
    return load_checkpoint(path / "checkpoints" / "last")[0]


def test_interrupted_and_resumed_equals_uninterrupted(make, tmp_path):
    run = make("whole")
    run.run()
    assert run.status.updates == 20 + run.status.env_steps
    asked = iter(range(10**9))
    with pytest.raises(Interrupted):
        make("cut", should_stop=lambda: next(asked) >= 130).run()
    assert 0 < state_of(tmp_path / "cut")["algorithm/num_updates"] < run.status.updates
    make("cut", resume=True).run()
    one, other = state_of(tmp_path / "whole"), state_of(tmp_path / "cut")
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[key], other[key]) for key in one)


def test_a_rank_that_is_killed_ends_the_run_in_one_line(make, tmp_path, monkeypatch):
    groups = []
    lead = RankGroup.lead
    monkeypatch.setattr(RankGroup, "lead", lambda self, *rest: (groups.append(self), lead(self, *rest))[1])
    asked = iter(range(10**9))

    def kill_one():
        if groups and next(asked) == 30:
            os.kill(groups[0]._processes[0].pid, signal.SIGKILL)
        return False

    with pytest.raises(FailureError, match=r"^learning rank 1 has died: killed by SIGKILL$"):
        make("a", should_stop=kill_one).run()
    assert groups[0]._processes[0].poll() is not None
    state_of(tmp_path / "a")  # whole


def test_a_rank_that_dies_before_it_has_joined_is_not_waited_for(make, monkeypatch):
    start = RankGroup.__init__

    def stillborn(self, *rest, **named):
        start(self, *rest, **named)
        self._processes[0].kill()

    monkeypatch.setattr(RankGroup, "__init__", stillborn)
    with pytest.raises(FailureError, match=r"^learning rank 1 has died: killed by SIGKILL$"):
        make("a").run()


def test_what_a_rank_says_is_heard(make, monkeypatch):
    start = RankGroup.__init__

    def astray(self, folder, *, replay, **rest):
        start(self, folder, replay=replay / "elsewhere", **rest)

    monkeypatch.setattr(RankGroup, "__init__", astray)
    with pytest.raises(FailureError, match=r"^learning rank 1 has died: replay view .* is empty"):
        make("a").run()


def test_practice_has_its_own_processes(make, tmp_path):
    config = load(
        [tmp_path / "toy.yaml"] if (tmp_path / "toy.yaml").exists() else [], [*TWO, "operator={type: none}"]
    )
    with pytest.raises(UsageError, match="for algorithms that learn from replay"):
        check_practice(config)


def test_a_sharded_policy_learns_publishes_and_saves(make, tmp_path):
    sharded = (
        "learner.shard=true",
        "algorithm={type: hg_dagger, batch_size: 16}",
        "policy={type: flow, horizon: 4, hidden: 16, num_layers: 1}",
        "learner.warmup_updates=10",
        "run.env_steps=30",
    )
    run = make("a", *sharded)
    run.run()
    assert run.status.updates > 10
    state = state_of(tmp_path / "a")
    assert state["algorithm/policy/actor/chunk.weight"].shape == (16, 4 * run._station.robot.spec.action.shape[0])
    make("a", resume=True).run()
