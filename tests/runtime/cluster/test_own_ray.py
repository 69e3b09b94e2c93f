"""A local Ray: it listens on loopback only, needs the token, and leaves nothing behind."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ray

from dovetail.config.cluster import ClusterConfig, Place, RobotPlace
from dovetail.core.errors import UsageError
from dovetail.runtime.ray.cluster.connection import (
    check_places,
    connected,
    machines,
    role_options,
    same_machine_options,
)
from dovetail.runtime.ray.cluster.process_marks import marked_processes
from support.waiting import wait_until

_KILLED = """
import os, signal, subprocess, ray
from dovetail.config.cluster import ClusterConfig
from dovetail.runtime.ray.cluster.connection import connected

class Role:
    def start(self):
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        return os.getpid(), child.pid

with connected(ClusterConfig(), num_cpus=1):
    role = ray.remote(Role).remote()
    print(*ray.get(role.start.remote()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""

_WITHOUT_TOKEN = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1])
"""


def folders():
    return set(Path(tempfile.gettempdir()).glob("dvt-*"))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def listening(pids):
    """Addresses on which these processes listen, in the kernel's format."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(link))
            except OSError:
                continue
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            cells = row.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in sockets:
                found.append(cells[1].partition(":")[0])
    return found


@pytest.mark.extended
def test_local_ray_listens_on_loopback_only_and_leaves_nothing():
    with connected(ClusterConfig(), num_cpus=2):
        (folder,) = folders()
        (machine,) = machines()
        host = machine["NodeManagerHostname"]
        options = role_options(Place(machine=host, num_cpus=1), role="learner", config=ClusterConfig())

        class Role:
            def mode(self):
                return os.environ["RAY_AUTH_MODE"]

        role = ray.remote(Role).options(**options).remote()
        assert ray.get(role.mode.remote()) == "token"
        for place, line in [
            (
                Place(resources={"training": 1}),
                "cluster.learner needs 1 of 'training', but the largest machine",
            ),
            (Place(num_gpus=9), "cluster.learner needs 9 of 'GPU'"),
            (
                Place(machine="nowhere"),
                f"cluster.learner is not in the cluster. Machines in the cluster: {host}",
            ),
        ]:
            with pytest.raises(UsageError) as refused:
                role_options(place, role="learner", config=ClusterConfig())
            assert line in str(refused.value)
        near = role_options(Place(num_cpus=2), role="learner", config=ClusterConfig(), pinned=True)
        assert same_machine_options(near) == {"num_cpus": 0, "num_gpus": 0, "resources": {"node:127.0.0.1": 0.001}}
        places = {name: RobotPlace(num_cpus=1) for name in ("left", "right")}
        check_places(ClusterConfig(robots=places))
        with pytest.raises(UsageError, match=r"no free 'CPU' for cluster\.robots\.right"):
            check_places(ClusterConfig(robots=places, learner=Place(num_cpus=1)))
        pids = marked_processes(folder)
        addresses = listening(pids)
        loopback = ("0100007F", "0000000000000000FFFF00000100007F")
        assert len(addresses) >= 5
        assert set(addresses) <= set(loopback)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "token").stat().st_mode & 0o777 == 0o600
        refused_client = subprocess.run(
            [sys.executable, "-c", _WITHOUT_TOKEN, ray.get_runtime_context().gcs_address],
            env={**os.environ, "RAY_AUTH_TOKEN": "f" * 64},
            capture_output=True,
            text=True,
        )
        assert "AuthenticationError" in refused_client.stderr
    assert not [pid for pid in pids if alive(pid)]
    assert folders() == set()


_OWN_PLUGIN = """
from dovetail.config.model import Config
class Task:
    Config = Config
"""
_OWN_ENV = """
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv
gymnasium.register("Swing-v0", entry_point=PendulumEnv, max_episode_steps=5)
"""


@pytest.mark.extended
def test_worker_does_not_import_installed_modules_from_the_current_folder(tmp_path, monkeypatch):
    """A downloaded folder may contain `av.py`. Own plugins of the current folder are found all the same."""
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('code of the folder ran')\n")
    (tmp_path / "own_plugin_of_folder.py").write_text(_OWN_PLUGIN)
    (tmp_path / "own_env_of_folder.py").write_text(_OWN_ENV)
    monkeypatch.chdir(tmp_path)

    def search():
        import colorsys

        from dovetail.config.plugins import resolve
        from dovetail.robots.gym import GymRobot, GymRobotConfig

        before = [*sys.path]
        env = GymRobot(GymRobotConfig(id="own_env_of_folder:Swing-v0")).spec.embodiment
        return before, colorsys.__file__, env, resolve("task", "own_plugin_of_folder:Task").__name__

    with connected(ClusterConfig(), num_cpus=1):
        path, colorsys_file, env, plugin = ray.get(ray.remote(search).remote())
    assert not {"", ".", str(tmp_path)} & set(path)
    assert not colorsys_file.startswith(str(tmp_path))
    assert (env, plugin) == ("own_env_of_folder:Swing-v0", "Task")


@pytest.mark.slow
def test_killed_driver_ends_its_local_ray():
    driver = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True)
    pids = [int(word) for word in driver.stdout.split()]
    assert len(pids) == 2, driver.stderr
    (folder,) = folders()
    wait_until(lambda: not folders(), timeout_s=60.0)
    assert not marked_processes(folder)
    assert not [pid for pid in pids if alive(pid)]


@pytest.mark.extended
def test_processes_of_an_arm_outlive_a_role_that_is_killed():
    """They stop the arm. By default Ray kills them at once when the driver restarts a role that does not answer."""

    class Role:
        def start(self):
            return subprocess.Popen(["sleep", "60"]).pid

        def pid(self):
            return os.getpid()

    with connected(ClusterConfig(), num_cpus=1):
        role = ray.remote(Role).remote()
        child, pid = ray.get([role.start.remote(), role.pid.remote()])
        ray.kill(role)
        wait_until(lambda: not alive(pid), timeout_s=30.0)
        lives = alive(child)
        if lives:
            os.kill(child, 9)
    assert lives
