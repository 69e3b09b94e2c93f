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

PLACES = """
  learner: {resources: {training: 0.5}}
  robot: {resources: {inference: 1}}
  labeler: {resources: {training: 0.1}}
  weights: {resources: {training: 0.1}}
"""


@pytest.mark.parametrize("on_disconnect", ["finish", "hold"])
def test_disconnected_robot_delivers_its_episode_later(hosts, tmp_path, on_disconnect):
    (desk, cell), cable = hosts
    lab = lab_file(tmp_path, desk="10.203.77.1", cell="10.203.77.2")
    lab.write_text(lab.read_text() + f"  on_disconnect: {on_disconnect}\n" + PLACES)
    within = {name: ("ip", "netns", "exec", name) for name in (desk, cell)}

    with world(tmp_path) as one:

        def cluster(word, host):
            command = [*within[host], sys.executable, "-m", "dovetail.cli", "cluster", word, str(lab)]
            done = subprocess.run(command, capture_output=True, text=True, env=one.environment, timeout=240)
            assert done.returncode == 0, done.stderr

        try:
            for host in (desk, cell):
                cluster("join", host)
            one.inside = within[desk]
            one.start(str(lab), f"task.max_steps={300 if on_disconnect == 'finish' else 100_000}")
            spool = Spool(one.path / "robots" / "robot-0" / "spool")
            one.until(lambda: on_disconnect == "hold" or one.num_online_episodes() > 0, what="practice")
            (running,) = one.until(lambda: [i for i in spool.running() if i in one.recorded], what="an episode")
            ip("-n", desk, "link", "set", cable, "down")
            one.until(lambda: one.lost("robot-0"), what="it is missed")
            one.until(lambda: running in spool.pending(), what="the episode has ended by itself")
            finished = spool.load(running).outcome
            assert one.notes()[-1].what == "stop"
            assert running not in EpisodeLog(one.path / "episodes").ids()
            ip("-n", desk, "link", "set", cable, "up")
            one.until(lambda: one.anew("robot-0"), what="it comes back")
            one.until(lambda: running in EpisodeLog(one.path / "episodes").ids(), what="it delivers")
            assert (finished is Outcome.ABORTED) == (on_disconnect == "hold")
            one.enough()
            one.finished()
            one.check_nothing_lost()
            one.check_only_forward()
        finally:
            ip("-n", desk, "link", "set", cable, "up")
            for host in (cell, desk):
                cluster("leave", host)
            eventually(lambda: not one.alive(), tell=one.alive)
