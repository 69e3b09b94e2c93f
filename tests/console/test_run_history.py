"""Curves and advice from the events of a run; numbers computed by hand."""

import json
import tracemalloc

import pytest

from dovetail.console.run_files import RunFiles
from dovetail.console.run_history import RunHistory, thinned


@pytest.fixture
def run(tmp_path):
    (tmp_path / "events.jsonl").touch()
    return tmp_path


def write(run, *events, end="\n"):
    with (run / "events.jsonl").open("a") as file:
        file.write("\n".join(json.dumps(event) for event in events) + end)


def episode(env_steps, success, *, human_share=0.0, version=1):
    return {
        "time": 0.0,
        "event": "episode",
        "env_steps": env_steps,
        "success": success,
        "return": 2.0 * success,
        "human_share": human_share,
        "policy_version": version,
    }


def test_curves_are_means_of_the_last_twenty_episodes(run):
    write(run, *(episode(10 * i, float(i > 20)) for i in range(1, 31)))
    history = RunHistory(RunFiles(run))
    history.read()
    curves = history.curves()
    assert curves["success"][0] == (10.0, 0.0)
    assert curves["success"][-1] == (300.0, pytest.approx(0.5))
    assert curves["return"][-1] == (300.0, pytest.approx(1.0))


def test_incomplete_line_is_read_after_completion(run):
    files = RunFiles(run)
    write(run, episode(10, 1.0))
    line = json.dumps(episode(20, 1.0))
    with (run / "events.jsonl").open("a") as file:
        file.write(line[:30])
    history = RunHistory(files)
    history.read()
    assert history.num_episodes == 1
    with (run / "events.jsonl").open("a") as file:
        file.write(line[30:] + "\n")
    history.read()
    history.read()
    assert history.num_episodes == 2


def test_damaged_lines_are_skipped(run):
    (run / "events.jsonl").write_text('{"time": 1, "event": "epi{"nonsense\n[1]\n\n')
    write(run, episode(10, 1.0))
    history = RunHistory(RunFiles(run))
    history.read()
    assert history.num_episodes == 1


def test_success_by_version_excludes_episodes_with_help(run):
    write(
        run, episode(10, 1.0, version=3), episode(20, 0.0, version=3), episode(30, 1.0, version=3, human_share=0.2)
    )
    history = RunHistory(RunFiles(run))
    history.read()
    assert history.by_version() == {3: [1.0, 0.0]}


def test_advice_lists_warnings_first_and_drops_ended_advice(run):
    def coach(name, severity):
        return {"event": "coach", "name": name, "severity": severity, "message": f"{name}!", "try": "x"}

    write(
        run, coach("a", "hint"), coach("b", "warning"), coach("c", "hint"), {"event": "coach: over", "name": "a"}
    )
    history = RunHistory(RunFiles(run))
    history.read()
    assert [advice["message"] for advice in history.advice()] == ["b!", "c!"]


def test_repeated_rollout_counts_once(run):
    def rollout(env_steps, *success):
        return {"event": "practice", "env_steps": env_steps, "robot_minutes": 1.0, "success": list(success)}

    write(run, rollout(100, True), rollout(200, True, False), rollout(200, False))
    history = RunHistory(RunFiles(run))
    history.read()
    assert history.num_episodes == 2
    assert history.curves()["success"] == [(100.0, 1.0), (200.0, 0.5)]


def test_cycle_time_is_that_of_successful_episodes(run):
    ended = [{**episode(10 * i, float(i > 1)), "duration_s": 2.0 * i} for i in (1, 2, 3)]
    write(run, *ended)
    history = RunHistory(RunFiles(run))
    history.read()
    assert history.curves()["cycle_time_s"] == [(20.0, 4.0), (30.0, 5.0)]


def test_rollouts_without_success_have_a_return(run):
    """200 steps in a minute: an episode of 50 steps takes 15 s."""
    rollout = {
        "event": "practice",
        "env_steps": 200,
        "robot_minutes": 1.0,
        "length": [50, 50],
        "returns": [-9.0, -7.0],
    }
    write(
        run,
        {**rollout, "success": [None, None]},
        {**rollout, "env_steps": 400, "robot_minutes": 2.0, "success": [True, None]},
    )
    history = RunHistory(RunFiles(run))
    history.read()
    curves = history.curves()
    assert curves["return"][0] == (200.0, -9.0) and curves["return"][-1] == (400.0, -8.0)
    assert curves["success"] == [(400.0, 1.0)]
    assert curves["cycle_time_s"] == [(400.0, 15.0)]


def test_long_curves_are_thinned_and_keep_their_end():
    points = [(float(i), 0.0) for i in range(1001)]
    assert len(thinned(points)) <= 400 and thinned(points)[-1] == (1000.0, 0.0)
    assert thinned([]) == []


def test_labels_count_before_and_after_their_episode(run):
    """The event of an episode is written after its updates, so a label may come first."""
    ended = {"event": "episode", "env_steps": 10, "human_share": 0.0, "policy_version": 4}
    labels = {"event": "labelled", "env_steps": 10, "by": "vlm", "success": True, "return": 1.0}
    write(
        run, {**labels, "id": "early"}, {**ended, "id": "early"}, {**ended, "id": "late"}, {**ended, "id": "never"}
    )
    history = RunHistory(RunFiles(run))
    history.read()
    assert history.by_version() == {4: [1.0]}
    write(run, {**labels, "id": "late", "success": False, "return": 0.0})
    history.read()
    assert history.by_version() == {4: [1.0, 0.0]}
    assert history.curves()["success"] == [(10.0, 1.0), (10.0, 0.5)]
    write(run, {**labels, "id": "early", "discard": True})
    history.read()
    assert history.by_version() == {4: [0.0]}


def test_hostile_events_are_not_kept(run):
    """A crafted file may have lines of any length and number; each event kept whole would take ten times the file."""
    with (run / "events.jsonl").open("wb") as file:
        file.write(b'{"event": "episode", "x": ' + b"[" * 200_000 + b"\n")  # nested too deeply
        file.write(b'{"event": "coach", "name": "' + b"x" * 3_000_000 + b'"}\n')  # too long
        file.write(b'{"event": "other", "x": [[],[],[],[],[],[],[],[]]}\n' * 20_000)
    write(run, episode(10, 1.0))
    history = RunHistory(RunFiles(run))
    tracemalloc.start()
    try:
        history.read()
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()
    assert history.num_episodes == 1
    assert not history.advice()
    read = history._offset
    history.read()
    assert read == history._offset == (run / "events.jsonl").stat().st_size
