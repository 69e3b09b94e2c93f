"""Late labels of slow labelers, persons and other processes reach a run that continues meanwhile."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time

import pytest

from dovetail.api.checks import check_fits
from dovetail.config.load import load
from dovetail.core.errors import Interrupted, UsageError
from dovetail.core.types import Outcome, Purpose, View
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.human import human_labels
from dovetail.labels.queue import LabelQueue, Reason
from dovetail.labels.store import LabelStore
from dovetail.runs.folder import RunFolder
from dovetail.runtime.inline import InlineRun
from support import TESTS
from support.toy_run import TOY

QUICK = (
    "run={demos: 2, env_steps: 60, eval_episodes: 1, untrained_episodes: 0, video_episodes: 0}",
    "learner={utd: 1, warmup_updates: 2, bc_updates: 2}",
)


@pytest.fixture
def make(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)

    def make(*overrides):
        return RunFolder.create(tmp_path / "run", load([path], [*QUICK, *overrides]))

    return make


def episodes_of(folder, *purposes):
    log = EpisodeLog(folder.episodes)
    infos = [log.manifest(episode_id) for episode_id in log.ids()]
    wanted = purposes or (Purpose.DEMO, Purpose.ONLINE)
    return [info for info in infos if info.purpose in wanted and info.outcome is not Outcome.ABORTED]


def labels_of(folder, info):
    return [record.labels for record in LabelStore(folder.labels).history(info.id) if record.labels.priority >= 0]


def add_human_label(folder, info, judgement, by="anna"):
    labels = human_labels(info.id, num_steps=info.num_steps, outcome=info.outcome, judgement=judgement, by=by)
    LabelStore(folder.labels).add(labels)
    return labels


def events(folder, kind):
    return list(folder.events(kind))


def test_slow_labeler_runs_beside_the_robot(make):
    folder = make("labels=[{type: 'support.late_labelers:Late'}]")
    run = InlineRun(folder)
    run.run()
    status = run.status
    assert all(len(labels_of(folder, info)) == 1 for info in episodes_of(folder))
    assert status.trained_steps == status.env_steps >= 60
    assert status.updates == 2 + status.env_steps  # late labels are learned from as well
    assert not any(map(math.isnan, status.recent_success))
    assert status.waiting == {}
    late = {event["id"] for event in events(folder, "labelled")}
    assert late == {info.id for info in episodes_of(folder)}


def test_unavailable_labeler_does_not_stop_the_robot(make, tmp_path):
    """The coach gives the reason. A resume with an available labeler learns from all episodes."""
    away = tmp_path / "away"
    late = f"{{type: 'support.late_labelers:Late', away_while: '{away}'}}"
    folder = make(
        f"labels=[{late}]",
        "labeling.retry_s=0.01",
        "labeling.max_retry_s=0.02",
        "run.env_steps=150",
        "run.demos=1",
    )

    def watch(status):
        if status.phase == "learning online" and not away.exists() and status.episodes == 0:
            away.touch()

    run = InlineRun(folder, on_status=watch)
    run.run()
    assert run.status.env_steps >= 150
    assert run.status.trained_steps == 0
    assert run.status.updates == 2  # the warmup updates
    waiting = LabelQueue(folder.label_queue).waiting()
    assert {item.episode_id for item in waiting} <= {info.id for info in episodes_of(folder, Purpose.ONLINE)}
    assert waiting
    assert {item.reasons for item in waiting} == {(Reason.AWAY,)}
    assert run.status.waiting["away"] == len(waiting)
    assert "labels_waiting" in [advice.name for advice in run.status.advice]
    assert events(folder, "labels wait")[-1]["away"] == len(waiting)
    away.unlink()
    (folder.path / "evaluations/after.json").unlink()  # not the end yet
    again = InlineRun(RunFolder.open(folder.path))
    again.run()
    assert all(len(labels_of(folder, info)) == 1 for info in episodes_of(folder))
    assert again.status.trained_steps == again.status.env_steps
    assert LabelQueue(folder.label_queue).ids() == []


def test_run_completes_with_a_person_as_the_only_labeler(make):
    """The person's thread uses files only, as another process would."""
    folder = make("labels=[human]")
    over = threading.Event()

    def person():
        queue, log = LabelQueue(folder.label_queue), EpisodeLog(folder.episodes)
        while not over.is_set():
            for item in queue.waiting():
                assert item.reasons == (Reason.NEW,)
                info = log.manifest(item.episode_id)
                add_human_label(folder, info, info.outcome if info.outcome is Outcome.SUCCESS else Outcome.FAILURE)
                queue.done(item.episode_id)
            time.sleep(0.005)

    thread = threading.Thread(target=person)
    thread.start()
    try:
        run = InlineRun(folder)
        run.run()
    finally:
        over.set()
        thread.join()
    demos = episodes_of(folder, Purpose.DEMO)
    assert [labels_of(folder, info)[0].labeler for info in demos] == ["human"] * len(demos)
    assert run.status.env_steps >= 60


def test_labels_of_a_person_during_the_run_are_applied(make):
    """Replay, status and coach follow each correction, discard and undo. A rebuild gives the same result."""
    folder = make("run.env_steps=200", "operator={type: none}")
    todo = ["overrule", "discard", "undo", "end"]
    held, steps, labels = [], [], {}

    def watch(status):
        if status.phase != "learning online" or status.episodes < 2 or not todo:
            return
        infos = episodes_of(folder, Purpose.ONLINE)
        held.append(set(run.runtime.store.replay.ids()) & {infos[0].id, infos[1].id})
        steps.append((status.env_steps, status.trained_steps))
        action = todo.pop(0)
        if action == "overrule":
            add_human_label(folder, infos[0], Outcome.SUCCESS)
        if action == "discard":
            labels["discard"] = add_human_label(folder, infos[1], Outcome.ABORTED)
        if action == "undo":
            assert LabelStore(folder.labels).retract(labels["discard"])

    run = InlineRun(folder, on_status=watch)
    run.run()
    first, second = (info.id for info in episodes_of(folder, Purpose.ONLINE)[:2])
    length = episodes_of(folder, Purpose.ONLINE)[1].num_steps
    assert held == [{first, second}, {first, second}, {first}, {first, second}]
    assert [acted - trained for acted, trained in steps] == [0, 0, length, 0]
    assert run.status.recent_success[0] == 1.0
    facts = events(folder, "labelled")
    assert [(event["id"], event["by"]) for event in facts] == [
        (first, "human"),
        (second, "human"),
        (second, "outcome"),
    ]
    again = InlineRun(RunFolder.open(folder.path))
    assert list(again.status.recent_success) == list(run.status.recent_success)
    assert again.runtime.store.replay.size(View(part="online")) == again.status.env_steps
    again.close()


def test_resume_after_a_kill_labels_pending_episodes_once(make, tmp_path):
    away = tmp_path / "away"
    late = f"{{type: 'support.late_labelers:Late', away_while: '{away}'}}"
    folder = make(f"labels=[{late}]", "labeling.retry_s=0.01", "labeling.max_retry_s=0.02", "run.env_steps=100000")
    code = (
        "import sys; from pathlib import Path; from dovetail.runs.folder import RunFolder;"
        "from dovetail.runtime.inline import InlineRun; InlineRun(RunFolder.open(Path(sys.argv[1]))).run()"
    )
    paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths}
    process = subprocess.Popen([sys.executable, "-c", code, str(folder.path)], env=environment)
    deadline_s = time.monotonic() + 120
    try:
        while len(episodes_of(folder, Purpose.ONLINE)) < 3 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        away.touch()
        while len(LabelQueue(folder.label_queue).ids()) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    unlabeled = [info for info in episodes_of(folder) if not labels_of(folder, info)]
    assert len(unlabeled) >= 2
    away.unlink()

    store, left = LabelStore(folder.labels), [info.id for info in unlabeled]

    def all_labeled():
        while left and store.current(left[-1]) is not None:
            left.pop()
        return not left

    with pytest.raises(Interrupted):
        InlineRun(RunFolder.open(folder.path), should_stop=all_labeled).run()
    assert [len(labels_of(folder, info)) for info in unlabeled] == [1] * len(unlabeled)
    assert all(len(labels_of(folder, info)) <= 1 for info in episodes_of(folder))
    assert not set(LabelQueue(folder.label_queue).ids()) & {info.id for info in unlabeled}


def test_labeler_ends_online_episodes_only(make):
    folder = make(
        "labels=[{type: 'support.late_labelers:Seer'}]", "labeling.terminate_on_success={}", "operator=none"
    )
    InlineRun(folder).run()
    online = episodes_of(folder, Purpose.ONLINE)
    assert {(info.num_steps, info.outcome, info.judgement) for info in online} == {
        (4, Outcome.SUCCESS, Outcome.SUCCESS)  # five observations
    }
    assert {info.operator for info in online} == {"none+seer"}
    assert all(labels_of(folder, info)[0].success for info in online)
    others = episodes_of(folder, Purpose.EVAL, Purpose.DEMO)  # the task decides these, not the labeler
    assert {info.operator for info in others} == {"none", "scripted"}


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["labels=[outcome]"], "Add `classifier` to `labels`"),
        (
            ["labels=[{type: 'support.late_labelers:Seer'}]", "actor.layout=processes"],
            "Set actor.layout=one_process",
        ),
    ],
)
def test_labeler_that_cannot_judge_observations_is_refused(make, overrides, problem):
    with pytest.raises(UsageError, match=problem):
        InlineRun(make("labeling.terminate_on_success={}", *overrides))


def test_missing_metric_is_refused_before_the_run(make):
    """Trap: a labeler required a key that was not recorded, swallowed the error and dropped every episode."""
    stage = "{metric: grasped, at_least: 1, reward: 1}"
    with pytest.raises(UsageError, match="labeler 'outcome' has a stage with metric 'grasped'"):
        check_fits(make(f"labels=[{{type: outcome, stages: [{stage}]}}]").config)
