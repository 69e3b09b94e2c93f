"""Data-parallel runs with several processes: they resume identically, and the end of a rank ends the run with a reason."""

import os
import signal

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.errors import FailureError, Interrupted, UsageError
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.runtime.onpolicy.training import check_on_policy
from dovetail.runtime.ranks import RankGroup
from support import TESTS
from support.onpolicy_runs import PPO_RUN
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


@pytest.mark.extended
def test_resumed_run_is_identical(make, tmp_path):
    run = make("whole")
    run.run()
    assert run.status.updates == 20 + run.status.env_steps
    asked = iter(range(10**9))
    with pytest.raises(Interrupted):
        make("cut", should_stop=lambda: next(asked) >= 130).run()
    assert 0 < state_of(tmp_path / "cut")["algorithm/num_updates"] < run.status.updates
    make("cut", resume=True).run()
    whole, cut = state_of(tmp_path / "whole"), state_of(tmp_path / "cut")
    assert whole.keys() == cut.keys()
    assert all(np.array_equal(whole[key], cut[key]) for key in whole)


def test_killed_rank_ends_the_run_in_one_line(make, tmp_path, monkeypatch):
    groups = []
    lead = RankGroup.lead
    monkeypatch.setattr(RankGroup, "lead", lambda self, *rest: (groups.append(self), lead(self, *rest))[1])
    asked = iter(range(10**9))

    def kill_one():
        if groups and next(asked) == 30:
            os.kill(groups[0]._ranks[0].pid, signal.SIGKILL)
        return False

    with pytest.raises(FailureError, match=r"^learning rank 1 has died: killed by SIGKILL$"):
        make("a", should_stop=kill_one).run()
    assert groups[0]._ranks[0].has_ended
    state_of(tmp_path / "a")  # is complete


def test_rank_killed_during_the_start_ends_the_run(make, monkeypatch):
    start = RankGroup.__init__

    def start_and_kill(self, *rest, **named):
        start(self, *rest, **named)
        self._ranks[0].popen.kill()

    monkeypatch.setattr(RankGroup, "__init__", start_and_kill)
    with pytest.raises(FailureError, match=r"^learning rank 1 has died: killed by SIGKILL$"):
        make("a").run()


def test_error_of_a_rank_ends_the_run(make, monkeypatch):
    start = RankGroup.__init__

    def start_with_wrong_replay(self, folder, *, replay, **rest):
        start(self, folder, replay=replay / "elsewhere", **rest)

    monkeypatch.setattr(RankGroup, "__init__", start_with_wrong_replay)
    with pytest.raises(FailureError, match=r"^learning rank 1 has died: replay view .* is empty"):
        make("a").run()


def test_two_ranks_of_ppo_equal_one(tmp_path, monkeypatch):
    """Rank 0 collects and sends the rollout; the last minibatch has a row for one rank only."""
    path, found = tmp_path / "ppo.yaml", []
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", ""))))
    path.write_text(PPO_RUN)
    for ranks in (1, 2):
        overrides = [f"learner.ranks={ranks}", "run.env_steps=128", "run.untrained_episodes=0"]
        config = load([path], [*overrides, "algorithm.batch_size=21"])  # 64 = 3 * 21 + 1 rows
        folder = RunFolder.create(tmp_path / str(ranks), config)
        InlineRun(folder).run()
        state = state_of(folder.path)
        found.append({name: v for name, v in state.items() if name.startswith("algorithm/policy/")})
    assert found[0].keys() == found[1].keys()
    for name, values in found[0].items():
        np.testing.assert_allclose(values, found[1][name], rtol=2e-3, atol=2e-5, err_msg=name)


def test_ranks_of_ppo_on_ray_need_a_gpu_each(tmp_path):
    path = tmp_path / "ppo.yaml"
    path.write_text(PPO_RUN)
    two = ["learner.ranks=2", "runtime=ray"]
    check_on_policy(load([path], two))  # on a CPU
    check_on_policy(load([path], [*two, "cluster.learner.num_gpus=2"]))
    with pytest.raises(UsageError, match=r"cluster\.learner\.num_gpus is 1. Set it to 2"):
        check_on_policy(load([path], [*two, "cluster.learner.num_gpus=1"]))


@pytest.mark.extended
def test_sharded_policy_learns_publishes_and_saves(make, tmp_path):
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
    assert state["algorithm/policy/actor/chunk.weight"].shape == (
        16,
        4 * run.runtime._assembly.robot.spec.action.shape[0],
    )
    make("a", resume=True).run()
