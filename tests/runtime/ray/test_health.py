"""HealthMonitor and RemoteLabelers with small actors on a real Ray that fail in different ways."""

import tempfile
import time

import pytest
import ray

from dovetail.config.cluster import ClusterConfig
from dovetail.core.errors import FailureError, LabelError
from dovetail.labels.chain import LabelerChain
from dovetail.runtime.ray.cluster.connection import connected
from dovetail.runtime.ray.driver.health import HealthMonitor
from dovetail.runtime.ray.roles.handles import RemoteLabelers


@pytest.fixture(scope="module", autouse=True)
def _a_ray():
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True) as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            with connected(ClusterConfig(), num_cpus=1):
                yield
        finally:
            tempfile.tempdir = before


def failing_actor(**how):
    """The class is local, so that Ray pickles it: the actor's process cannot import this module."""

    class Failing:
        def __init__(self):
            import os
            import signal

            self._pid = os.getpid()
            if how.get("unfit"):
                raise ValueError("no such port: /dev/ttyUSB7")
            if how.get("crashes"):
                os.kill(self._pid, signal.SIGKILL)

        def report(self):
            report = {"pid": self._pid, "host": "here", "problem": None}
            return (
                {**report, "must_restart": True, "problem": "out of memory: 9 TB"}
                if how.get("out_of_memory")
                else report
            )

        def prepare(self):
            pass

        def label(self, episode, chain_state):
            import threading

            if episode == "hang":
                threading.Event().wait()
            return f"labeled {episode}"

        def die(self):
            import os

            os._exit(1)

    return ray.remote(Failing).options(max_restarts=-1, num_cpus=0, max_concurrency=4).remote()


def monitored(handle):
    events = []
    monitor = HealthMonitor(report=lambda kind, **facts: events.append((kind, facts)))
    monitor.add("role", handle)
    return monitor, events


def poll(monitor, until):
    deadline = time.monotonic() + 300.0
    while not until():
        assert time.monotonic() < deadline
        monitor.poll()
        time.sleep(0.02)


def kinds(events):
    return [kind for kind, _ in events]


@pytest.mark.extended
def test_restarted_role_is_reported_as_lost_and_started():
    handle = failing_actor()
    monitor, events = monitored(handle)
    poll(monitor, lambda: monitor.roles["role"].num_starts == 1)
    handle.die.remote()
    poll(monitor, lambda: "restarted" in kinds(events))
    assert kinds(events) == ["lost", "restarted"]
    assert events[1][1]["pid"] != events[0][1]["pid"]


@pytest.mark.extended
def test_role_without_memory_is_restarted_and_fails_after_five_times():
    monitor, events = monitored(failing_actor(out_of_memory=True))
    with pytest.raises(FailureError) as ended:
        poll(monitor, lambda: False)
    assert str(ended.value) == "role died 5 times soon after its start: out of memory: 9 TB"
    assert kinds(events) == ["lost", "restarted"] * 4 + ["lost"]
    assert events[0][1]["reason"] == "out of memory: 9 TB"


def test_role_that_cannot_be_constructed_fails_at_once():
    monitor, _ = monitored(failing_actor(unfit=True))
    with pytest.raises(FailureError) as ended:
        poll(monitor, lambda: False)
    assert str(ended.value) == "role cannot be started: ValueError: no such port: /dev/ttyUSB7"


@pytest.mark.extended
def test_role_that_crashes_before_its_first_report_fails():
    handle = failing_actor(crashes=True)
    monitor, _ = monitored(handle)
    with pytest.raises(FailureError, match="role crashes again and again before it is ready"):
        poll(monitor, lambda: False)
    ray.kill(handle)


@pytest.mark.extended
def test_labeler_that_hangs_is_restarted_and_another_is_asked():
    roles, chain = [failing_actor(), failing_actor()], LabelerChain(())
    labelers = RemoteLabelers(roles, chain=chain, timeout_s=300.0)
    assert {labelers.resume("one", None), labelers.resume("two", None)} == {"labeled one", "labeled two"}
    labelers = RemoteLabelers(roles, chain=chain, timeout_s=5.0)
    with pytest.raises(LabelError, match="did not answer for 5 s and is restarted"):
        labelers.resume("hang", None)
    assert labelers.resume("three", None) == "labeled three"  # by the other role
    deadline = time.monotonic() + 120.0
    while True:  # by the restarted role
        try:
            assert labelers.resume("four", None) == "labeled four"
            assert labelers.resume("five", None) == "labeled five"
            break
        except LabelError:
            assert time.monotonic() < deadline
