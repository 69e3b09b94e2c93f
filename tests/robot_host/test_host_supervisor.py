"""A supervisor that is killed, stopped or asked to end: the arm stops, and the episode is in the spool."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from dovetail.cli._session import STOPPED
from dovetail.core.clock import NS_PER_S
from dovetail.core.types import Outcome
from dovetail.episodes.log import EpisodeLog
from dovetail.episodes.spool import Spool
from dovetail.testing.live import read_journal
from support import SUPPORT
from support.waiting import wait_until

SUPERVISOR = SUPPORT / "live_host.py"


@pytest.fixture
def supervisor(tmp_path, processes):
    """Starts a supervisor in another process, which runs an endless episode."""
    started = []

    def start(*overrides):
        process = subprocess.Popen(
            [sys.executable, str(SUPERVISOR), str(tmp_path), *overrides],
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        started.append(process)
        roles = json.loads(process.stdout.readline())
        wait_until(lambda: sum(note.moves for note in read_journal(tmp_path / "journal")) > 30)
        return process, roles

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
    wait_until(lambda: not processes.alive())


def stopped_after_s(folder, since_ns):
    """Seconds until the arm was stopped; it got no other command afterwards."""
    notes = [note for note in read_journal(folder / "journal") if note.time_ns >= since_ns]
    first = next(i for i, note in enumerate(notes) if note.what == "stop")
    assert all(note.what == "stop" for note in notes[first:])
    return (notes[first].time_ns - since_ns) / NS_PER_S


def recovered(folder):
    spool = Spool(folder / "spool")
    (episode_id,) = spool.pending()  # no process writes to it
    episode = spool.load(episode_id)
    assert episode is not None
    return episode


def test_killed_supervisor_stops_the_arm_and_leaves_nothing(supervisor, tmp_path, processes, record_property):
    process, _ = supervisor("actor.flush_every_s=5.0")  # so only the last flush has written something
    killed_ns = time.monotonic_ns()
    process.kill()
    process.wait()
    wait_until(lambda: not processes.alive(), timeout_s=2.0)
    gone_s = (time.monotonic_ns() - killed_ns) / NS_PER_S
    stopped_s = stopped_after_s(tmp_path, killed_ns)
    assert stopped_s < 0.5  # the closed pipe is noticed before heartbeat_timeout_s
    record_property("stopped_s", stopped_s)
    record_property("gone_s", gone_s)
    episode = recovered(tmp_path)
    assert episode.outcome is Outcome.ABORTED
    assert len(episode) > 30
    assert list((tmp_path / "tmp").iterdir()) == []  # also the temporary folder is removed


@pytest.mark.extended
def test_supervisor_killed_while_control_is_paused_stops_the_arm(supervisor, tmp_path, processes):
    process, roles = supervisor()
    os.kill(roles["control"], signal.SIGSTOP)
    killed_ns = time.monotonic_ns()
    process.kill()
    process.wait()
    wait_until(lambda: not processes.alive(), timeout_s=5.0)  # the guard ends the paused process
    assert stopped_after_s(tmp_path, killed_ns) < 1.0
    assert recovered(tmp_path).outcome is Outcome.ABORTED


@pytest.mark.extended
def test_supervisor_killed_while_the_policy_hangs_stops_the_arm(supervisor, tmp_path, processes):
    process, _ = supervisor("policy.hang_after=4", "actor.inference_timeout_s=100.0")
    killed_ns = time.monotonic_ns()
    process.kill()
    process.wait()
    wait_until(lambda: not processes.alive(), timeout_s=4.0)
    assert stopped_after_s(tmp_path, killed_ns) < 0.5
    assert recovered(tmp_path).outcome is Outcome.ABORTED


@pytest.mark.extended
def test_stopped_supervisor_makes_the_arm_hold_then_stop(supervisor, tmp_path, record_property):
    """As after Ctrl-Z: the arm holds after half of heartbeat_timeout_s and stops after all of it."""
    process, _ = supervisor()
    frozen_ns = time.monotonic_ns()
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: read_journal(tmp_path / "journal")[-1].what == "stop", timeout_s=2.0)
    stopped_s = stopped_after_s(tmp_path, frozen_ns)
    assert 0.3 < stopped_s < 1.0
    record_property("stopped_s", stopped_s)
    notes = [note for note in read_journal(tmp_path / "journal") if note.time_ns >= frozen_ns]
    moved = [note for note in notes if note.moves]
    held = [note for note in notes if note.what == "send" and note.time_ns > moved[-1].time_ns]
    assert (
        moved[-1].time_ns - frozen_ns
    ) / NS_PER_S < 0.25 + 0.08 + 0.1  # the last heartbeat, and the deceleration
    assert len(held) > 3
    process.send_signal(signal.SIGCONT)
    result = json.loads(process.stdout.readline())
    assert result["outcome"] == "aborted"
    assert "the supervisor has sent no heartbeat for 0.5 s" in result["fault"]
    assert process.wait() == 0


@pytest.mark.extended
@pytest.mark.parametrize(("number", "all_processes"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_termination_signal_is_not_a_fault(
    supervisor, tmp_path, processes, number, all_processes, record_property
):
    """Sent by a terminal, by `kill`, or by a service manager, which signals every process."""
    process, roles = supervisor()
    asked_ns = time.monotonic_ns()
    if all_processes:
        for pid in roles.values():
            os.kill(pid, number)
    os.killpg(process.pid, number)
    result = json.loads(process.stdout.readline())
    process.wait()
    ended_s = (time.monotonic_ns() - asked_ns) / NS_PER_S
    assert result["fault"] is None
    assert ended_s < 10.0  # also on a busy machine
    assert stopped_after_s(tmp_path, asked_ns) < 0.3
    assert processes.alive() == {}
    record_property("ended_s", ended_s)


RUN = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 100000, tolerance: 1.0e-9}
robot: {type: "dovetail.testing.live:LiveArm", journal: "%s"}
policy: {type: gaussian_mlp, hidden: [32, 32]}
actor: {type: sequential, layout: processes, flush_every_s: 0.1}
algorithm: {type: rlpd, batch_size: 32, hidden: [32, 32]}
run: {demos: 0, untrained_episodes: 5, env_steps: 100}
"""


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_run_ends_soon_after_a_termination_signal(tmp_path, processes, number, record_property):
    config, journal = tmp_path / "run.yaml", tmp_path / "journal"
    config.write_text(RUN % journal)
    command = [sys.executable, "-m", "dovetail.cli", "run", str(config), "--name", "r", "--quiet"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0
    )
    try:
        wait_until(lambda: len(read_journal(journal)) > 30, timeout_s=40.0)
        asked_ns = time.monotonic_ns()
        os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=10)
        ended_s = (time.monotonic_ns() - asked_ns) / NS_PER_S
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == STOPPED, errors
    assert stopped_after_s(tmp_path, asked_ns) < 0.3
    assert ended_s < 5.0  # measured: 0.4 until the run has ended, 1 until its interpreter has ended
    assert processes.alive() == {}
    record_property("ended_s", ended_s)
    log = EpisodeLog(tmp_path / "runs" / "r" / "episodes")
    assert [log.manifest(episode_id).outcome for episode_id in log.ids()] == [Outcome.ABORTED]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_process_killed_at_a_random_time_stops_the_arm(supervisor, tmp_path, processes, seed):
    rng = np.random.default_rng(seed)
    process, roles = supervisor()
    victim = rng.choice(["supervisor", *roles])
    time.sleep(rng.uniform(0.0, 1.0))
    killed_ns = time.monotonic_ns()
    os.kill({**roles, "supervisor": process.pid}[victim], signal.SIGKILL)
    process.wait(timeout=5.0)
    wait_until(lambda: not processes.alive(), timeout_s=3.0)
    assert stopped_after_s(tmp_path, killed_ns) < 0.5
    episode = recovered(tmp_path)
    assert episode.outcome is Outcome.ABORTED
    assert len(episode) > 10
    assert np.all(np.diff(episode.column("time_ns")) > 0)
    if victim != "supervisor":
        result = json.loads(process.stdout.readline())
        assert f"the {victim} process has died: killed by SIGKILL" in result["fault"]
