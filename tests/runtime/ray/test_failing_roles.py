"""Roles that hang, run out of memory, fault, or cannot be started."""

import os
import signal
import subprocess

import pytest

from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.store import LabelStore
from support.ray_world import world

pytestmark = pytest.mark.slow


def finish(run):
    run.let_episodes_succeed()
    run.wait_for_report()
    run.wait_for_no_processes()
    run.check_nothing_lost()
    run.check_only_forward()


def error_of(run):
    """Wait until the run fails; return its error line."""
    code, errors = run.wait_for_exit()
    assert code == 1, errors
    error_lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(error_lines) == 1, errors
    run.wait_for_no_processes()
    return error_lines[0]


def test_run_survives_hanging_labeler_learner_without_memory_and_faulting_arm(tmp_path):
    with world(tmp_path) as run:
        run.start("cluster.num_robots=2", "cluster.num_labelers=2", "cluster.label_timeout_s=30")
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")

        run.give("hang")
        run.wait_until(lambda: run.was_taken("hang"), what="a labeler hangs")
        run.wait_for_episodes(3)
        run.wait_until(lambda: run.num_restarts("labeler"), what="the labeler is restarted")

        before = run.checkpoint()
        run.give("out of memory")
        run.wait_until(lambda: run.was_taken("out of memory"), what="the learner runs out of memory")
        run.wait_until(lambda: run.num_restarts("learner"), what="the learner is restarted")
        assert "out of memory" in run.events("lost")[-1]["reason"]
        run.wait_until(lambda: run.checkpoint()["published"] > before["published"], what="the learner continues")

        run.give("fault")
        run.wait_until(lambda: run.events("robot rests"), what="an arm stops")
        assert "the elbow is stuck" in run.events("robot rests")[0]["reason"]
        run.wait_for_episodes(3)  # by the other arm
        stopped = run.events("robot rests")[0]["robot"]
        run.command("acknowledge", "r", stopped)
        before = run.online_episodes_of(stopped)
        run.wait_until(lambda: run.online_episodes_of(stopped) > before + 1, what="the acknowledged arm continues")
        assert run.events("acknowledged")[0]["robot"] == stopped
        finish(run)
        assert f"{stopped} has stopped: " in run.stdout and f"{stopped} continues" in run.stdout
        log, labels = EpisodeLog(run.path / "episodes"), LabelStore(run.path / "labels")
        for info in map(log.manifest, log.ids()):
            if info.purpose is Purpose.ONLINE and info.outcome is not Outcome.ABORTED:
                assert labels.current(info.id) is not None


def test_learner_that_never_has_memory_ends_the_run(tmp_path):
    with world(tmp_path) as run:
        run.start("run.checkpoint_every_s=100")
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        run.give("always out of memory")
        assert "learner died 5 times soon after its start: out of memory: " in error_of(run)
        run.check_nothing_lost()


def test_fault_of_the_only_arm_ends_the_run(tmp_path):
    with world(tmp_path) as run:
        run.start()
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        run.give("fault")
        message = error_of(run)
        assert "robot-0 has stopped: " in message
        assert "the elbow is stuck" in message
        run.resume()
        run.wait_for_episodes(2)
        finish(run)


def test_arm_that_is_gone_after_a_restart_ends_the_run(tmp_path):
    with world(tmp_path) as run:
        run.start()
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        run.give("broken")
        run.kill("RobotRole")
        assert "robot-0 has stopped: no arm at the other end of the cable: plug it in" in error_of(run)


def test_role_that_cannot_be_constructed_ends_the_run(tmp_path):
    with world(tmp_path) as run:
        run.start()
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        os.rename(run.path / "config.yaml", run.path / "config.yml")
        run.kill("LearnerRole")
        assert "learner cannot be started: " in error_of(run)


def test_damaged_checkpoint_ends_the_run(tmp_path):
    with world(tmp_path) as run:
        run.start()
        last = run.path / "checkpoints" / "last"
        run.wait_until(
            lambda: (last / "manifest.json").exists() and run.num_online_episodes() > 2, what="a checkpoint"
        )
        pid, _ = run.kill("LearnerRole", signal.SIGSTOP)  # so that it writes no further checkpoint
        for file in last.glob("*.safetensors"):
            file.write_bytes(b"rubbish")
        os.kill(pid, signal.SIGKILL)
        assert "the learner has stopped: checkpoint " in error_of(run)


def test_killed_ray_node_ends_the_run_and_resume_continues(tmp_path):
    with world(tmp_path) as run:
        run.start()
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        (node,) = (pid for pid, title in run.alive().items() if "raylet/raylet" in title)
        os.kill(node, signal.SIGKILL)
        assert "Ray's node on this machine has died" in error_of(run)
        assert run.notes()[-1].what == "stop"
        run.resume()
        run.wait_for_episodes(2)
        finish(run)


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a small file system."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)], capture_output=True
    ).returncode:
        pytest.skip("this machine does not allow mounting a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_full_disk_ends_the_run_and_resume_continues(tmp_path, small_disk):
    with world(tmp_path, runs=small_disk) as run:
        run.start()
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        fill(small_disk)
        assert "no space left" in error_of(run).lower()
        (small_disk / "ballast").unlink()
        run.resume()
        run.wait_for_episodes(2)
        finish(run)


def test_full_disk_of_one_arm_stops_only_that_arm(tmp_path, small_disk):
    """The arm's spool is on a separate disk: the arm stops, and the other one continues."""
    with world(tmp_path) as run:
        run.start("cluster.num_robots=2")
        run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")
        spool = run.path / "robots" / "robot-0" / "spool"
        subprocess.run(["mount", "--bind", str(small_disk), str(spool)], check=True)
        try:
            fill(small_disk)
            run.wait_until(lambda: run.events("robot rests"), what="the arm stops")
            assert "no space left" in run.events("robot rests")[0]["reason"].lower()
            run.wait_for_episodes(3)
            (small_disk / "ballast").unlink()
            run.wait_for_episodes(3)
            run.let_episodes_succeed()
            run.wait_for_report()
        finally:
            subprocess.run(["umount", "-l", str(spool)], check=True)
