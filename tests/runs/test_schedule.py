"""Scheduled evaluations: each runs once, with the same episodes, even after a kill."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dovetail.api.weights import find_weights
from dovetail.config.load import load
from dovetail.core.errors import FailureError, Interrupted, UsageError
from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.learn.algorithms.rlpd import RLPD
from dovetail.learn.checkpoint import checkpoint_facts, load_checkpoint
from dovetail.learn.finite import SkippedUpdate
from dovetail.reports.report import write_report
from dovetail.runs.folder import RunFolder
from dovetail.runs.schedule import Schedule, scheduled_evaluations
from dovetail.runtime.inline import InlineRun
from dovetail.weights.store import DiskWeightStore
from support.toy_run import TOY

SCHEDULED = (
    "run.eval_every_steps=50",
    "run.scheduled_eval_episodes=3",
    "run.env_steps=200",
    "run.video_episodes=0",
)


@pytest.fixture
def make(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)

    def make(name, *overrides, resume=False, **settings):
        where = tmp_path / name
        folder = RunFolder.open(where) if resume else RunFolder.create(where, load([path], overrides))
        return InlineRun(folder, **settings)

    return make


def weights_of(path):
    snapshot = DiskWeightStore(path / "weights").latest()
    return {f"{c}/{n}": v for c, arrays in snapshot.components.items() for n, v in arrays.items()}


def state_of(path):
    return load_checkpoint(path / "checkpoints" / "last")[0]


def arrays_equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def episodes_of(path, purpose):
    log = EpisodeLog(path / "episodes")
    whole = [log.load(i) for i in log.ids()]
    return [e for e in whole if e.purpose is purpose and e.outcome is not Outcome.ABORTED]


def evaluations_of(path):
    found = {}
    for file in sorted((path / "evaluations").glob("at-*.json")):
        facts = json.loads(file.read_text())
        found[file.stem] = {k: facts[k] for k in ("successes", "episodes", "env_steps")}
    return found


def events_of(path, kind):
    lines = (path / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.extended
def test_evaluations_are_on_time_and_not_in_the_replay(make, tmp_path):
    run = make("a", *SCHEDULED)
    run.run()
    path = tmp_path / "a"
    found = evaluations_of(path)
    assert list(found) == ["at-00000050", "at-00000100", "at-00000150", "at-00000200"]
    for name, facts in found.items():
        assert facts["episodes"] == 3
        assert int(name[3:]) <= facts["env_steps"] < int(name[3:]) + 30  # the last episode may go past the limit
    num_evaluated = 2 + 4 + 4 * 3 + 4
    evaluated = episodes_of(path, Purpose.EVAL)
    assert len(evaluated) == num_evaluated
    assert not {e.id for e in evaluated} & set(run.runtime.store.replay.ids())
    starts = [e.column("observation/goal")[0] for e in evaluated]
    for first in range(6, num_evaluated - 4, 3):  # the same resets each time
        assert all(np.array_equal(starts[first + i], starts[2 + i]) for i in range(3))
    assert [name for name in run.status.evaluations if name.startswith("at-")] == list(found)
    assert len(scheduled_evaluations(RunFolder.open(path))) == 4


@pytest.mark.extended
def test_evaluations_do_not_change_the_weights(make, tmp_path):
    make("a", *SCHEDULED).run()
    make("b", "run.env_steps=200", "run.video_episodes=0").run()
    assert arrays_equal(weights_of(tmp_path / "a"), weights_of(tmp_path / "b"))


@pytest.mark.extended
@pytest.mark.parametrize("polls", [150, 235, 247, 300, 420])
def test_resume_after_an_interrupt_is_identical(make, tmp_path, polls):
    make("whole", *SCHEDULED).run()
    asked = iter(range(10**9))
    with pytest.raises(Interrupted):
        make("cut", *SCHEDULED, should_stop=lambda: next(asked) >= polls).run()
    make("cut", resume=True).run()
    assert arrays_equal(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))
    assert evaluations_of(tmp_path / "whole") == evaluations_of(tmp_path / "cut")
    assert len(events_of(tmp_path / "cut", "evaluated")) == len(events_of(tmp_path / "whole", "evaluated"))


KILLABLE = """
import os, signal, sys
from pathlib import Path
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
asked, at = iter(range(10**9)), int(sys.argv[2])
def poll():
    if next(asked) == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return False
InlineRun(RunFolder.open(Path(sys.argv[1])), should_stop=poll).run()
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("learner.publish_every=37", "run.checkpoint_every_s=0.2"),
        (
            "learner.publish_every=1000",
            "run.eval_every_steps=null",
        ),  # trap: catching up published the first online weights again
        ("learner.publish_every=50", "run.eval_every_steps=60"),  # trap: an evaluation also publishes
    ],
)
def test_resume_after_kills_is_identical(make, tmp_path, settings):
    """Several kill -9, with and without a checkpoint in between, change no bit of the weights, evaluations,
    optimizers, temperature, generators or counters."""
    make("whole", *SCHEDULED, *settings).run()
    make("cut", *SCHEDULED, *settings).close()
    for polls in (280, 360, 190):
        done = subprocess.run([sys.executable, "-c", KILLABLE, str(tmp_path / "cut"), str(polls)])
        assert done.returncode in (-9, 0)
    subprocess.run([sys.executable, "-c", KILLABLE, str(tmp_path / "cut"), "-1"], check=True)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert arrays_equal(state_of(whole), state_of(cut))
    assert arrays_equal(weights_of(whole), weights_of(cut))
    assert evaluations_of(whole) == evaluations_of(cut)
    for purpose in (Purpose.DEMO, Purpose.ONLINE):
        pairs = zip(episodes_of(whole, purpose), episodes_of(cut, purpose), strict=True)
        assert all(np.array_equal(a.column("executed"), b.column("executed")) for a, b in pairs)


@pytest.mark.extended
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_exception_inside_an_update_keeps_the_last_checkpoint(make, tmp_path, monkeypatch, error):
    """Trap: a second Ctrl-C or an out-of-memory error between the critic's step and the actor's."""
    make("whole", *SCHEDULED).run()
    fit, count = RLPD._step_critic, iter(range(10**9))

    def broken(self, *arguments):
        metrics = fit(self, *arguments)
        if next(count) == 60:
            raise error
        return metrics

    run = make("cut", *SCHEDULED)
    with monkeypatch.context() as patched:
        patched.setattr(RLPD, "_step_critic", broken)
        with pytest.raises(error):
            run.run()
    make("cut", resume=True).run()
    assert arrays_equal(state_of(tmp_path / "whole"), state_of(tmp_path / "cut"))
    assert arrays_equal(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))


def test_best_checkpoint_follows_the_scheduled_evaluations(make, tmp_path, monkeypatch):
    run = make("a", *SCHEDULED)
    rates, keep = iter((1, 3, 2, 3)), run._keep_if_best
    monkeypatch.setattr(
        run, "_keep_if_best", lambda figure, by: keep({"success": next(rates) / 3} if figure else {}, by)
    )
    run.run()
    assert [e["by"][-8:] for e in events_of(tmp_path / "a", "best checkpoint")] == [
        "00000050",
        "00000100",
        "00000200",
    ]
    facts = checkpoint_facts(tmp_path / "a" / "checkpoints" / "best")
    assert facts["success"] == 1.0
    assert facts["env_steps"] == evaluations_of(tmp_path / "a")["at-00000200"]["env_steps"]
    source = find_weights(str(tmp_path / "a"), version=None, best=True, runs_dir=tmp_path)
    assert source.checkpoint == tmp_path / "a" / "checkpoints" / "best"
    with pytest.raises(UsageError, match="leave out --best or --version"):
        find_weights(str(tmp_path / "a"), version=1, best=True, runs_dir=tmp_path)


KILLED_WHILE_STORING = """
import os, signal, sys
from pathlib import Path
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
write_json, when = RunFolder.write_json, sys.argv[2]
def killed(folder, name, data):
    if when == "after":
        write_json(folder, name, data)
    if name.startswith("evaluations/at-"):
        os.kill(os.getpid(), signal.SIGKILL)
    if when == "before":
        write_json(folder, name, data)
RunFolder.write_json = killed
InlineRun(RunFolder.open(Path(sys.argv[1]))).run()
"""


@pytest.mark.extended
@pytest.mark.parametrize("when", ["before", "after"])
def test_best_checkpoint_survives_a_kill_while_the_evaluation_is_stored(make, tmp_path, when):
    settings = ("run.eval_every_steps=50", "run.scheduled_eval_episodes=3", "run.env_steps=90")
    make("whole", *settings).run()
    make("cut", *settings).close()
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_STORING, str(tmp_path / "cut"), when])
    assert done.returncode == -9
    make("cut", resume=True).run()
    whole, cut = (load_checkpoint(tmp_path / name / "checkpoints" / "best") for name in ("whole", "cut"))
    assert arrays_equal(whole[0], cut[0])
    assert whole[1] == cut[1]
    assert cut[1]["by"] == "evaluation at-00000050"
    assert evaluations_of(tmp_path / "whole") == evaluations_of(tmp_path / "cut")


@pytest.mark.extended
def test_without_a_schedule_recent_episodes_decide_the_best(make, tmp_path):
    make("a", "run.env_steps=650", "run.checkpoint_every_s=0.001", "learner.utd=0.2").run()  # at least 21 episodes
    folder = RunFolder.open(tmp_path / "a")
    facts = checkpoint_facts(tmp_path / "a" / "checkpoints" / "best")
    assert facts["by"] == "recent practice"
    assert Schedule(folder).is_best({"success": facts["success"]})
    assert not Schedule(folder).is_best({"success": facts["success"] - 0.01})


def test_no_best_checkpoint_before_20_episodes(make, tmp_path):
    make("a").run()
    with pytest.raises(UsageError, match="no best checkpoint yet"):
        find_weights(str(tmp_path / "a"), version=None, best=True, runs_dir=tmp_path)


def test_publish_every_limits_the_versions(make, tmp_path):
    run = make("a", "learner.publish_every=50")
    published = []
    learner = run.runtime.learner
    publish = learner.publish
    learner.publish = lambda: (published.append(learner.learner.num_updates), publish())
    run.run()
    assert published[0] == 20  # online learning starts with these
    assert [n // 50 for n in published[1:-1]] == sorted({n // 50 for n in published[1:-1]})
    assert published[-1] == run.status.updates  # the final evaluation uses the last update
    assert len(published) < run.status.episodes
    versions = [e.column("policy_version") for e in episodes_of(tmp_path / "a", Purpose.ONLINE)]
    assert len({int(v.max()) for v in versions}) < len(versions)


def test_skipped_updates_stop_the_run_with_the_last_good_checkpoint(make, tmp_path, monkeypatch):
    run = make("a", "learner.max_bad_updates=3")
    update, count = RLPD.update, iter(range(10**9))

    def broken(self, batch):
        if next(count) >= 60:
            raise SkippedUpdate("critic's loss is nan")
        return update(self, batch)

    monkeypatch.setattr(RLPD, "update", broken)
    with pytest.raises(FailureError, match=r"learning failed at update 62: critic's loss is nan"):
        run.run()
    assert state_of(tmp_path / "a")["algorithm/num_updates"] < 60
    assert state_of(tmp_path / "a")["learner/counters"][2] == 0
    monkeypatch.setattr(RLPD, "update", update)
    make("a", resume=True).run()


def test_report_has_the_scheduled_evaluations(make, tmp_path):
    make("a", *SCHEDULED).run()
    report = write_report(RunFolder.open(tmp_path / "a")).to_json()
    assert [point["env_steps"] for point in report["scheduled"]] == [
        facts["env_steps"] for facts in evaluations_of(tmp_path / "a").values()
    ]
    assert all(0 <= p["low"] <= p["rate"] <= p["high"] <= 1 for p in report["scheduled"])
