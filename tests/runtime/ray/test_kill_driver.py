"""A killed driver leaves no process, and its run can be resumed."""

import pytest

from dovetail.episodes.spool import Spool
from support.ray_world import eventually, world

pytestmark = pytest.mark.slow

_BEGUN = {  # so that the run is in the middle of it
    "demonstrating": lambda one: "ray::RobotRole.run_one" in one.titles(),
    "cloning": lambda one: "ray::LearnerRole.clone" in one.titles(),
    "learning": lambda one: one.num_online_episodes() > 3,
    "evaluating": lambda one: "ray::RobotRole.run_one" in one.titles(),
}


def killed_and_resumed(tmp_path, phase, *overrides):
    with world(tmp_path) as one:
        one.start(*overrides)
        if phase == "evaluating":  # at its end
            one.until(lambda: one.num_online_episodes() > 2, what="practice")
            one.enough()
        one.until(lambda: _BEGUN[phase](one), what=phase)
        killed_ns = one.kill_driver()
        one.gone()  # within the seconds that Ray takes to see it
        notes = one.notes(killed_ns)
        assert not notes or notes[-1].what == "stop"
        spool = Spool(one.path / "robots" / "robot-0" / "spool")
        assert spool.running() == []  # what was being recorded waits, as aborted
        before = one.checkpoint() if phase == "learning" else {"published": 0}
        one.resume()
        one.until(lambda: phase == "evaluating" or one.num_online_episodes() > 6, what="practice")
        one.enough()
        one.finished()
        one.gone()
        one.check_nothing_lost()
        one.check_only_forward()
        assert one.checkpoint()["published"] > before["published"]


@pytest.mark.parametrize("phase", ["demonstrating", "cloning", "learning", "evaluating"])
def test_resume_after_a_killed_driver_in_each_phase(tmp_path, phase):
    demos = ("run.demos=3", "learner.bc_updates=3000") if phase in ("demonstrating", "cloning") else ()
    killed_and_resumed(tmp_path, phase, "run.eval_episodes=30", *demos)


def test_terminated_run_leaves_no_process(tmp_path):
    with world(tmp_path) as one:
        one.start()
        one.until(lambda: one.num_online_episodes() > 2, what="practice")
        one.driver.terminate()
        code, said = one.ended()
        assert code == 130, said
        assert "continue with: dovetail run --resume" in said + one.said
        one.gone()
        eventually(lambda: one.notes()[-1].what == "stop", within_s=1.0)
        one.check_nothing_lost()
