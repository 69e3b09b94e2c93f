"""Killed processes of an arm are restarted, but not without a limit."""

import pytest

from dovetail.core.errors import FailureError, RobotFault
from dovetail.robot_host.restarting_actor import RestartingActor
from support.live_host import order


class FakeHost:
    """A fake RobotHost. Each run or start kills the next process of `killed`."""

    def __init__(self, *killed, raises=None):
        self._turns, self._raises = list(killed), raises
        self.killed_process = self.fault = None
        self.stopped = False
        self.processes = {"control": 1, "inference": 2, "recorder": 3}
        self.num_starts = 0

    def run(self, order):
        self.killed_process = self._turns.pop(0) if self._turns else None
        self.fault = self.killed_process and f"the {self.killed_process} process has died"
        if self._raises:
            raise self._raises
        return "episode"

    def load(self, snapshot):
        if self.num_starts == 0:
            self.killed_process = self._turns.pop(0) if self._turns else None
            raise FailureError("the inference process has died")
        self.loaded = snapshot

    def acknowledge(self):
        self.killed_process = self.fault = None

    def start(self):
        self.num_starts += 1
        self.killed_process = self._turns.pop(0) if self._turns else None
        if self.killed_process:
            raise FailureError(f"the {self.killed_process} process has died: killed")


def restarting(host):
    restarts = []
    return RestartingActor(host, on_restart=lambda name, pid: restarts.append((name, pid))), restarts


def test_killed_process_is_restarted_and_reported():
    actor, restarts = restarting(FakeHost("inference"))
    assert actor.run(order()) == "episode"
    assert restarts == [("inference", 2)]
    assert actor.fault is None


def test_second_kill_during_the_restart_is_handled():
    host = FakeHost("inference", "control")
    actor, restarts = restarting(host)
    actor.run(order())
    assert restarts == [("control", 1)]
    assert host.num_starts == 2


def test_too_many_kills_are_a_fault():
    host = FakeHost(*["recorder"] * 9)
    actor, restarts = restarting(host)
    actor.run(order())
    assert (restarts, host.num_starts) == ([], 3)
    assert host.killed_process == "recorder"


def test_own_failure_is_a_fault():
    host = FakeHost(raises=RobotFault("the elbow is stuck"))
    actor, restarts = restarting(host)
    with pytest.raises(RobotFault, match="elbow"):
        actor.run(order())
    assert (restarts, host.num_starts) == ([], 0)
    assert restarting(FakeHost("control", raises=FailureError("it has died")))[0].run(order()) is None


def test_process_killed_between_two_episodes_gets_the_weights_again():
    host = FakeHost("inference")
    actor, restarts = restarting(host)
    actor.load("weights")
    assert (restarts, host.loaded) == ([("inference", 2)], "weights")
    with pytest.raises(FailureError, match="has died"):  # not killed
        restarting(FakeHost())[0].load("weights")
