"""Whole inline runs: they learn, are deterministic, and continue after interrupts and kills."""

import subprocess
import sys
import time

import numpy as np
import pytest

from dovetail.api.weights import find_weights
from dovetail.config.load import load
from dovetail.core.errors import FailureError, Interrupted
from dovetail.core.types import Event, HumanInput, Outcome, Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.learn.algorithms.rlpd import RLPD
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.live.link import LiveLink
from dovetail.runs.assembly.workcell import Workcell
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from dovetail.weights.store import DiskWeightStore
from support.toy_run import TOY


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    return lambda *overrides: load([path], overrides)


@pytest.fixture
def make(toy, tmp_path):
    def make(name, *overrides, resume=False, **settings):
        path = tmp_path / name
        folder = RunFolder.open(path) if resume else RunFolder.create(path, toy(*overrides))
        return InlineRun(folder, **settings)

    return make


def weights_of(path):
    snapshot = DiskWeightStore(path / "weights").latest()
    return {f"{c}/{n}": v for c, arrays in snapshot.components.items() for n, v in arrays.items()}


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def actions_of(path, purpose):
    log = EpisodeLog(path / "episodes")
    episodes = [log.load(i) for i in log.ids()]
    return [e.column("executed") for e in episodes if e.purpose is purpose and e.outcome is not Outcome.ABORTED]


def test_run_has_all_phases(make, tmp_path):
    phases = []
    run = make("a", on_status=lambda status: phases.append(status.phase))
    run.run()
    assert list(dict.fromkeys(phases)) == [
        "evaluating: untrained",
        "recording demonstrations",
        "cloning the demonstrations",
        "evaluating: cloning",
        "warming up on demonstrations",
        "learning online",
        "evaluating: after",
    ]
    assert set(run.status.evaluations) == {"untrained", "cloning", "after"}
    assert run.status.env_steps >= 120
    assert run.status.updates == 20 + run.status.env_steps  # warm-up, then one update a step
    counted = {p: len(actions_of(tmp_path / "a", p)) for p in Purpose}
    assert counted == {Purpose.DEMO: 3, Purpose.ONLINE: run.status.episodes, Purpose.EVAL: 10}


@pytest.mark.extended
def test_same_seed_gives_the_same_run(make, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make(name, f"run.seed={seed}").run()
    a, b, c = (weights_of(tmp_path / name) for name in "abc")
    assert same(a, b)
    assert not same(a, c)
    for purpose in Purpose:
        first, second = (actions_of(tmp_path / name, purpose) for name in "ab")
        assert all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.extended
@pytest.mark.parametrize("polls", [1, 30, 95, 150, 260])
def test_resume_after_an_interrupt_is_identical(make, tmp_path, polls):
    make("whole").run()
    asked = iter(range(10**9))
    with pytest.raises(Interrupted):
        make("cut", should_stop=lambda: next(asked) >= polls).run()
    make("cut", resume=True).run()
    assert same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))
    for purpose in (Purpose.DEMO, Purpose.ONLINE):
        first, second = (actions_of(tmp_path / name, purpose) for name in ("whole", "cut"))
        assert all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.extended
def test_resume_of_a_finished_run_does_nothing(make, tmp_path):
    make("a").run()
    before = sorted(p.name for p in (tmp_path / "a" / "episodes").iterdir())
    make("a", resume=True).run()
    assert sorted(p.name for p in (tmp_path / "a" / "episodes").iterdir()) == before


def test_evaluations_use_the_published_weights(make, tmp_path):
    """Trap: evaluation that never loads the weights it names."""
    make("a").run()
    log = EpisodeLog(tmp_path / "a" / "episodes")
    versions = [log.manifest(i).policy_versions for i in log.ids() if log.manifest(i).purpose is Purpose.EVAL]
    newest = DiskWeightStore(tmp_path / "a" / "weights").latest().version
    assert versions[:2] == [(0,)] * 2  # untrained
    assert versions[2:6] == [(1,)] * 4  # cloning
    assert versions[6:] == [(newest,)] * 4


@pytest.mark.extended
def test_run_stops_when_solved(make):
    run = make(
        "a", "run.env_steps=100000", "run.stop_when_solved={window: 1, success_rate: 1.0}", "operator={type: none}"
    )
    run.run()
    assert run.status.env_steps < 100000


def test_run_learns(make):
    """From scratch to reliable on a toy task. Real tasks are in the slow tests."""
    run = make(
        "a",
        "learner={utd: 2, warmup_updates: 200, bc_updates: 0, start_from: scratch}",
        "run={demos: 5, env_steps: 1200, eval_episodes: 20, untrained_episodes: 20}",
        "algorithm.bc_weight=1.0",
    )
    run.run()
    before, after = run.status.evaluations["untrained"], run.status.evaluations["after"]
    assert after.success.low > before.success.high
    assert after.per_minute > before.per_minute
    assert after.returns.mean > before.returns.mean


class Discarding:
    """An operator who discards the first episode."""

    name = "person"

    def __init__(self):
        self.num_episodes = self.num_polls = 0

    def reset(self, *, rng, robot_minutes):
        self.num_episodes += 1
        self.num_polls = 0

    def poll(self, observation):
        self.num_polls += 1
        throw = self.num_episodes == 1 and self.num_polls == 4
        return HumanInput(event=Event.DISCARD if throw else None)


def test_discarded_episode_is_stored_and_not_replayed(make, tmp_path, monkeypatch):
    run = make("a", "run.env_steps=40")
    person = Discarding()
    usual = Workcell.operator
    monkeypatch.setattr(
        Workcell,
        "operator",
        lambda self, purpose, *rest, **noise: (
            person if purpose is Purpose.ONLINE else usual(self, purpose, *rest, **noise)
        ),
    )
    run.run()
    log = EpisodeLog(tmp_path / "a" / "episodes")
    aborted = [i for i in log.ids() if log.manifest(i).outcome is Outcome.ABORTED]
    assert len(aborted) == 1
    assert aborted[0] not in run.runtime.store.replay.ids()
    assert run.status.env_steps >= 40


def test_gymnasium_environment_learns_without_demonstrations(tmp_path):
    path = tmp_path / "gym.yaml"
    path.write_text(
        """
robot: {type: gym, id: Pendulum-v1, max_steps: 30}
policy: {type: gaussian_mlp, hidden: [32, 32]}
labels: [{type: outcome, dense: true}]
algorithm: {type: rlpd, batch_size: 32, hidden: [32, 32], target_range: null}
learner: {utd: 1}
run: {demos: 0, env_steps: 90, eval_episodes: 2, untrained_episodes: 1}
"""
    )
    run = InlineRun(RunFolder.create(tmp_path / "g", load([path])))
    run.run()
    assert run.status.updates == 90
    assert run.status.evaluations["after"].num_episodes == 2


@pytest.mark.extended
def test_resume_after_several_kills_loses_nothing(toy, tmp_path):
    """SIGKILL, resume, SIGKILL, resume: everything that was committed stays, and the run comes to its end.

    Trap: a second resume that lost trajectories.
    """
    RunFolder.create(tmp_path / "k", toy("run.checkpoint_every_s=0.05", "run.env_steps=600"))
    code = (
        "import sys; from pathlib import Path; from dovetail.runs.folder import RunFolder;"
        "from dovetail.runtime.inline import InlineRun; InlineRun(RunFolder.open(Path(sys.argv[1]))).run()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "k")]
    log, committed = EpisodeLog(tmp_path / "k" / "episodes"), set()
    for num_more in (4, 6, 12):  # in the demonstrations, in the evaluation of cloning, online
        process = subprocess.Popen(command)
        deadline_s = time.monotonic() + 60
        while len(log.ids()) < len(committed) + num_more and time.monotonic() < deadline_s:
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert committed <= set(log.ids())
        committed = set(log.ids())
    subprocess.run(command, check=True)
    assert committed <= set(log.ids())
    for episode_id in log.ids():
        log.verify(episode_id)
    assert (tmp_path / "k" / "evaluations" / "after.json").exists()


def test_failed_update_keeps_the_last_good_checkpoint(make, tmp_path, monkeypatch):
    run = make("a")
    update, count = RLPD.update, iter(range(10**9))

    def broken(self, batch):
        metrics = update(self, batch)
        return {**metrics, "critic_loss": np.nan} if next(count) == 60 else metrics

    monkeypatch.setattr(RLPD, "update", broken)
    with pytest.raises(FailureError, match="learning failed"):
        run.run()
    state, _ = load_checkpoint(tmp_path / "a" / "checkpoints" / "last")
    assert state["algorithm/num_updates"] < 60
    monkeypatch.setattr(RLPD, "update", update)
    make("a", resume=True).run()


def test_checkpoints_are_kept_every_n_updates(make, tmp_path):
    """They hold the state right after the update of their number, and the run goes on as without them."""
    make("a").run()
    make("b", "run.checkpoint_every_updates=50").run()
    assert same(weights_of(tmp_path / "a"), weights_of(tmp_path / "b"))
    last, _ = load_checkpoint(tmp_path / "b" / "checkpoints" / "last")
    total = int(last["algorithm/num_updates"])
    kept = sorted(path.name for path in (tmp_path / "b" / "checkpoints").glob("update-*"))
    assert kept == [f"update-{number:08d}" for number in range(50, total + 1, 50)]
    for name in kept:
        state, _ = load_checkpoint(tmp_path / "b" / "checkpoints" / name)
        assert f"update-{int(state['algorithm/num_updates']):08d}" == name
    assert not list((tmp_path / "a" / "checkpoints").glob("update-*"))
    source = find_weights(tmp_path / "b" / "checkpoints" / kept[0], runs_dir=tmp_path)
    assert (
        source.snapshot().components.keys()
        == DiskWeightStore(tmp_path / "b" / "weights").latest().components.keys()
    )


@pytest.mark.extended
def test_live_link_does_not_change_a_run(make, tmp_path):
    """Link, board and console control change nothing while no console is open."""
    make("alone").run()
    announcements = []
    make(
        "linked", live=lambda robot: LiveLink(tmp_path / "linked", robot=robot, announce=announcements.append)
    ).run()
    assert same(weights_of(tmp_path / "alone"), weights_of(tmp_path / "linked"))
    for purpose in Purpose:
        ours, theirs = (actions_of(tmp_path / name, purpose) for name in ("alone", "linked"))
        assert len(ours) == len(theirs) > 0
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert announcements == []
    assert not (tmp_path / "linked" / "live.json").exists()
