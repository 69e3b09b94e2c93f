"""A killed driver leaves no process, and its run can be resumed."""

import pytest

from dovetail.episodes.spool import Spool
from support.ray_world import eventually, world

pytestmark = pytest.mark.slow

_IS_IN_PHASE = {
    "demonstrating": lambda run: "ray::RobotRole.run_one" in run.titles(),
    "cloning": lambda run: "ray::LearnerRole.clone" in run.titles(),
    "learning": lambda run: run.num_online_episodes() > 3,
    "evaluating": lambda run: "ray::RobotRole.run_one" in run.titles(),
}


def kill_driver_and_resume(tmp_path, phase, *overrides):
    with world(tmp_path) as run:
        run.start(*overrides)
        if phase == "evaluating":  # the final evaluation
            run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
            run.let_episodes_succeed()
        run.wait_until(lambda: _IS_IN_PHASE[phase](run), what=phase)
        killed_ns = run.kill_driver()
        run.wait_for_no_processes()  # Ray needs some seconds to notice
        notes = run.notes(killed_ns)
        assert not notes or notes[-1].what == "stop"
        spool = Spool(run.path / "robots" / "robot-0" / "spool")
        assert spool.running() == []  # the interrupted episode is pending as aborted
        before = run.checkpoint() if phase == "learning" else {"published": 0}
        run.resume()
        run.wait_until(lambda: phase == "evaluating" or run.num_online_episodes() > 6, what="online episodes")
        run.let_episodes_succeed()
        run.wait_for_report()
        run.wait_for_no_processes()
        run.check_nothing_lost()
        run.check_only_forward()
        assert run.checkpoint()["published"] > before["published"]


@pytest.mark.parametrize("phase", ["demonstrating", "cloning", "learning", "evaluating"])
def test_resume_after_a_killed_driver_in_each_phase(tmp_path, phase):
    demos = ("run.demos=3", "learner.bc_updates=3000") if phase in ("demonstrating", "cloning") else ()
    kill_driver_and_resume(tmp_path, phase, "run.eval_episodes=30", *demos)


def test_terminated_run_leaves_no_process(tmp_path):
    with world(tmp_path) as run:
        run.start()
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        run.driver.terminate()
        code, stderr = run.wait_for_exit()
        assert code == 130, stderr
        assert "continue with: dovetail run --resume" in stderr + run.stdout
        run.wait_for_no_processes()
        eventually(lambda: run.notes()[-1].what == "stop", within_s=1.0)
        run.check_nothing_lost()
