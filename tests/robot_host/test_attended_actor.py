"""A person acknowledges a stop: when the arm goes on, and when it waits again."""

from __future__ import annotations

import pytest

from dovetail.actor.control import EMERGENCY
from dovetail.core.errors import RobotFault
from dovetail.live.link import LiveLink
from dovetail.robot_host.attended_actor import AttendedActor
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from support.live_host import order


class Arm:
    """An actor whose fault stays until it is acknowledged. `during` is called in an episode."""

    stopped = False

    def __init__(self) -> None:
        self.fault: str | None = None
        self.num_episodes = 0
        self.during = lambda: None

    def run(self, order):
        if self.fault is not None:
            raise RobotFault(f"does not move after a fault: {self.fault}")
        self.num_episodes += 1
        self.during()

    def acknowledge(self) -> None:
        self.fault = None


@pytest.fixture
def link(tmp_path):
    """Of an arm on another machine: without a console, only a STOP waits for an acknowledgement."""
    link = LiveLink(tmp_path, robot=FakeArm(FakeArmConfig()).spec, arm="far")
    link.open()
    yield link
    link.close()


@pytest.fixture
def arm():
    return Arm()


@pytest.fixture
def cut_off():
    """Not empty: the arm is cut off from the run."""
    return []


@pytest.fixture
def actor(arm, link, cut_off):
    return AttendedActor(arm, link, should_stop=lambda: bool(cut_off))


def stop_in_episode(arm, link, cut_off):
    def during():
        link.stop.press("console")
        arm.fault = "emergency stop"
        cut_off.append(1)

    arm.during = during


def test_arm_that_is_cut_off_during_a_stop_goes_on_after_one_acknowledgement(actor, arm, link, cut_off):
    stop_in_episode(arm, link, cut_off)
    actor.run(order())
    assert actor.stopped and arm.fault
    arm.during = lambda: None
    link.stop.acknowledge()  # it arrives with the link
    cut_off.clear()
    actor.run(order())
    assert arm.num_episodes == 2 and arm.fault is None and not actor.stopped


def test_arm_that_is_cut_off_during_a_stop_does_not_go_on_without_an_acknowledgement(actor, arm, link, cut_off):
    stop_in_episode(arm, link, cut_off)
    actor.run(order())
    actor.run(order())  # still cut off
    assert actor.stopped and arm.num_episodes == 1 and arm.fault


def test_press_just_after_an_acknowledgement_waits_for_another(actor, arm, link, monkeypatch):
    waited = []

    def wait(fault, *, since, should_stop):
        waited.append(fault)
        link.stop.acknowledge()
        if len(waited) == 1:
            link.stop.press("pedal")  # before the episode begins
        return True

    monkeypatch.setattr(link, "wait_for_acknowledgement", wait)
    link.stop.press("console")
    actor.run(order())
    assert waited == [f"{EMERGENCY} (console)", f"{EMERGENCY} (pedal)"] and arm.num_episodes == 1
