"""A run on three simulated machines: the robot's is killed, then the learner's, then the head."""

import os
import signal
import subprocess
import sys

import pytest
import yaml

from dovetail.episodes.spool import Spool
from support.lab import free_ports
from support.ray_world import HOST_ROLES, eventually, world

pytestmark = pytest.mark.slow

ADDRESSES = {"desk": "127.0.0.2", "cell": "127.0.0.3", "box": "127.0.0.4"}


class Lab:
    """The machines of a run."""

    def __init__(self, one):
        self._one, self.file = one, one.folder / "lab.yaml"
        offers = {"desk": {}, "cell": {"inference": 1}, "box": {"training": 1}}
        machines = {
            name: {"head": name == "desk", "address": address, "ports": free_ports("0.0.0.0"), "num_cpus": 2}
            | {"resources": offers[name]}
            for name, address in ADDRESSES.items()
        }
        places = {
            "machines": machines,
            "token_file": str(one.folder / "token"),
            "learner": {"resources": {"training": 1}},
            "robot": {"resources": {"inference": 1}},
        }
        self.file.write_text(yaml.safe_dump({"cluster": places}))

    def __call__(self, *words):
        command = [sys.executable, "-m", "dovetail.cli", "cluster", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=self._one.environment, timeout=240)
        assert done.returncode in (0, 1, 2), done.stderr  # 2: no head
        return done

    def join(self, name):
        done = self("join", str(self.file), "--as", name)
        assert done.returncode == 0, done.stderr

    def all_there(self):
        return self("status", str(self.file)).returncode == 0

    def kill(self, name, what="raylet/raylet"):
        """Kill a process of a machine's node, found by its address."""
        alive = self._one.alive()
        (pid,) = (pid for pid, title in alive.items() if what in title and ADDRESSES[name] in title)
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def lab(tmp_path):
    with world(tmp_path) as one:
        made = Lab(one)
        try:
            for name in ADDRESSES:
                made.join(name)
            yield one, made
        finally:
            for name in reversed(ADDRESSES):
                made("leave", str(made.file), "--as", name)


def test_run_survives_killed_machines(lab):
    one, machines = lab
    one.start(str(machines.file))
    one.until(lambda: one.num_online_episodes() > 2, what="practice")

    machines.kill("cell")
    one.until(lambda: one.lost("robot-0"), what="the robot's machine is missed")
    one.until(lambda: one.anew("robot-0"), what="its keeper brings it back")
    one.practised(2)

    before = one.checkpoint()
    machines.kill("box")
    one.until(lambda: one.lost("learner") and one.lost("store"), what="the learner's machine is missed")
    one.until(lambda: one.anew("learner") and one.anew("store"), what="its keeper brings it back")
    one.practised(2)
    one.until(lambda: one.checkpoint()["version"] > before["version"], what="it goes on learning")

    machines.kill("desk", "gcs_server")
    code, _ = one.ended()
    assert code != 0
    arm = ("RobotRole", *HOST_ROLES)
    eventually(lambda: not any(one.pids(process) for process in arm), what="the arm is let go of")
    assert one.notes()[-1].what == "stop"
    assert Spool(one.path / "robots" / "robot-0" / "spool").running() == []
    eventually(machines.all_there, what="everybody has found the head again")
    one.resume()
    one.practised(2)
    one.enough()
    one.finished()
    one.check_nothing_lost()
    one.check_only_forward()
