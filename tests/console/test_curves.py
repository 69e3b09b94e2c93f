"""What a run's events come to, read on while it runs; numbers worked out by hand."""

import json

import pytest

from dovetail.console.curves import Story, thinned
from dovetail.console.run_source import RunView


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


def test_curves_are_means_of_the_last_twenty(run):
    write(run, *(episode(10 * i, float(i > 20)) for i in range(1, 31)))
    story = Story(RunView(run))
    story.read()
    curves = story.curves()
    assert curves["success"][0] == (10.0, 0.0)
    assert curves["success"][-1] == (300.0, pytest.approx(0.5))
    assert curves["return"][-1] == (300.0, pytest.approx(1.0))


def test_a_half_written_line_is_read_once_it_is_whole(run):
    view = RunView(run)
    write(run, episode(10, 1.0))
    line = json.dumps(episode(20, 1.0))
    with (run / "events.jsonl").open("a") as file:
        file.write(line[:30])
    story = Story(view)
    story.read()
    assert story.num_episodes == 1
    with (run / "events.jsonl").open("a") as file:
        file.write(line[30:] + "\n")
    story.read()
    story.read()
    assert story.num_episodes == 2


def test_what_a_killed_process_left_half_hides_nothing_else(run):
    (run / "events.jsonl").write_text('{"time": 1, "event": "epi{"nonsense\n[1]\n\n')
    write(run, episode(10, 1.0))
    story = Story(RunView(run))
    story.read()
    assert story.num_episodes == 1


def test_a_version_is_judged_by_what_it_did_alone(run):
    write(
        run, episode(10, 1.0, version=3), episode(20, 0.0, version=3), episode(30, 1.0, version=3, human_share=0.2)
    )
    story = Story(RunView(run))
    story.read()
    assert story.by_version() == {3: [1.0, 0.0]}


def test_advice_ends_when_it_is_over_and_warnings_come_first(run):
    def coach(name, severity):
        return {"event": "coach", "name": name, "severity": severity, "message": f"{name}!", "try": "x"}

    write(
        run, coach("a", "hint"), coach("b", "warning"), coach("c", "hint"), {"event": "coach: over", "name": "a"}
    )
    story = Story(RunView(run))
    story.read()
    assert [one["message"] for one in story.advice()] == ["b!", "c!"]


def test_practice_that_was_done_again_counts_once(run):
    def practice(env_steps, *success):
        return {"event": "practice", "env_steps": env_steps, "robot_minutes": 1.0, "success": list(success)}

    write(run, practice(100, True), practice(200, True, False), practice(200, False))
    story = Story(RunView(run))
    story.read()
    assert story.num_episodes == 2
    assert story.curves()["success"] == [(100.0, 1.0), (200.0, 0.5)]


def test_long_curves_are_thinned_and_keep_their_end():
    points = [(float(i), 0.0) for i in range(1001)]
    assert len(thinned(points)) <= 400 and thinned(points)[-1] == (1000.0, 0.0)
    assert thinned([]) == []


def test_labels_count_whenever_they_come(run):
    """Also before the episode's own line, which is written once its updates are done; and for the version that acted."""
    ended = {"event": "episode", "env_steps": 10, "human_share": 0.0, "policy_version": 4}
    said = {"event": "labelled", "env_steps": 10, "by": "vlm", "success": True, "return": 1.0}
    write(
        run, {**said, "id": "early"}, {**ended, "id": "early"}, {**ended, "id": "late"}, {**ended, "id": "never"}
    )
    story = Story(RunView(run))
    story.read()
    assert story.by_version() == {4: [1.0]}
    write(run, {**said, "id": "late", "success": False, "return": 0.0})
    story.read()
    assert story.by_version() == {4: [1.0, 0.0]}
    assert story.curves()["success"] == [(10.0, 1.0), (10.0, 0.5)]
    write(run, {**said, "id": "early", "discard": True})
    story.read()
    assert story.by_version() == {4: [0.0]}
