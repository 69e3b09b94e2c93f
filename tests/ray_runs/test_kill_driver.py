"""The driver is killed: nothing of its run is left, and it can be resumed."""

import pytest
from ray_world import world


def begun(one, phase):
    """Until the run is in the middle of it."""
    log = one.path / "episodes"
    {
        "demonstrating": lambda: one.until(lambda: one.recorded, what="a demonstration"),
        "cloning": lambda: one.until(lambda: "LearnerRole.clone" in " ".join(one.alive().values()), what="cloning"),
        "learning": lambda: one.until(lambda: one.num_practised() > 3, what="practice"),
        "evaluating": lambda: one.until(
            lambda: one.events("best checkpoint") and one.checkpoint() and any(log.iterdir()), what="an evaluation"
        ),
    }[phase]()


def killed_and_resumed(tmp_path, phase, *overrides):
    with world(tmp_path) as one:
        one.start(*overrides)
        if phase == "evaluating":  # at its end
            one.until(lambda: one.num_practised() > 2, what="practice")
            one.enough()
            one.until(lambda: "evaluat" in one.doing(), what="the last evaluation")
        else:
            begun(one, phase)
        killed_ns = one.kill_driver()
        one.gone()  # within the seconds that Ray takes to see it
        notes = one.notes(killed_ns)
        assert not notes or notes[-1].what == "stop"
        one.resume()
        one.until(lambda: one.num_practised() > 2, what="practice")
        one.enough()
        one.finished()
        one.gone()
        one.check_nothing_lost()
        one.check_only_forward()


def test_while_it_learns(tmp_path):
    killed_and_resumed(tmp_path, "learning", "run.demos=0")
