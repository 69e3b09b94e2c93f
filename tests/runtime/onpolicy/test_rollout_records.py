"""Events of rollouts, from which the report is made, and recorded episodes."""

import json
import os

import numpy as np
import pytest
import torch

from dovetail.config.load import load
from dovetail.core.errors import Interrupted, UsageError
from dovetail.core.types import Outcome, PromptChange, Purpose, View
from dovetail.episodes.log import EpisodeLog
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.reports.report import write_report
from dovetail.reports.rollouts import RolloutHistory
from dovetail.runs.checkpoints import Checkpoints
from dovetail.runs.folder import RunFolder
from dovetail.runs.rollout_history import RolloutResult, finished_episodes, record_rollout
from dovetail.runtime.inline import InlineRun
from support import TESTS
from support.onpolicy_runs import PPO_RUN, build_policy, build_training

SHORT = ("task.max_steps=8", "task.tolerance=0.0001")  # too exact: every episode times out


@pytest.fixture
def make_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    recipe = tmp_path / "ppo.yaml"
    recipe.write_text(PPO_RUN)
    return lambda *overrides: RunFolder.create(tmp_path / "run", load([recipe], overrides))


def rollout_events(folder):
    events = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "practice"]


def online_episodes(folder):
    log = EpisodeLog(folder.episodes)
    return [log.load(i) for i in log.ids() if log.manifest(i).purpose is Purpose.ONLINE]


# ---- the report


def test_report_contains_the_rollouts(make_folder):
    folder = make_folder(*SHORT)
    run = InlineRun(folder)
    control_hz = run.runtime._assembly.robot.spec.control_hz
    run.run()
    report = write_report(folder)
    assert (report.env_steps, report.updates, report.episodes) == (256, 4, 32)
    assert report.robot_minutes == pytest.approx(256 / control_hz / 60)
    assert not any("online" in what for what in report.missing)
    assert [line["env_steps"] for line in rollout_events(folder)] == [64, 128, 192, 256]
    assert rollout_events(folder)[0]["length"] == [8] * 8
    assert {"reward/success", "reward/nearer"} <= rollout_events(folder)[0].keys()
    assert online_episodes(folder) == []


def test_repeated_rollouts_of_a_resumed_run_count_once(make_folder):
    folder = make_folder()
    assert RolloutHistory.read(folder).curve == []
    for env_steps, success in ((64, [False]), (128, [False, True]), (192, [True]), (128, [True, True]), (192, [])):
        episodes = {"success": np.array(success), "length": np.full(len(success), 9)}
        rollout = RolloutResult(metrics={}, episodes=episodes)
        record_rollout(folder, rollout, env_steps=env_steps, robot_minutes=env_steps / 64)
    with (folder.path / "events.jsonl").open("a") as file:
        file.write('{"time": 1.0, "event": "practice", "env_st')  # killed while writing
    figures = RolloutHistory.read(folder)
    assert (figures.env_steps, figures.robot_minutes) == (192, 3.0)
    assert [(episode.end_minutes, episode.score.success) for episode in figures.curve] == [
        (1.0, False),
        (1.5, True),
        (2.0, True),
    ]


# ---- resuming


def test_episodes_until_a_checkpoint(make_folder):
    folder = make_folder()
    for env_steps, success in ((64, [False]), (128, [False, True]), (192, [True]), (128, [True, True]), (192, [])):
        rewards = np.arange(len(success), dtype=np.float32) + env_steps
        episodes = {
            "success": np.array(success, np.float32),
            "length": np.full(len(success), 20),
            "reward/nearer": rewards,
            "reward/success": rewards,
        }
        record_rollout(
            folder, RolloutResult(metrics={}, episodes=episodes), env_steps=env_steps, robot_minutes=1.0
        )
    folder.event(
        "practice", env_steps=256, success=[True, False], **{"reward/a": 0.5, "reward/b": 2.0}
    )  # format of 0.6.0

    def finished(env_steps):
        scores = finished_episodes(folder.path, env_steps=env_steps, control_hz=10.0)
        return [(one.success, one.total_reward, one.duration_s) for one in scores]

    assert finished(0) == []
    first = [(False, 128.0, 2.0), (True, 256.0, 2.0), (True, 258.0, 2.0)]
    assert finished(192) == first
    assert finished(256) == [*first, (True, 2.5, 0.0), (False, 2.5, 0.0)]


SOLVED = ("task.tolerance=0.1", "run.env_steps=1280", "run.untrained_episodes=0", "run.checkpoint_every_s=0.0001")


@pytest.mark.extended
@pytest.mark.parametrize("how", ["stopped", "killed", "stopped when solved"])
def test_resumed_run_is_solved_at_the_same_step(make_folder, tmp_path, monkeypatch, how):
    config = make_folder(*SOLVED, "run.stop_when_solved={window: 20, success_rate: 0.5}").config
    whole = InlineRun(RunFolder.create(tmp_path / "whole", config))
    whole.run()
    end = whole.status.env_steps
    assert 256 < end < 1280
    phase = "evaluating: after" if how == "stopped when solved" else "learning online"
    cut, reached = RunFolder.create(tmp_path / "cut", config), []

    def watch(status):
        reached.append(status.phase == phase and status.env_steps >= end - 64)

    if how == "killed":  # the checkpoint does not contain the last two rollouts
        save = Checkpoints.save

        def save_early(self, state, facts):
            if state["practice/counters"][1] <= end - 192:
                save(self, state, facts)

        monkeypatch.setattr(Checkpoints, "save", save_early)
    with pytest.raises(Interrupted):
        InlineRun(cut, on_status=watch, should_stop=lambda: any(reached)).run()
    monkeypatch.undo()
    again = InlineRun(RunFolder.open(tmp_path / "cut"))
    again.run()
    assert again.status.env_steps == end
    for name in ("recent_success", "recent_return", "recent_human"):
        assert getattr(again.status, name) == getattr(whole.status, name)
    states = [load_checkpoint(tmp_path / name / "checkpoints" / "last")[0] for name in ("whole", "cut")]
    assert np.array_equal(states[0]["practice/counters"], states[1]["practice/counters"])


# ---- the log


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["false", "true"])
def test_recorded_episode_equals_the_rollout(make_folder, mode):
    folder = make_folder(
        *SHORT, "algorithm.record_episodes=true", f"algorithm.asynchronous={mode}", "run.untrained_episodes=0"
    )
    before = build_training(folder.config).policy_weights()
    InlineRun(folder).run()
    episodes = online_episodes(folder)
    assert len(episodes) >= 32  # an asynchronous collector has already started the next ones
    assert mode == "true" or len(episodes) == 32
    first = episodes[0]
    assert (len(first), first.outcome, first.operator) == (8, Outcome.TIMEOUT, "none")
    assert first.config_hash == folder.config_hash
    assert first.column("policy_version").tolist() == [0] * 8
    assert {int(v) for episode in episodes for v in episode.column("policy_version")} >= {0, 1, 2}
    policy = build_policy(folder.config, before)
    observations = {key: torch.from_numpy(first.column(f"observation/{key}")) for key in ("ee_pose", "goal")}
    drawn = first.column("extra/drawn")
    with torch.no_grad():
        log_prob, _, value = policy.evaluate_actions(policy.features(observations), torch.from_numpy(drawn))
    np.testing.assert_allclose(first.column("extra/log_prob"), log_prob.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(first.column("extra/value"), value.numpy(), rtol=1e-4, atol=1e-4)
    low, high = first.robot.action.bounds
    within = np.clip(drawn, -1, 1) * (high - low) / 2 + (low + high) / 2
    np.testing.assert_allclose(first.column("proposed"), within, rtol=1e-5, atol=1e-7)
    assert first.column("executed").shape == within.shape
    assert not first.column("extra/safety_held").any()
    # the last observation belongs to this episode
    assert np.array_equal(first.last_observation.values["goal"], observations["goal"][-1].numpy())


def test_recorded_episodes_are_not_replayed_or_counted_twice(make_folder):
    folder = make_folder(*SHORT, "algorithm.record_episodes=true")
    InlineRun(folder).run()
    again = InlineRun(RunFolder.open(folder.path))
    assert len(online_episodes(folder)) == 32
    assert again.runtime.store.replay.size(View(part="all")) == 0
    again.close()
    assert write_report(folder).episodes == 32


def test_recorded_episodes_have_the_prompt_of_each_step(make_folder):
    staged = "task={type: 'dovetail.testing.staged_task:StagedTask', steps_per_stage: 3, max_steps: 8, tolerance: 0.0001}"
    folder = make_folder(staged, "task.stages=[open, put, close]", "algorithm.record_episodes=true")
    InlineRun(folder).run()
    episodes = online_episodes(folder)
    assert len(episodes) == 32
    for episode in episodes:
        assert episode.prompt == "open"
        assert episode.prompt_changes == (PromptChange(step=3, prompt="put"), PromptChange(step=6, prompt="close"))


def test_recording_needs_a_run_folder(make_folder):
    training = build_training(make_folder("algorithm.record_episodes=true").config)
    with pytest.raises(UsageError, match=r"algorithm\.record_episodes=true needs a run folder"):
        training.step()
