"""Two machines (network namespaces) whose connection is cut and restored."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.runtime.ray.cluster.joining import membership
from dovetail.runtime.ray.cluster.process_marks import marked_processes
from support.lab import dovetail, lab_file
from support.namespaces import hosts, ip, needs_namespaces
from support.waiting import wait_until

__all__ = ["hosts"]

pytestmark = [pytest.mark.slow, needs_namespaces]

_DRIVER = """
import os, sys, time, ray
from dovetail.config.cluster import ClusterConfig, Place
from dovetail.config.load import load_section
from dovetail.runtime.ray.cluster.connection import connected, machines, role_options

class Role:
    def pid(self):
        return os.getpid()

config = load_section(ClusterConfig, "cluster", [sys.argv[1]])
with connected(config):
    options = role_options(Place(machine="cell", resources={"inference": 1}), role="robot", config=config)
    role = ray.remote(Role).options(**options, max_restarts=-1, max_task_retries=-1).remote()
    print(ray.get(role.pid.remote()), flush=True)
    input()
    start = time.monotonic()
    while len(machines()) > 1:
        time.sleep(0.1)
    print(time.monotonic() - start, flush=True)
    input()
    print(ray.get(role.pid.remote()), flush=True)
"""


def test_disconnected_machine_is_detected_and_joins_again(hosts, tmp_path):
    (desk, cell), cable = hosts
    lab = lab_file(tmp_path, desk="10.203.77.1", cell="10.203.77.2")
    command_prefix = {name: ("ip", "netns", "exec", name) for name in (desk, cell)}
    for host in (desk, cell):  # each is recognized by its address
        joined = dovetail("cluster", "join", lab, inside=command_prefix[host])
        assert joined.returncode == 0, joined.stderr
    status = dovetail("cluster", "status", lab, inside=command_prefix[desk])
    assert status.returncode == 0, status.stdout + status.stderr

    driver = subprocess.Popen(
        [*command_prefix[desk], sys.executable, "-c", _DRIVER, str(lab)], stdin=-1, stdout=-1, stderr=-1, text=True
    )
    try:
        before = driver.stdout.readline()
        assert before, driver.stderr.read()
        ip("-n", desk, "link", "set", cable, "down")
        driver.stdin.write("\n")
        driver.stdin.flush()
        detected_s = float(driver.stdout.readline())
        assert detected_s < 30  # 4.4 s on an idle machine; 66 s with Ray's defaults
        assert Path(f"/proc/{int(before)}/exe").exists()  # disconnected, not killed
        ip("-n", desk, "link", "set", cable, "up")
        wait_until(lambda: membership("cell").state == "lost", timeout_s=120)
        wait_until(lambda: membership("cell").state == "joined", timeout_s=120)
        driver.stdin.write("\n")
        driver.stdin.flush()
        after = driver.stdout.readline()
        assert after, driver.stderr.read()
        assert after != before
        assert driver.wait(60) == 0
    finally:
        driver.kill()
    folder = Path(os.environ["TMPDIR"]) / f"dovetail-{os.getuid()}"
    for host, name in ((cell, "cell"), (desk, "desk")):
        assert dovetail("cluster", "leave", lab, inside=command_prefix[host]).returncode == 0
        assert not marked_processes(folder / name)
