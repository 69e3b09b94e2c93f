"""Skipped updates are events of the run, for every kind of learning."""

import pytest

from dovetail.config.load import load
from dovetail.core.errors import FailureError, Interrupted
from dovetail.learn.algorithms.imitation import Imitation
from dovetail.learn.algorithms.ppo import PPO
from dovetail.learn.algorithms.rlpd import RLPD
from dovetail.learn.finite import SkippedUpdate
from dovetail.runs.folder import RunFolder
from dovetail.runs.roles.learner import RunLearner
from dovetail.runtime.inline import InlineRun
from support.onpolicy_runs import PPO_RUN
from support.toy_run import TOY


@pytest.fixture
def make(tmp_path):
    def make(recipe, *overrides):
        path = tmp_path / "recipe.yaml"
        path.write_text(recipe)
        return RunFolder.create(tmp_path / "run", load([path], overrides))

    return make


@pytest.fixture
def skip(monkeypatch):
    def skip(algorithm, *numbers):
        """Skip the updates with these numbers."""
        update, count = algorithm.update, iter(range(10**9))

        def update_or_skip(self, batch):
            if next(count) in numbers:
                raise SkippedUpdate("a loss is nan")
            return update(self, batch)

        monkeypatch.setattr(algorithm, "update", update_or_skip)

    return skip


def skipped_events(folder):
    return [(event["in_all"], event["updates"]) for event in folder.events("skipped updates")]


def test_cloning_warm_up_and_online_learning_report_skipped_updates(make, skip):
    folder = make(TOY)
    skip(Imitation, 3, 4)
    skip(RLPD, 5, 60)
    InlineRun(folder).run()
    (cloning, warming, online) = skipped_events(folder)
    assert (cloning, warming) == ((2, 20), (1, 20))
    assert online[0] == 2
    assert 20 + 40 < online[1] <= 20 + 70  # after the episode that had earned it


def test_too_many_skipped_updates_are_reported(make, skip):
    folder = make(TOY, "learner.max_bad_updates=2")
    skip(RLPD, 5, 6)
    with pytest.raises(FailureError, match="2 updates were skipped"):
        InlineRun(folder).run()
    assert skipped_events(folder) == [(2, 6)]


def test_catching_up_reports_skipped_updates(make, skip, monkeypatch):
    folder = make(TOY)
    save, saved = RunLearner.save, []

    def save_before_online_learning(self):
        if len(saved) < 2:
            saved.append(save(self))

    monkeypatch.setattr(RunLearner, "save", save_before_online_learning)
    run = InlineRun(folder)
    run.runtime._should_stop = lambda: run.status.env_steps > 60
    with pytest.raises(Interrupted):
        run.run()
    monkeypatch.setattr(RunLearner, "save", save)
    skip(RLPD, 3)
    InlineRun(RunFolder.open(folder.path)).run()
    (owed,) = (event["updates"] for event in folder.events("catching up"))
    assert skipped_events(folder) == [(1, 20 + owed)]


def test_on_policy_learning_reports_skipped_updates(make, skip):
    folder = make(PPO_RUN)
    skip(PPO, 1, 2)
    InlineRun(folder).run()
    assert skipped_events(folder) == [(1, 2), (2, 3)]
