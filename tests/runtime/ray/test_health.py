"""Actors that are ill, each in one way, on a real Ray, and what is said of them; small ones, that start in no time."""

import tempfile
import time

import pytest
import ray

from dovetail.config.cluster import ClusterConfig
from dovetail.core.errors import FailureError, LabelError
from dovetail.runtime.ray.cluster.connection import connected
from dovetail.runtime.ray.driver.health import HealthMonitor
from dovetail.runtime.ray.roles.handles import LabelerHandles


@pytest.fixture(scope="module", autouse=True)
def _a_ray():
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True) as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            with connected(ClusterConfig(), num_cpus=1):
                yield
        finally:
            tempfile.tempdir = before


def ill(**how):
    """In a function, so that it travels as it is: this module is not to be found elsewhere."""

    class Ill:
        def __init__(self):
            import os
            import signal

            self._pid = os.getpid()
            if how.get("unfit"):
                raise ValueError("no such port: /dev/ttyUSB7")
            if how.get("crashes"):
                os.kill(self._pid, signal.SIGKILL)

        def report(self):
            told = {"pid": self._pid, "host": "here", "problem": None}
            return {**told, "hopeless": True, "problem": "out of memory: 9 TB"} if how.get("hungry") else told

        def prepare(self):
            pass

        def hear(self, episode, chain_state):
            import threading

            if episode == "hang":
                threading.Event().wait()
            return f"heard {episode}"

        def die(self):
            import os

            os._exit(1)

    return ray.remote(Ill).options(max_restarts=-1, num_cpus=0, max_concurrency=4).remote()


def watched(handle):
    told = []
    supervision = HealthMonitor(tell=lambda kind, **facts: told.append((kind, facts)))
    supervision.add("role", handle)
    return supervision, told


def look(supervision, until):
    deadline = time.monotonic() + 300.0
    while not until():
        assert time.monotonic() < deadline
        supervision.look()
        time.sleep(0.02)


def kinds(told):
    return [kind for kind, _ in told]


def test_who_dies_is_missed_and_welcomed():
    handle = ill()
    supervision, told = watched(handle)
    look(supervision, lambda: supervision.roles["role"].num_starts == 1)
    handle.die.remote()
    look(supervision, lambda: "started anew" in kinds(told))
    assert kinds(told) == ["lost", "started anew"]
    assert told[1][1]["pid"] != told[0][1]["pid"]


def test_who_has_no_memory_is_started_anew_and_told_in_the_end():
    supervision, told = watched(ill(hungry=True))
    with pytest.raises(FailureError) as ended:
        look(supervision, lambda: False)
    assert str(ended.value) == "role has died 5 times soon after its start: out of memory: 9 TB"
    assert kinds(told) == ["lost", "started anew"] * 4 + ["lost"]
    assert told[0][1]["reason"] == "out of memory: 9 TB"


def test_who_cannot_be_made_is_told_at_once():
    supervision, _ = watched(ill(unfit=True))
    with pytest.raises(FailureError) as ended:
        look(supervision, lambda: False)
    assert str(ended.value) == "role cannot be started: ValueError: no such port: /dev/ttyUSB7"


def test_who_dies_before_it_is_ready_is_not_waited_for():
    handle = ill(crashes=True)
    supervision, _ = watched(handle)
    with pytest.raises(FailureError, match="role dies again and again before it is ready"):
        look(supervision, lambda: False)
    ray.kill(handle)


def test_a_labeler_that_hangs_is_started_anew_and_another_is_asked_meanwhile():
    panel = LabelerHandles([ill(), ill()], labelers=(), max_each=1, timeout_s=300.0)
    assert {panel.resume("one", None), panel.resume("two", None)} == {"heard one", "heard two"}
    panel = LabelerHandles(panel._roles, labelers=(), max_each=1, timeout_s=5.0)
    with pytest.raises(LabelError, match="has not answered for 5 s, and is started anew"):
        panel.resume("hang", None)
    assert panel.resume("three", None) == "heard three"  # the other one's turn
    deadline = time.monotonic() + 120.0
    while True:  # and then its own again
        try:
            assert panel.resume("four", None) == "heard four"
            assert panel.resume("five", None) == "heard five"
            break
        except LabelError:
            assert time.monotonic() < deadline
