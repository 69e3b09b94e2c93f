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

    def __init__(self, run):
        self._run, self.file = run, run.folder / "lab.yaml"
        resources = {"desk": {}, "cell": {"inference": 1}, "box": {"training": 1}}
        machines = {
            name: {"head": name == "desk", "address": address, "ports": free_ports("0.0.0.0"), "num_cpus": 2}
            | {"resources": resources[name]}
            for name, address in ADDRESSES.items()
        }
        cluster = {
            "machines": machines,
            "token_file": str(run.folder / "token"),
            "learner": {"resources": {"training": 1}},
            "robot": {"resources": {"inference": 1}},
        }
        self.file.write_text(yaml.safe_dump({"cluster": cluster}))

    def __call__(self, *words):
        command = [sys.executable, "-m", "dovetail.cli", "cluster", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=self._run.environment, timeout=240)
        assert done.returncode in (0, 1, 2), done.stderr  # 2: no head
        return done

    def join(self, name):
        done = self("join", str(self.file), "--as", name)
        assert done.returncode == 0, done.stderr

    def all_connected(self):
        return self("status", str(self.file)).returncode == 0

    def kill(self, name, what="raylet/raylet"):
        """Kill a process of a machine's node, found by its address."""
        alive = self._run.alive()
        (pid,) = (pid for pid, title in alive.items() if what in title and ADDRESSES[name] in title)
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def lab(tmp_path):
    with world(tmp_path) as run:
        machines = Lab(run)
        try:
            for name in ADDRESSES:
                machines.join(name)
            yield run, machines
        finally:
            for name in reversed(ADDRESSES):
                machines("leave", str(machines.file), "--as", name)


def test_run_survives_killed_machines(lab):
    run, machines = lab
    run.start(str(machines.file))
    run.wait_until(lambda: run.num_online_episodes() > 2, what="online episodes")

    machines.kill("cell")
    run.wait_until(lambda: run.num_lost("robot-0"), what="the loss of the robot's machine is detected")
    run.wait_until(lambda: run.num_restarts("robot-0"), what="the keeper restarts the node")
    run.wait_for_episodes(2)

    before = run.checkpoint()
    machines.kill("box")
    run.wait_until(
        lambda: run.num_lost("learner") and run.num_lost("store"),
        what="the loss of learner and store is detected",
    )
    run.wait_until(
        lambda: run.num_restarts("learner") and run.num_restarts("store"), what="the keeper restarts the node"
    )
    run.wait_for_episodes(2)
    run.wait_until(lambda: run.checkpoint()["published"] > before["published"], what="the learner continues")

    machines.kill("desk", "gcs_server")
    code, _ = run.wait_for_exit()
    assert code != 0
    arm = ("RobotRole", *HOST_ROLES)
    eventually(lambda: not any(run.pids(process) for process in arm), what="the arm's processes have ended")
    assert run.notes()[-1].what == "stop"
    assert Spool(run.path / "robots" / "robot-0" / "spool").running() == []
    eventually(machines.all_connected, what="all machines are connected to the head again")
    run.resume()
    run.wait_for_episodes(2)
    run.let_episodes_succeed()
    run.wait_for_report()
    run.check_nothing_lost()
    run.check_only_forward()
