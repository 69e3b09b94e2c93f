"""What is written down of practice: lines that the report is made of, and, on request, episodes in the log."""

import json
import os

import numpy as np
import pytest
import torch

from dovetail.config.load import load
from dovetail.core.errors import UsageError
from dovetail.core.types import Outcome, Purpose, View
from dovetail.episodes.log import EpisodeLog
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.reports.report import write_report
from dovetail.runs.checkpoints import Keeping
from dovetail.runs.folder import RunFolder
from dovetail.runs.rollout_history import RolloutHistory, RolloutResult, finished_episodes, record_rollout
from dovetail.core.errors import Interrupted
from dovetail.runtime.inline import InlineRun
from support import TESTS
from support.onpolicy_runs import PPO_RUN, build_policy, build_training

SHORT = ("task.max_steps=8", "task.tolerance=0.0001")  # nobody is that exact: all time out


@pytest.fixture
def make_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    recipe = tmp_path / "practice.yaml"
    recipe.write_text(PPO_RUN)
    return lambda *overrides: RunFolder.create(tmp_path / "run", load([recipe], overrides))


def lines(folder):
    events = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "practice"]


def practised(folder):
    log = EpisodeLog(folder.episodes)
    return [log.load(i) for i in log.ids() if log.manifest(i).purpose is Purpose.ONLINE]


# ---- the report


def test_the_report_tells_of_practice(make_folder):
    folder = make_folder(*SHORT)
    run = InlineRun(folder)
    control_hz = run._station.robot.spec.control_hz
    run.run()
    report = write_report(folder)
    assert (report.env_steps, report.updates, report.episodes) == (256, 4, 32)
    assert report.robot_minutes == pytest.approx(256 / control_hz / 60)
    assert not any("online" in what for what in report.missing)
    assert [line["env_steps"] for line in lines(folder)] == [64, 128, 192, 256]
    assert lines(folder)[0]["length"] == [8] * 8
    assert {"reward/success", "reward/nearer"} <= lines(folder)[0].keys()
    assert practised(folder) == []


def test_what_a_killed_run_did_again_counts_once(make_folder):
    folder = make_folder()
    assert RolloutHistory.read(folder).curve == []
    for env_steps, success in ((64, [False]), (128, [False, True]), (192, [True]), (128, [True, True]), (192, [])):
        episodes = {"success": np.array(success), "length": np.full(len(success), 9)}
        lesson = RolloutResult(metrics={}, episodes=episodes)
        record_rollout(folder, lesson, env_steps=env_steps, robot_minutes=env_steps / 64)
    with (folder.path / "events.jsonl").open("a") as file:
        file.write('{"time": 1.0, "event": "practice", "env_st')  # and was killed again
    book = RolloutHistory.read(folder)
    assert (book.env_steps, book.robot_minutes) == (192, 3.0)
    assert [(one.end_minutes, one.success) for one in book.curve] == [(1.0, False), (1.5, True), (2.0, True)]


# ---- going on


def test_what_was_practised_until_a_checkpoint(make_folder):
    folder = make_folder()
    for env_steps, success in ((64, [False]), (128, [False, True]), (192, [True]), (128, [True, True]), (192, [])):
        rewards = np.arange(len(success), dtype=np.float32) + env_steps
        episodes = {"success": np.array(success), "reward/nearer": rewards, "reward/success": rewards}
        record_rollout(
            folder, RolloutResult(metrics={}, episodes=episodes), env_steps=env_steps, robot_minutes=1.0
        )
    folder.event("practice", env_steps=256, success=[True, False], **{"reward/a": 0.5, "reward/b": 2.0})  # 0.6.0's
    assert list(finished_episodes(folder.path, env_steps=0)) == []
    first = [(False, 128.0), (True, 256.0), (True, 258.0)]
    assert list(finished_episodes(folder.path, env_steps=192)) == first
    assert list(finished_episodes(folder.path, env_steps=256)) == [*first, (True, 2.5), (False, 2.5)]


SOLVED = ("task.tolerance=0.1", "run.env_steps=1280", "run.untrained_episodes=0", "run.checkpoint_every_s=0.0001")


@pytest.mark.parametrize("how", ["stopped", "killed", "stopped when solved"])
def test_a_resumed_run_is_solved_where_an_uninterrupted_one_is(make_folder, tmp_path, monkeypatch, how):
    config = make_folder(*SOLVED, "run.stop_when_solved={window: 20, success_rate: 0.5}").config
    whole = InlineRun(RunFolder.create(tmp_path / "whole", config))
    whole.run()
    end = whole.status.env_steps
    assert 256 < end < 1280
    phase = "evaluating: after" if how == "stopped when solved" else "practising"
    cut, seen = RunFolder.create(tmp_path / "cut", config), []

    def watch(status):
        seen.append(status.phase == phase and status.env_steps >= end - 64)

    if how == "killed":  # the checkpoint knows nothing of the last two rollouts
        save = Keeping.save
        monkeypatch.setattr(
            Keeping, "save", lambda self, one: save(self, one) if one.env_steps <= end - 192 else None
        )
    with pytest.raises(Interrupted):
        InlineRun(cut, on_status=watch, should_stop=lambda: any(seen)).run()
    monkeypatch.undo()
    again = InlineRun(RunFolder.open(tmp_path / "cut"))
    again.run()
    assert again.status.env_steps == end
    for name in ("recent_success", "recent_return", "recent_human"):
        assert getattr(again.status, name) == getattr(whole.status, name)
    states = [load_checkpoint(tmp_path / name / "checkpoints" / "last")[0] for name in ("whole", "cut")]
    assert np.array_equal(states[0]["practice/counters"], states[1]["practice/counters"])


# ---- the log


@pytest.mark.parametrize("mode", ["false", "true"])
def test_a_recorded_episode_is_what_was_learned_from(make_folder, mode):
    folder = make_folder(
        *SHORT, "algorithm.record_episodes=true", f"algorithm.asynchronous={mode}", "run.untrained_episodes=0"
    )
    before = build_training(folder.config).policy_weights()
    InlineRun(folder).run()
    episodes = practised(folder)
    assert len(episodes) >= 32  # a collector of its own is at the next ones when it is told to end
    assert mode == "true" or len(episodes) == 32
    first = episodes[0]
    assert (len(first), first.outcome, first.operator) == (8, Outcome.TIMEOUT, "none")
    assert first.config_hash == folder.config_hash
    assert first.column("policy_version").tolist() == [0] * 8
    assert {int(v) for episode in episodes for v in episode.column("policy_version")} >= {0, 1, 2}
    policy = build_policy(folder.config, before)
    seen = {key: torch.from_numpy(first.column(f"observation/{key}")) for key in ("ee_pose", "goal")}
    drawn = first.column("extra/drawn")
    with torch.no_grad():
        log_prob, _, value = policy.evaluate_actions(policy.features(seen), torch.from_numpy(drawn))
    np.testing.assert_allclose(first.column("extra/log_prob"), log_prob.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(first.column("extra/value"), value.numpy(), rtol=1e-4, atol=1e-4)
    low, high = first.robot.action.bounds
    within = np.clip(drawn, -1, 1) * (high - low) / 2 + (low + high) / 2
    np.testing.assert_allclose(first.column("proposed"), within, rtol=1e-5, atol=1e-7)
    assert first.column("executed").shape == within.shape
    assert not first.column("extra/safety_held").any()
    # the last observation is of this episode still
    assert np.array_equal(first.last_observation.values["goal"], seen["goal"][-1].numpy())


def test_what_was_recorded_is_never_replayed_nor_counted_twice(make_folder):
    folder = make_folder(*SHORT, "algorithm.record_episodes=true")
    InlineRun(folder).run()
    again = InlineRun(RunFolder.open(folder.path))
    assert len(practised(folder)) == 32
    assert again._experience.replay.size(View(part="all")) == 0
    again.close()
    assert write_report(folder).episodes == 32


def test_there_must_be_somewhere_to_record_to(make_folder):
    practice = build_training(make_folder("algorithm.record_episodes=true").config)
    with pytest.raises(UsageError, match=r"algorithm\.record needs a run's folder"):
        practice.step()
