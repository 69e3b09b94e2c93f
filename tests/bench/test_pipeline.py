"""What the pipeline benchmarks compute, from runs with known times; their slowed plugins; published weights (slow)."""

from __future__ import annotations

import time

import numpy as np
import pytest

from benchmarks import (
    _pipeline_runs,
    pipeline_ingest,
    pipeline_publish,
    pipeline_solved,
)
from benchmarks._ingest import Ingested, ReplayingArms
from benchmarks._pipeline_runs import CASES, Pace, Sample, StatusRecorder, pace_of
from benchmarks._slowed_plugins import PeriodicCorrector, PeriodicCorrectorConfig
from dovetail.config.cluster import ClusterConfig
from dovetail.config.load import load
from dovetail.core.types import ActContext
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus
from dovetail.runtime.ray.cluster.connection import connected


def samples(*rows):
    return [Sample(unix_s, phase, episodes, updates) for unix_s, phase, episodes, updates in rows]


def test_pace_covers_episodes_and_the_updates_between_them(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path / "run", load(["peg-insertion"]))
    starts = [10.0, 19.0, 25.0, 31.0, 37.0]  # six seconds each after the first
    monkeypatch.setattr(_pipeline_runs, "_starts", lambda folder: starts)
    folder.write_json(
        "progress.json", {"phases": {"acting": 25.0, "sampling": 5.0, "updating": 10.0, "saving": 1.0}}
    )
    recorder = StatusRecorder(
        samples=samples((24.0, "learning", 2, 0), (26.0, "learning", 3, 10), (38.0, "learning", 5, 130))
    )
    pace = pace_of(folder, recorder, num_steps=60)
    assert pace.episode_s == pytest.approx(6.0)
    assert pace.updates_per_step == pytest.approx(115 / 120)  # from update 5 at 25 s to update 120 at 37 s
    assert pace.update_s == pytest.approx(12 / 115)
    assert (pace.collect_s, pace.train_s) == (pytest.approx(5.0), pytest.approx(3.0))
    assert pace.bound == pytest.approx(8 / 5)
    known = (
        (24.9, {"acting": 20.0, "updating": 1.0}),
        (30.9, {"acting": 26.0}),
        (36.9, {"acting": 32.0, "updating": 9.0}),
    )
    recorder.samples = [Sample(unix_s, "learning", 0, 0, spent) for unix_s, spent in known]
    pace = pace_of(folder, recorder, num_steps=60)
    assert (pace.collect_s, pace.train_s) == (pytest.approx(6.0), pytest.approx(4.0))


def test_seconds_at_ratio_is_the_slower_of_collecting_and_learning():
    pace = Pace(episode_s=6.0, update_s=0.25, updates_per_step=0.4, spent={})
    assert pace.seconds_at_ratio(0.1, 60) == 6.0
    assert pace.seconds_at_ratio(0.5, 60) == 7.5  # thirty updates of 0.25 s


def test_recorder_sums_phases_and_stops_the_run_at_the_given_phase():
    recorder = StatusRecorder(until=("evaluating: after",))
    status = RunStatus(name="x")
    status.begin("evaluating: cloning", 1)
    recorder(status)
    assert not recorder.ended
    status.begin("evaluating: after", 1)
    recorder(status)
    assert recorder.ended
    recorder.samples = samples(
        (1.0, "a", 0, 0), (2.0, "a", 0, 0), (5.0, "b", 0, 0), (6.0, "a", 0, 0), (9.0, "c", 0, 0)
    )
    assert recorder.phases() == {"a": 7.0, "b": 1.0}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.recipe)
def test_cases_can_be_built(case):
    config = load([case.recipe], list(case.settings))
    assembly = build_assembly(config)
    policy = assembly.trainable()
    assembly.algorithm(policy)
    assert assembly.real_time
    assert case.num_steps == round(config.task.config.time_limit_s * assembly.robot.spec.control_hz)
    assembly.close()


def test_slowed_policy_sleeps_in_each_inference(monkeypatch):
    config = load([CASES[1].recipe], list(CASES[1].settings))
    assembly = build_assembly(config)
    policy, slept = assembly.policy(), []
    monkeypatch.setattr(time, "sleep", slept.append)
    spec = policy.spec.observation
    policy.act({key: np.zeros((1, *s.shape), s.dtype) for key, s in spec.items()}, ActContext())
    assert slept == [0.213]
    assembly.close()


def test_periodic_corrector_acts_in_the_second_half_of_each_period():
    assembly = build_assembly(load(["push-cube"]))
    operator = PeriodicCorrector(PeriodicCorrectorConfig(every_steps=4), task=assembly.task)
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    assembly.task.reset(assembly.robot, rng=np.random.default_rng(0))
    seen = assembly.robot.observe()
    assert [operator.poll(seen).action is not None for _ in range(6)] == [False, False, True, True, False, False]
    assembly.close()


def test_peg_settings_differ_from_the_recipe_only_in_pace():
    recipe, config = load([pipeline_solved.RECIPE]), load([pipeline_solved.RECIPE], pipeline_solved._settings())
    ours, theirs = config.algorithm.to_plain(), recipe.algorithm.to_plain()
    assert {name: ours[name] for name in theirs if name != "type"} | {"type": "rlpd"} == theirs
    assert config.learner == recipe.learner


def test_rows_of_stored_episodes_equal_hand_computation():
    found = Ingested(
        10.0, 20, 10, (0.1, 0.3, 0.2), 50, {"store": 1.0, "labeler": 0.5, "arms": 0.25, "learner": 5.0}
    )
    idle = {"store": 0.02, "labeler": 0.0, "arms": 0.0}  # of a core when idle
    rows = {row.name: row for row in pipeline_ingest._arm_rows("4 arms", found, idle)}
    assert (rows["4 arms: episodes stored"].value, rows["4 arms: episodes stored"].ratio) == (1.0, 0.5)
    assert rows["4 arms: from its end to the store's acknowledgement, p50"].value == 0.2
    assert rows["4 arms: store, CPU time per episode"].value == pytest.approx(80.0)


def test_arms_deliver_at_the_recorded_rate_and_retry_refused_episodes():
    taken = []

    class Store:
        def deliver(self, episode):
            taken.append(episode)
            return len(taken) != 2  # the second delivery is refused

    arms = ReplayingArms.__new__(ReplayingArms)
    arms._store, arms._period_s = Store(), 0.05
    arms._episode = pipeline_ingest.record(
        load(["push-cube"], ["task.time_limit_s=0.5", "policy.hidden=[8]", "operator.type=none"])
    )
    offered, latencies = arms.replay(2, 0.5)
    ids = [episode.id for episode in taken]
    assert offered == 19  # ten of one arm, nine of the other, which starts half a period earlier
    assert len(latencies) <= offered
    assert len(set(ids)) == len(ids) >= 2
    assert all(segment.episode_id == episode.id for episode in taken for segment in episode.segments)


@pytest.mark.slow
def test_published_weights_arrive_with_every_method():
    with connected(ClusterConfig(), num_cpus=4):
        for method in ("naive", "fp32", "bf16"):
            found = pipeline_publish.latencies(method, 40_000, times=2, num_readers=1)
            assert len(found) == 2
            assert all(seconds > 0.0 for seconds in found)
