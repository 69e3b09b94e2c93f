"""A robot that is lost in the middle of a run: its process is killed, so that neither a command nor a stop reaches it."""

from __future__ import annotations

import time

import pytest

from dovetail.core.errors import RobotFault
from dovetail.live.link import LiveLink
from dovetail.robot_host.attended_actor import AttendedActor
from support.guarded_arm import GuardedArm
from support.live_host import order
from support.waiting import wait_until

CAUSES = ("observe() failed", "send() failed")
NOT_CONFIRMED = "use the robot's own emergency stop"


def assert_names_first_cause(fault: str) -> None:
    first, _, rest = fault.partition("; ")
    assert any(cause in first for cause in CAUSES), fault
    assert rest.startswith("stop() failed: "), fault
    assert fault.count("stop() failed") == 1
    assert NOT_CONFIRMED in rest
    assert "\n" not in fault


def test_lost_robot_waits_for_an_acknowledgement_and_continues_after_its_restart(guarded):
    arm = guarded()
    arm.go()
    arm.arm.kill()
    assert_names_first_cause(arm.fault())
    assert arm.error is None
    control = arm.host.processes["control"]
    arm.arm.restart()
    time.sleep(0.3)
    assert arm.arm.journal() == []  # nothing connects before a person has looked
    arm.wait_for_motion(arm.acknowledge())
    assert arm.host.processes["control"] == control  # no process has ended
    assert arm.arm.violations() == []


@pytest.mark.extended
def test_acknowledgement_before_the_robot_is_back_is_a_fault_again(guarded):
    arm = guarded()
    arm.go()
    arm.arm.kill()
    arm.fault()
    num_episodes = len(arm.episodes)
    arm.acknowledge()
    wait_until(lambda: len(arm.episodes) > num_episodes and arm.link.fault is not None, timeout_s=10.0)
    assert "Connection refused" in arm.fault()
    arm.arm.restart()
    arm.wait_for_motion(arm.acknowledge())


@pytest.mark.extended
def test_guard_stops_an_arm_that_has_restarted_over_a_new_independent_connection(guarded):
    arm = guarded(independent=True)
    arm.go()
    arm.arm.kill()
    arm.fault()
    arm.arm.restart()
    arm.wait_for_motion(arm.acknowledge())
    arm.block("observe")
    pressed_ns = arm.press()
    assert arm.stopped_after_s(pressed_ns) < 1.0
    stops = [entry for entry in arm.arm.journal(after_ns=pressed_ns) if entry["kind"] == "stop"]
    assert stops[0]["port"] == "stop"
    arm.unblock()
    arm.wait_for_motion(arm.acknowledge())


@pytest.mark.extended
def test_stop_between_two_episodes_of_a_lost_robot_needs_a_person(guarded):
    arm = guarded()
    arm.host.start()
    arm.arm.kill()
    arm.press()
    arm.go(until_moving=False)
    assert "the emergency stop was pressed" in arm.fault()
    arm.arm.restart()
    arm.wait_for_motion(arm.acknowledge())


@pytest.mark.extended
def test_lost_robot_without_a_person_ends_the_run_with_the_first_cause(guarded, tmp_path):
    arm: GuardedArm = guarded()
    (tmp_path / "alone").mkdir()
    link = LiveLink(tmp_path / "alone", robot=arm.cell.robot.spec, waits=False)
    link.open()
    arm.actor = AttendedActor(arm.host, link, should_stop=lambda: False)
    arm.go()
    arm.arm.kill()
    wait_until(lambda: arm.error is not None, timeout_s=20.0)
    link.close()
    assert isinstance(arm.error, RobotFault)
    _, _, fault = str(arm.error).partition("after a fault: ")
    assert_names_first_cause(fault)
    with pytest.raises(RobotFault, match=r"(observe|send)\(\) failed.*stop\(\) failed"):
        arm.host.run(order())
    with pytest.raises(RobotFault, match=r"robot 'socket_arm': stop\(\) failed: .*own emergency stop"):
        arm.cell.close()
    arm.arm.restart()
