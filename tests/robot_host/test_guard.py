"""STOP while a process of the robot hangs, is paused or was killed: the arm is stopped and stays so until acknowledged."""

from __future__ import annotations

import os
import signal
import time

import pytest

from support.guarded_arm import GuardedArm
from support.waiting import wait_until

WITHIN_S = 1.0  # on a busy machine; `dovetail bench stop` measures the times
both = pytest.mark.parametrize("independent", [False, True], ids=["one connection", "independent stop"])


def assert_stopped_until_acknowledged(arm: GuardedArm, since_ns: int, *, reason: str) -> str:
    """A stop arrived in time, no motion followed, and the arm moves after the acknowledgement. Returns the fault."""
    stopped_s = arm.stopped_after_s(since_ns)
    assert stopped_s < WITHIN_S
    fault = arm.fault()
    assert reason in fault
    assert "\n" not in fault
    arm.unblock()
    time.sleep(0.3)
    assert arm.arm.motions(after_ns=since_ns + round(stopped_s * 1e9)) == []
    arm.wait_for_motion(arm.acknowledge())
    return fault


PRESSED = "the emergency stop was pressed (test)"


@both
@pytest.mark.parametrize("call", ["observe", pytest.param("send", marks=pytest.mark.slow)])
def test_stop_while_the_driver_hangs(guarded, call, independent):
    arm = guarded(independent=independent)
    arm.go()
    arm.block(call)
    pressed_ns = arm.press()
    fault = assert_stopped_until_acknowledged(arm, pressed_ns, reason=PRESSED)
    assert fault.startswith("the guard stopped robot 'socket_arm' at ")
    ports = {entry["port"] for entry in arm.arm.journal() if entry["kind"] == "stop" and entry["ns"] > pressed_ns}
    assert ("stop" in ports) == independent


@pytest.mark.extended
def test_stop_while_the_arm_does_not_answer(guarded):
    """The driver waits in a system call, and the connection of the control process is not read any more."""
    arm = guarded(independent=True)
    arm.go()
    arm.arm.behave(observe="silent", deaf=True)
    time.sleep(0.2)
    pressed_ns = arm.press()
    assert arm.stopped_after_s(pressed_ns) < WITHIN_S
    assert PRESSED in arm.fault()
    arm.arm.behave_well()
    arm.wait_for_motion(arm.acknowledge())


@pytest.mark.extended
@both
def test_stop_during_a_reset_that_waits(guarded, independent):
    arm = guarded("task.max_steps=20", independent=independent)
    arm.go()
    arm.block("reset")
    assert_stopped_until_acknowledged(arm, arm.press(), reason=PRESSED)


@pytest.mark.extended
def test_stop_while_homing_hangs(guarded):
    arm = guarded("task.max_steps=20", "actor.home={action: [0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.5]}")
    arm.go()
    wait_until(lambda: len(arm.episodes) > 1, timeout_s=30.0)
    arm.block("send")
    assert_stopped_until_acknowledged(arm, arm.press(), reason=PRESSED)


@pytest.mark.extended
@pytest.mark.parametrize(
    "name", ["control", pytest.param("inference", marks=pytest.mark.slow), "recorder", "guard"]
)
def test_stop_while_a_process_is_paused(guarded, name):
    arm = guarded()
    arm.go()
    os.kill(arm.host.processes[name], signal.SIGSTOP)
    pressed_ns = arm.press()
    assert_stopped_until_acknowledged(arm, pressed_ns, reason=PRESSED)


@pytest.mark.extended
def test_control_that_hangs_while_the_guard_is_paused_is_stopped_by_the_supervisor(guarded):
    arm = guarded()
    arm.go()
    os.kill(arm.host.processes["guard"], signal.SIGSTOP)
    arm.block("observe")
    fault = assert_stopped_until_acknowledged(arm, arm.press(), reason=PRESSED)
    assert "neither it nor the guard stopped the arm" in fault


@pytest.mark.slow
@pytest.mark.parametrize("name", ["control", "inference", "recorder", "guard"])
def test_killed_process_stops_the_arm(guarded, name):
    arm = guarded()
    arm.go()
    killed_ns = time.monotonic_ns()
    os.kill(arm.host.processes[name], signal.SIGKILL)
    reason = f"the {name} process has died: killed by SIGKILL"
    assert_stopped_until_acknowledged(arm, killed_ns, reason=reason)


@pytest.mark.extended
def test_paused_control_process_is_noticed_without_a_stop(guarded):
    arm = guarded("actor.heartbeat_timeout_s=0.3")
    arm.go()
    paused_ns = time.monotonic_ns()
    os.kill(arm.host.processes["control"], signal.SIGSTOP)
    assert_stopped_until_acknowledged(arm, paused_ns, reason="the control loop has not ticked for 0.3 s")


@pytest.mark.extended
def test_paused_guard_is_noticed_without_a_stop(guarded):
    arm = guarded("actor.heartbeat_timeout_s=0.3")
    arm.go()
    paused_ns = time.monotonic_ns()
    os.kill(arm.host.processes["guard"], signal.SIGSTOP)
    assert_stopped_until_acknowledged(arm, paused_ns, reason="the guard has sent no heartbeat for 0.3 s")


def test_stop_between_two_episodes_lets_the_arm_move_again_only_after_the_acknowledgement(guarded):
    arm = guarded()
    arm.host.start()
    pressed_ns = arm.press()
    assert arm.stopped_after_s(pressed_ns) < WITHIN_S
    arm.go(until_moving=False)
    assert PRESSED in arm.fault()
    time.sleep(0.2)
    assert arm.arm.motions() == []
    arm.wait_for_motion(arm.acknowledge())


@pytest.mark.extended
def test_stop_after_the_control_process_was_killed_between_two_episodes(guarded):
    arm = guarded()
    arm.host.start()
    os.kill(arm.host.processes["control"], signal.SIGKILL)
    time.sleep(0.1)
    place = arm.link.stop.press("test")
    wait_until(lambda: arm.link.stop.confirmed_ns("robot", after=place), timeout_s=WITHIN_S)
    assert arm.arm.stops()


def test_stop_while_the_processes_start(guarded):
    arm = guarded()
    arm.go(until_moving=False)
    wait_until(lambda: arm.host.processes, timeout_s=10.0)
    pressed_ns = arm.press()
    assert arm.stopped_after_s(pressed_ns) < WITHIN_S
    assert PRESSED in arm.fault()
    assert arm.arm.motions() == []
    arm.wait_for_motion(arm.acknowledge())


@pytest.mark.extended
def test_stop_that_fails_at_first_is_repeated(guarded):
    """Some arms refuse a connection for a while after the last one."""
    arm = guarded()
    arm.go()
    arm.block("observe")
    arm.arm.behave(accept=False)
    pressed_ns = arm.press()
    time.sleep(1.3)
    assert arm.arm.stops(after_ns=pressed_ns) == []
    arm.arm.behave(accept=True)
    assert arm.stopped_after_s(pressed_ns) < 10.0
    assert PRESSED in arm.fault()
    arm.unblock()
    arm.wait_for_motion(arm.acknowledge())


@pytest.mark.extended
def test_killed_control_process_of_an_arm_that_cannot_be_stopped_needs_a_person(guarded):
    arm = guarded()
    arm.go()
    arm.arm.behave(accept=False)
    os.kill(arm.host.processes["control"], signal.SIGKILL)
    assert "stop()" in arm.fault()
    assert arm.host.killed_process is None
    arm.arm.behave_well()
    arm.wait_for_motion(arm.acknowledge())


@pytest.mark.extended
@pytest.mark.parametrize(
    ("speed_margin", "reason"),
    [(0.5, "rad/s, but its limit is 1.75 rad/s"), (10.0, "rad, outside its limits -1.500 to 1.500 rad")],
)
def test_arm_that_runs_away_is_stopped(guarded, tmp_path, speed_margin, reason):
    runaway = tmp_path / "runaway"
    arm = guarded(
        f"robot.runaway_file={runaway}",
        "robot.runaway_speed=5.0",
        f"safety.guard_speed_margin={speed_margin}",
        "safety.jump_speed_margin=10.0",  # the filter would find the jumps, too
        driver="support.runaway_arm:RunawayArm",
    )
    arm.go()
    began_ns = time.monotonic_ns()
    runaway.touch()
    fault = arm.fault()
    assert "the guard measured 'joint" in fault
    assert reason in fault
    (stopped_ns, *_) = arm.arm.stops(after_ns=began_ns)
    os.kill(arm.host.processes["recorder"], signal.SIGKILL)  # must not turn the fault into a mere kill
    time.sleep(0.2)
    assert arm.host.killed_process is None
    assert arm.arm.motions(after_ns=stopped_ns) == []
    runaway.unlink()
    arm.wait_for_motion(arm.acknowledge())
