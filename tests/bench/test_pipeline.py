"""The pipeline's bench: figures from runs whose times are known, parts that wait, and weights that really travel."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dovetail.bench import (
    _pipeline_runs,
    pipeline_free,
    pipeline_ingest,
    pipeline_publish,
    pipeline_ratio,
    pipeline_solved,
)
from dovetail.bench._ingest import Arms, Ingested
from dovetail.bench._pipeline_runs import CASES, Look, Pace, Watch, pace_of
from dovetail.bench._waiting import Corrector, CorrectorConfig
from dovetail.config.cluster import ClusterConfig
from dovetail.config.load import load
from dovetail.core.types import ActContext
from dovetail.runs.assembly.build import build_station
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus
from dovetail.runtime.ray.cluster.connection import connected


def looks(*rows):
    return [Look(unix_s, phase, episodes, updates) for unix_s, phase, episodes, updates in rows]


def test_a_pace_is_that_of_episodes_and_of_updates_in_between(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path / "run", load(["peg-insertion"]))
    starts = [10.0, 19.0, 25.0, 31.0, 37.0]  # six seconds each, once everything has been used
    monkeypatch.setattr(_pipeline_runs, "_starts", lambda folder: starts)
    folder.write_json(
        "progress.json", {"phases": {"acting": 25.0, "sampling": 5.0, "updating": 10.0, "saving": 1.0}}
    )
    watch = Watch(looks=looks((24.0, "learning", 2, 0), (26.0, "learning", 3, 10), (38.0, "learning", 5, 130)))
    pace = pace_of(folder, watch, num_steps=60)
    assert pace.episode_s == pytest.approx(6.0)
    assert pace.updates_per_step == pytest.approx(115 / 120)  # from the 5th, at 25 s, to the 120th, at 37 s
    assert pace.update_s == pytest.approx(12 / 115)
    assert (pace.collect_s, pace.train_s) == (pytest.approx(5.0), pytest.approx(3.0))
    assert pace.bound == pytest.approx(8 / 5)
    known = (
        (24.9, {"acting": 20.0, "updating": 1.0}),
        (30.9, {"acting": 26.0}),
        (36.9, {"acting": 32.0, "updating": 9.0}),
    )
    watch.looks = [
        Look(unix_s, "learning", 0, 0, spent) for unix_s, spent in known
    ]  # where it is known on the way
    pace = pace_of(folder, watch, num_steps=60)
    assert (pace.collect_s, pace.train_s) == (pytest.approx(6.0), pytest.approx(4.0))


def test_of_two_that_run_at_once_the_slower_counts():
    pace = Pace(episode_s=6.0, update_s=0.25, updates_per_step=0.4, spent={})
    assert pace.keeping_up_s(0.1, 60) == 6.0
    assert pace.keeping_up_s(0.5, 60) == 7.5  # thirty updates of a quarter of a second


def test_a_watch_adds_up_phases_and_ends_a_run_where_it_is_told_to():
    watch = Watch(until=("evaluating: after",))
    status = RunStatus(name="x")
    status.begin("evaluating: cloning", 1)
    watch(status)
    assert not watch.ended
    status.begin("evaluating: after", 1)
    watch(status)
    assert watch.ended
    watch.looks = looks((1.0, "a", 0, 0), (2.0, "a", 0, 0), (5.0, "b", 0, 0), (6.0, "a", 0, 0), (9.0, "c", 0, 0))
    assert watch.phases() == {"a": 7.0, "b": 1.0}


def test_the_ratio_is_judged_by_the_bound_of_the_inline_run(monkeypatch):
    paces = {
        "inline": Pace(episode_s=11.0, update_s=0.4, updates_per_step=0.4, spent={"acting": 6.0, "updating": 4.5}),
        "ray": Pace(episode_s=6.2, update_s=0.25, updates_per_step=0.4, spent={"acting": 6.1}),
    }
    monkeypatch.setattr(pipeline_ratio, "paced", lambda case, runtime, **_: paces[runtime])
    rows = {
        row.name.partition(": ")[2]: row for row in pipeline_ratio._compare(CASES[0], num_episodes=9, quick=False)
    }
    assert rows["bound (C + T) / max(C, T)"].value == pytest.approx(10.5 / 6)
    assert rows["ray, times faster per episode"].value == pytest.approx(11 / 6.2)
    share = rows["of the bound"]
    assert (share.value, share.met) == (pytest.approx(100 * (11 / 6.2) / (10.5 / 6)), True)


def test_a_free_learner_is_compared_with_two_ratios(monkeypatch):
    def pace(case, runtime, *, updates, free=False, **_):
        if free:
            return Pace(episode_s=6.0, update_s=0.2, updates_per_step=0.5, spent={})
        seconds = 6.0 + 0.2 * updates
        return Pace(
            episode_s=seconds,
            update_s=seconds / updates,
            updates_per_step=updates / 60,
            spent={"acting": 6.0, "updating": 0.2 * updates},
        )

    monkeypatch.setattr(pipeline_free, "paced", pace)
    rows = list(pipeline_free._compare(CASES[0], num_episodes=9, quick=False))
    aimed = [row for row in rows if row.aim is not None]
    assert [row.value for row in aimed] == [pytest.approx(10.8 / 6), pytest.approx(7.6 / 8 / 0.2)]
    assert [row.met for row in aimed] == [True, False]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.recipe)
def test_the_cases_can_be_built(case):
    config = load([case.recipe], list(case.settings))
    station = build_station(config)
    policy = station.trainable()
    station.algorithm(policy)
    assert station.real_time
    assert case.num_steps == round(config.task.config.time_limit_s * station.robot.spec.control_hz)
    station.close()


def test_waiting_parts_wait(monkeypatch):
    config = load([CASES[1].recipe], list(CASES[1].settings))
    station = build_station(config)
    policy, waited = station.policy(), []
    monkeypatch.setattr(time, "sleep", waited.append)
    spec = policy.spec.observation
    policy.act({key: np.zeros((1, *s.shape), s.dtype) for key, s in spec.items()}, ActContext())
    assert waited == [0.213]
    station.close()


def test_a_corrector_has_every_second_half():
    station = build_station(load(["push-cube"]))
    operator = Corrector(CorrectorConfig(every_steps=4), task=station.task)
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    station.task.reset(station.robot, rng=np.random.default_rng(0))
    seen = station.robot.observe()
    assert [operator.poll(seen).action is not None for _ in range(6)] == [False, False, True, True, False, False]
    station.close()


def test_the_peg_is_learned_as_its_recipe_says_but_for_the_pace():
    recipe, config = load([pipeline_solved.RECIPE]), load([pipeline_solved.RECIPE], pipeline_solved._settings())
    ours, theirs = config.algorithm.to_plain(), recipe.algorithm.to_plain()
    assert {name: ours[name] for name in theirs if name != "type"} | {"type": "rlpd"} == theirs
    assert config.learner == recipe.learner


def test_what_the_store_took_of_what_arms_offered():
    found = Ingested(
        10.0, 20, 10, (0.1, 0.3, 0.2), 50, {"store": 1.0, "labeler": 0.5, "arms": 0.25, "learner": 5.0}
    )
    rest = {"store": 0.02, "labeler": 0.0, "arms": 0.0}  # of a core, with nothing to do
    rows = {row.name: row for row in pipeline_ingest._of("4 arms", found, rest)}
    assert (rows["4 arms: episodes stored"].value, rows["4 arms: episodes stored"].ratio) == (1.0, 0.5)
    assert rows["4 arms: from its end to the store's word, p50"].value == 0.2
    assert rows["4 arms: store, processor time for an episode"].value == pytest.approx(80.0)


def test_arms_deliver_at_the_pace_of_their_episode_and_keep_what_was_not_taken():
    taken = []

    class Store:
        def deliver(self, episode):
            taken.append(episode)
            return len(taken) != 2  # the second is refused once

    arms = Arms.__new__(Arms)
    arms._store, arms._period_s = Store(), 0.05
    arms._episode = pipeline_ingest.record(
        load(["push-cube"], ["task.time_limit_s=0.5", "policy.hidden=[8]", "operator.type=none"])
    )
    offered, latencies = arms.replay(2, 0.5)
    ids = [episode.id for episode in taken]
    assert (
        offered == 19
    )  # ten of one arm, and nine of the one that ends half a period earlier and has none at the end
    assert len(latencies) <= offered
    assert len(set(ids)) == len(ids) >= 2
    assert all(segment.episode_id == one.id for one in taken for segment in one.segments)


@pytest.mark.slow
def test_weights_come_into_use_both_ways():
    with connected(ClusterConfig(), num_cpus=4):
        for way in ("naive", "fp32", "bf16"):
            found = pipeline_publish.latencies(way, 40_000, times=2, num_readers=1)
            assert len(found) == 2
            assert all(seconds > 0.0 for seconds in found)
