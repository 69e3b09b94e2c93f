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


def finish(one):
    one.enough()
    one.finished()
    one.gone()
    one.check_nothing_lost()
    one.check_only_forward()


def failed(one):
    """The one line that the run ended with."""
    code, errors = one.ended()
    assert code == 1, errors
    told = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(told) == 1, errors
    one.gone()
    return told[0]


def test_hanging_labeler_learner_without_memory_and_faulting_arm(tmp_path):
    with world(tmp_path) as one:
        one.start("cluster.num_robots=2", "cluster.num_labelers=2", "cluster.label_timeout_s=30")
        one.until(lambda: one.num_online_episodes() > 2, what="practice")

        one.give("hang")
        one.until(lambda: one.was_taken("hang"), what="it hangs")
        one.wait_for_episodes(3)
        one.until(lambda: one.num_restarts("labeler"), what="it is restarted")

        before = one.checkpoint()
        one.give("out of memory")
        one.until(lambda: one.was_taken("out of memory"), what="it runs out of memory")
        one.until(lambda: one.num_restarts("learner"), what="the learner is restarted")
        assert "out of memory" in one.events("lost")[-1]["reason"]
        one.until(lambda: one.checkpoint()["published"] > before["published"], what="it goes on")

        one.give("fault")
        one.until(lambda: one.events("robot rests"), what="an arm rests")
        assert "the elbow is stuck" in one.events("robot rests")[0]["reason"]
        one.wait_for_episodes(3)  # the other goes on
        stopped = one.events("robot rests")[0]["robot"]
        one.command("acknowledge", "r", stopped)
        before = one.online_episodes_of(stopped)
        one.until(lambda: one.online_episodes_of(stopped) > before + 1, what="it goes on, seen to")
        assert one.events("acknowledged")[0]["robot"] == stopped
        finish(one)
        assert f"{stopped} has stopped: " in one.said and f"{stopped} continues" in one.said
        log, labels = EpisodeLog(one.path / "episodes"), LabelStore(one.path / "labels")
        for info in map(log.manifest, log.ids()):
            if info.purpose is Purpose.ONLINE and info.outcome is not Outcome.ABORTED:
                assert labels.current(info.id) is not None


def test_learner_that_never_has_memory_ends_the_run(tmp_path):
    with world(tmp_path) as one:
        one.start("run.checkpoint_every_s=100")
        one.until(lambda: one.num_online_episodes() > 2, what="practice")
        one.give("always out of memory")
        assert "learner died 5 times soon after its start: out of memory: " in failed(one)
        one.check_nothing_lost()


def test_fault_of_the_only_arm_ends_the_run(tmp_path):
    with world(tmp_path) as one:
        one.start()
        one.until(lambda: one.num_online_episodes() > 2, what="practice")
        one.give("fault")
        said = failed(one)
        assert "robot-0 has stopped: " in said
        assert "the elbow is stuck" in said
        one.resume()
        one.wait_for_episodes(2)
        finish(one)


def test_arm_that_is_gone_after_a_restart_ends_the_run(tmp_path):
    with world(tmp_path) as one:
        one.start()
        one.until(lambda: one.num_online_episodes() > 2, what="practice")
        one.give("broken")
        one.kill("RobotRole")
        assert "robot-0 has stopped: no arm at the other end of the cable: plug it in" in failed(one)


def test_role_that_cannot_be_constructed_ends_the_run(tmp_path):
    with world(tmp_path) as one:
        one.start()
        one.until(lambda: one.num_online_episodes() > 2, what="practice")
        os.rename(one.path / "config.yaml", one.path / "config.yml")
        one.kill("LearnerRole")
        assert "learner cannot be started: " in failed(one)


def test_damaged_checkpoint_ends_the_run(tmp_path):
    with world(tmp_path) as one:
        one.start()
        last = one.path / "checkpoints" / "last"
        one.until(lambda: (last / "manifest.json").exists() and one.num_online_episodes() > 2, what="a checkpoint")
        pid, _ = one.kill("LearnerRole", signal.SIGSTOP)  # so that it writes no other
        for file in last.glob("*.safetensors"):
            file.write_bytes(b"rubbish")
        os.kill(pid, signal.SIGKILL)
        assert "the learner has stopped: checkpoint " in failed(one)


def test_killed_ray_node_ends_the_run_and_resume_continues(tmp_path):
    with world(tmp_path) as one:
        one.start()
        one.until(lambda: one.num_online_episodes() > 2, what="practice")
        (node,) = (pid for pid, title in one.alive().items() if "raylet/raylet" in title)
        os.kill(node, signal.SIGKILL)
        assert "Ray's node on this machine has died" in failed(one)
        assert one.notes()[-1].what == "stop"
        one.resume()
        one.wait_for_episodes(2)
        finish(one)


@pytest.fixture
def small_disk(tmp_path):
    """A folder that can be filled."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)], capture_output=True
    ).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_full_disk_of_the_run(tmp_path, small_disk):
    with world(tmp_path, runs=small_disk) as one:
        one.start()
        one.until(lambda: one.num_online_episodes() > 2, what="practice")
        fill(small_disk)
        assert "no space left" in failed(one).lower()
        (small_disk / "ballast").unlink()
        one.resume()
        one.wait_for_episodes(2)
        finish(one)


def test_full_disk_of_one_arm(tmp_path, small_disk):
    """Its spool is on a disk of its own: the arm rests, and the other one goes on."""
    with world(tmp_path) as one:
        one.start("cluster.num_robots=2")
        one.until(lambda: one.num_online_episodes() > 2, what="practice")
        spool = one.path / "robots" / "robot-0" / "spool"
        subprocess.run(["mount", "--bind", str(small_disk), str(spool)], check=True)
        try:
            fill(small_disk)
            one.until(lambda: one.events("robot rests"), what="the arm rests")
            assert "no space left" in one.events("robot rests")[0]["reason"].lower()
            one.wait_for_episodes(3)
            (small_disk / "ballast").unlink()
            one.wait_for_episodes(3)
            one.enough()
            one.finished()
        finally:
            subprocess.run(["umount", "-l", str(spool)], check=True)
