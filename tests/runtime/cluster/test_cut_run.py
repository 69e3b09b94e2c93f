"""The connection to the robot's machine is cut within an episode and restored: every episode arrives once."""

import subprocess
import sys

import pytest

from dovetail.core.types import Outcome
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from support.lab import lab_file
from support.namespaces import hosts, ip, needs_namespaces
from support.ray_world import eventually, world

__all__ = ["hosts"]

pytestmark = [pytest.mark.slow, needs_namespaces]

ROLE_RESOURCES = """
  learner: {resources: {training: 0.5}}
  robot: {resources: {inference: 1}}
  labeler: {resources: {training: 0.1}}
  weights: {resources: {training: 0.1}}
"""


@pytest.mark.parametrize("on_disconnect", ["finish", "hold"])
def test_disconnected_robot_delivers_its_episode_later(hosts, tmp_path, on_disconnect):
    (desk, cell), cable = hosts
    lab = lab_file(tmp_path, desk="10.203.77.1", cell="10.203.77.2")
    lab.write_text(lab.read_text() + f"  on_disconnect: {on_disconnect}\n" + ROLE_RESOURCES)
    command_prefix = {name: ("ip", "netns", "exec", name) for name in (desk, cell)}

    with world(tmp_path) as run:

        def cluster(command_name, host):
            command = [
                *command_prefix[host],
                sys.executable,
                "-m",
                "dovetail.cli",
                "cluster",
                command_name,
                str(lab),
            ]
            done = subprocess.run(command, capture_output=True, text=True, env=run.environment, timeout=240)
            assert done.returncode == 0, done.stderr

        try:
            for host in (desk, cell):
                cluster("join", host)
            run.command_prefix = command_prefix[desk]
            run.start(str(lab), f"task.max_steps={300 if on_disconnect == 'finish' else 100_000}")
            spool = Spool(run.path / "robots" / "robot-0" / "spool")
            run.wait_until(
                lambda: on_disconnect == "hold" or run.num_online_episodes() > 0, what="online episodes"
            )
            (running,) = run.wait_until(
                lambda: [i for i in spool.running() if i in run.recorded], what="an episode"
            )
            ip("-n", desk, "link", "set", cable, "down")
            run.wait_until(lambda: run.num_lost("robot-0"), what="the loss of the robot is detected")
            run.wait_until(lambda: running in spool.pending(), what="the episode has ended by itself")
            finished = spool.load(running).outcome
            assert run.notes()[-1].what == "stop"
            assert running not in EpisodeLog(run.path / "episodes").ids()
            ip("-n", desk, "link", "set", cable, "up")
            run.wait_until(lambda: run.num_restarts("robot-0"), what="the robot is restarted")
            run.wait_until(
                lambda: running in EpisodeLog(run.path / "episodes").ids(), what="the episode is delivered"
            )
            assert (finished is Outcome.ABORTED) == (on_disconnect == "hold")
            run.let_episodes_succeed()
            run.wait_for_report()
            run.check_nothing_lost()
            run.check_only_forward()
        finally:
            ip("-n", desk, "link", "set", cable, "up")
            for host in (cell, desk):
                cluster("leave", host)
            eventually(lambda: not run.alive(), details=run.alive)
