"""An arm's processes that were killed are started anew: also when somebody is killed meanwhile, but not for ever."""

import pytest

from dovetail.core.errors import FailureError, RobotFault
from dovetail.robot_host.restarting_actor import RestartedActor
from support.live_host import order


class Host:
    """As RobotHost is to who restarts it. `killed` by turns: at each start whoever is next is killed, if anybody."""

    def __init__(self, *killed, raises=None):
        self._turns, self._raises = list(killed), raises
        self.killed = self.fault = None
        self.stopped = False
        self.processes = {"control": 1, "inference": 2, "recorder": 3}
        self.num_starts = 0

    def run(self, order):
        self.killed = self._turns.pop(0) if self._turns else None
        self.fault = self.killed and f"the {self.killed} process has died"
        if self._raises:
            raise self._raises
        return "episode"

    def load(self, snapshot):
        if self.num_starts == 0:
            self.killed = self._turns.pop(0) if self._turns else None
            raise FailureError("the inference process has died")
        self.loaded = snapshot

    def acknowledge(self):
        self.killed = self.fault = None

    def start(self):
        self.num_starts += 1
        self.killed = self._turns.pop(0) if self._turns else None
        if self.killed:
            raise FailureError(f"the {self.killed} process has died: killed")


def restarted(host):
    told = []
    return RestartedActor(host, tell=lambda name, pid: told.append((name, pid))), told


def test_who_was_killed_is_started_anew_and_told():
    actor, told = restarted(Host("inference"))
    assert actor.run(order()) == "episode"
    assert told == [("inference", 2)]
    assert actor.fault is None


def test_another_is_killed_while_they_start():
    host = Host("inference", "control")
    actor, told = restarted(host)
    actor.run(order())
    assert told == [("control", 1)]
    assert host.num_starts == 2


def test_it_is_a_fault_after_all_when_it_goes_on():
    host = Host(*["recorder"] * 9)
    actor, told = restarted(host)
    actor.run(order())
    assert (told, host.num_starts) == ([], 3)
    assert host.killed == "recorder"


def test_what_fails_by_itself_is_a_fault():
    host = Host(raises=RobotFault("the elbow is stuck"))
    actor, told = restarted(host)
    with pytest.raises(RobotFault, match="elbow"):
        actor.run(order())
    assert (told, host.num_starts) == ([], 0)
    assert restarted(Host("control", raises=FailureError("it has died")))[0].run(order()) is None


def test_killed_between_two_episodes_it_has_its_weights_all_the_same():
    host = Host("inference")
    actor, told = restarted(host)
    actor.load("weights")
    assert (told, host.loaded) == ([("inference", 2)], "weights")
    with pytest.raises(FailureError, match="has died"):  # by itself
        restarted(Host())[0].load("weights")
