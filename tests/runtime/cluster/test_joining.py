"""Machines join with one file, join again after a loss, and leave nothing behind."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from dovetail.cli.main import main
from dovetail.config.cluster import ClusterConfig, Place
from dovetail.config.load import load_section
from dovetail.core.errors import UsageError
from dovetail.runtime.ray.cluster.connection import connected, machines, role_options
from dovetail.runtime.ray.cluster.joining import join, leave, membership, this_machine
from dovetail.runtime.ray.cluster.process_marks import marked_processes
from support.lab import dovetail, lab_file
from support.waiting import wait_until


@pytest.fixture
def lab(tmp_path):
    path = lab_file(tmp_path)
    yield path
    for name in ("cell", "desk"):
        leave(name)


def read(path):
    return load_section(ClusterConfig, "cluster", [path])


def role_class():
    """In a function, so that Ray pickles the class: other processes cannot import this module."""

    class Role:
        def where(self):
            return ray.get_runtime_context().get_node_id(), os.getpid()

        def report(self):
            role = {
                "name": "robot-0",
                "health": "well",
                "host": "nuc-1",
                "starts": 2,
                "in_spool": 3,
                "rate_hz": 9.97,
            }
            return {"phase": "learning online", "roles": [role], "seconds_since_weights": 1.25}

    return ray.remote(Role)


@pytest.fixture
def run_here(capfd):
    """Run a command in this process: exit code, stdout and stderr."""

    def run(*words):
        code = main(["cluster", *map(str, words)])
        output = capfd.readouterr()
        return code, output.out, output.err

    return run


@pytest.mark.extended
def test_two_machines_join_and_leave_with_one_file(lab, tmp_path, run_here):
    code, _, errors = run_here("join", lab, "--as", "cell")
    assert (code, errors.count("\n")) == (2, 1)
    assert f"no token at {tmp_path / 'token'}" in errors

    code, output, errors = run_here("join", lab, "--as", "desk")
    assert code == 0, errors
    assert "created a token in" in output
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    code, output, errors = run_here("status", lab)
    assert (code, errors) == (1, "")
    assert "cell (127.0.0.3) is missing: run `dovetail cluster join" in output

    good = (tmp_path / "token").read_text()
    (tmp_path / "token").write_text("f" * 64)
    code, _, errors = run_here("join", lab, "--as", "cell")
    assert (code, errors.count("\n")) == (2, 1)
    assert "refuses the token" in errors
    (tmp_path / "token").write_text(good)

    config = read(lab)
    with connected(config), pytest.raises(UsageError) as refused:
        role_options(Place(resources={"inference": 1}), role="robot", config=config)
    assert "cluster.robot needs 1 of 'inference'" in str(refused.value)
    assert "`dovetail cluster join FILE --as cell` on cell" in str(refused.value)

    code, output, errors = run_here("join", lab, "--as", "cell")
    assert code == 0, errors
    assert run_here("join", lab, "--as", "cell") == (0, output, "")

    with connected(config):
        cell = next(machine for machine in machines() if machine["NodeManagerAddress"] == "127.0.0.3")
        options = role_options(Place(machine="cell", num_cpus=1), role="robots.left", config=config)
        role = role_class().options(**options, name="dovetail:first-try").remote()
        where, role_pid = ray.get(role.where.remote())
        assert where == cell["NodeID"]
        shown = dovetail("cluster", "status", lab)
        assert shown.returncode == 0, shown.stderr
        for words in (
            r"desk +\S+ +127.0.0.2 +head +CPU 2, training 1",
            r"cell +\S+ +127.0.0.3 +connected +CPU 2, inference 1",
            r"run first-try: phase learning online, seconds since weights 1.25",
            r"robot-0 +nuc-1 +well +2 +in spool 3, rate hz 9.97",
        ):
            assert re.search(words, shown.stdout), shown.stdout

    folder = Path(os.environ["TMPDIR"]) / f"dovetail-{os.getuid()}"
    pids = marked_processes(folder / "cell")
    assert membership("cell").keeper in pids
    for name in ("cell", "desk"):
        assert run_here("leave", lab, "--as", name)[1] == f"{name} has left the cluster\n"
    assert not [pid for pid in (*pids, role_pid) if Path(f"/proc/{pid}/exe").exists()]
    assert not any(folder.iterdir())
    assert run_here("leave", lab, "--as", "cell")[1] == "cell was not in a cluster\n"


@pytest.mark.slow
def test_killed_node_and_its_role_are_restarted(lab):
    for name in ("desk", "cell"):
        assert dovetail("cluster", "join", lab, "--as", name).returncode == 0
    config = read(lab)
    with connected(config):
        options = role_options(Place(machine="cell"), role="robot", config=config)
        role = role_class().options(**options, max_restarts=-1, max_task_retries=-1).remote()
        before, pid = ray.get(role.where.remote())
        folder = Path(os.environ["TMPDIR"]) / f"dovetail-{os.getuid()}" / "cell"
        raylets = [
            process
            for process in marked_processes(folder)
            if b"raylet/raylet" in Path(f"/proc/{process}/cmdline").read_bytes()
        ]
        os.kill(raylets[0], signal.SIGKILL)
        wait_until(lambda: membership("cell").state == "lost", timeout_s=60)
        wait_until(lambda: membership("cell").state == "joined", timeout_s=60)
        after, _ = ray.get(role.where.remote(), timeout=60)
        assert after != before
        assert not Path(f"/proc/{pid}/exe").exists()


@pytest.mark.slow
def test_killed_keeper_ends_its_node(lab):
    assert dovetail("cluster", "join", lab, "--as", "desk").returncode == 0
    folder = Path(os.environ["TMPDIR"]) / f"dovetail-{os.getuid()}" / "desk"
    assert len(marked_processes(folder)) > 4
    os.kill(membership("desk").keeper, signal.SIGKILL)
    wait_until(lambda: not marked_processes(folder), timeout_s=60)
    assert dovetail("cluster", "join", lab, "--as", "desk").returncode == 0


@pytest.mark.slow
def test_join_with_wait_leaves_when_interrupted(lab):
    command = [sys.executable, "-m", "dovetail.cli", "cluster", "join", str(lab), "--as", "desk", "--wait"]
    waiting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (known := membership("desk")) and known.state == "joined", timeout_s=120)
    wait_until(lambda: "is the head of" in waiting.stdout.readline(), timeout_s=120)
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(60) == 0, waiting.stderr.read()
    assert membership("desk") is None


def test_used_port_is_reported_before_the_start(lab):
    config = read(lab)
    port = config.machines["desk"].ports.objects
    with socket.create_server(("127.0.0.2", port)), pytest.raises(UsageError) as refused:
        join(config, "desk")
    assert f"cannot listen on 127.0.0.2:{port}" in str(refused.value)
    assert "cluster.machines.desk.address and .ports.objects" in str(refused.value)
    assert membership("desk") is None


def test_this_machine_is_found_by_host_name_or_address():
    def cluster(**cell):
        desk = {"head": True, "address": "192.0.2.250"}
        return ClusterConfig.model_validate(
            {"machines": {"desk": desk, "cell": {"address": "192.0.2.251", **cell}}}
        )

    assert this_machine(cluster(host=os.uname().nodename)) == "cell"
    assert this_machine(cluster(), named="desk") == "desk"
    with pytest.raises(UsageError, match="add --as desk or cell"):
        this_machine(cluster())
    with pytest.raises(UsageError, match=r"no machine 'celll' in cluster\.machines\. Did you mean 'cell'"):
        this_machine(cluster(), named="celll")
