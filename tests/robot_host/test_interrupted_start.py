"""An arm that is cut off from its run for moments while its processes start."""

from __future__ import annotations

import time

from support.guarded_arm import GuardedArm
from support.live_host import order


def cut_off_at_its_start(arm: GuardedArm) -> GuardedArm:
    """An arm that is cut off as soon as its processes start. `arm._ending` is set while it is."""
    start = arm.host._start_processes

    def start_and_cut() -> None:
        start()
        arm._ending.set()

    arm.host._start_processes = start_and_cut
    assert arm.host.run(order()) is None and arm.host.stopped
    assert arm.host.processes and not arm.host._is_started
    arm.host._start_processes = start
    return arm


def test_processes_start_on_while_the_arm_is_cut_off(guarded):
    arm = cut_off_at_its_start(guarded())
    started = dict(arm.host.processes)
    for _ in range(3):
        assert arm.host.run(order()) is None and arm.host.processes == started
    arm._ending.clear()
    arm.go()
    assert arm.host.processes == started


def test_arm_does_not_move_when_it_is_cut_off_as_its_processes_get_ready(guarded):
    arm = cut_off_at_its_start(guarded())
    arm._ending.clear()
    arm.host.start()
    arm._ending.set()
    assert arm.host.run(order()) is None and arm.host.stopped and not arm.arm.motions()


def test_stop_while_the_processes_of_a_cut_off_arm_start_needs_an_acknowledgement(guarded):
    arm = cut_off_at_its_start(guarded())
    arm.press()
    time.sleep(0.1)
    arm._ending.clear()
    arm.go(until_moving=False)
    assert "emergency stop" in arm.fault() and not arm.arm.motions()
    arm.wait_for_motion(arm.acknowledge())
