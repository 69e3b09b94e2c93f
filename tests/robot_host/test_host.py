"""Processes of the robot that are killed, stopped or cannot write: the arm stops, the fault remains, all processes end."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time

import numpy as np
import pytest

from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import FailureError, RobotFault, StopRequested, StoreError, UsageError
from dovetail.core.types import Outcome, Purpose, Source, WeightSnapshot
from dovetail.episodes.spool import Spool
from dovetail.weights.store import DiskWeightStore
from support.live_host import LiveHost, order
from support.waiting import wait_until

STOP_S = 0.5  # an arm must be stopped within this time; measured: 0.02


def assert_stopped(arm: LiveHost, since_ns: int, *, within_s: float = STOP_S) -> float:
    """The arm was stopped in time and got no other command afterwards; returns the seconds until the stop."""
    notes = arm.after(since_ns)
    assert notes[-1].what == "stop"
    first = next(i for i, note in enumerate(notes) if note.what == "stop")
    assert all(note.what == "stop" for note in notes[first:]), "a command after the stop"
    stopped_s = (notes[first].time_ns - since_ns) / NS_PER_S
    assert stopped_s < within_s
    return stopped_s


def assert_recorded(arm: LiveHost, *, at_least: int = 8) -> None:
    """The steps until now are recorded as an aborted episode, also in the spool."""
    episode = arm.episode
    assert episode is not None
    assert episode.outcome is Outcome.ABORTED
    assert len(episode) >= at_least
    assert np.all(np.diff(episode.column("time_ns")) > 0)
    again = Spool(arm.spool).load(arm.order.id)
    assert again is not None
    assert np.array_equal(again.column("executed"), episode.column("executed"))


def assert_refuses(arm: LiveHost, reason: str) -> None:
    """The next episode is refused with the reason in one line, and the arm gets no command."""
    before = len(arm.journal())
    with pytest.raises(RobotFault) as refused:
        arm.host.run(order())
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(arm.journal()) == before


@pytest.mark.extended
def test_killed_inference_process_stops_the_arm(live, record_property):
    arm = live()
    arm.go()
    killed_ns = arm.send_signal("inference")
    arm.ended()
    record_property("stopped_s", assert_stopped(arm, killed_ns))
    assert_recorded(arm)
    assert arm.host.fault == ("robot 'live_arm' was stopped: the inference process has died: killed by SIGKILL")
    assert_refuses(arm, "the inference process has died: killed by SIGKILL")
    arm.host.acknowledge()  # the process is restarted
    arm.go()
    arm.stop.set()
    assert arm.ended() is not None
    assert arm.host.fault is None


@pytest.mark.extended
def test_crashed_process_does_not_count_as_killed(live):
    """A killed process is restarted automatically. A crash needs a person."""
    arm = live()
    arm.go()
    arm.send_signal("inference", signal.SIGSEGV)
    arm.ended()
    assert "killed by SIGSEGV" in arm.host.fault
    assert arm.host.killed_process is None
    arm.host.acknowledge()
    arm.go()
    arm.send_signal("inference", signal.SIGKILL)
    arm.ended()
    assert arm.host.killed_process == "inference"


@pytest.mark.extended
def test_stopped_inference_process_makes_the_arm_hold_then_stop(live, record_property):
    """The arm executes the rest of the plan, holds, then stops."""
    arm = live()
    arm.go()
    frozen_ns = arm.send_signal("inference", signal.SIGSTOP)
    arm.ended()
    stopped_s = assert_stopped(arm, frozen_ns, within_s=1.5)
    assert stopped_s > 0.3  # inference_timeout_s after its last request
    notes = arm.after(frozen_ns)
    moves = [i for i, note in enumerate(notes) if note.moves]
    held = [note for note in notes[moves[-1] + 1 :] if note.what == "send"]
    assert len(moves) <= 16 + 4  # one plan, and the deceleration
    assert len(held) > 5
    record_property("stopped_s", stopped_s)
    assert_recorded(arm)
    assert_refuses(arm, "inference has not answered for 0.5 s")
    arm.host.acknowledge()
    arm.go()
    arm.stop.set()
    assert arm.ended() is not None


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("policy.nan_after=4", "policy 'faulty' gave 5 consecutive chunks that are not finite"),
        (
            "policy.raise_after=4",
            "the inference process has died: RuntimeError: the policy failed on purpose after 4",
        ),
        ("policy.hang_after=4", "inference has not answered for 0.5 s"),
    ],
)
def test_failing_policy_stops_the_arm(live, override, reason):
    arm = live(override)
    began_ns = time.monotonic_ns()
    arm.go()
    arm.ended()
    assert_stopped(arm, began_ns, within_s=10.0)
    sent = np.array([note.action for note in arm.journal() if note.what == "send"])
    assert np.isfinite(sent).all()
    assert_recorded(arm)
    assert_refuses(arm, reason)


@pytest.mark.extended
def test_frozen_camera_makes_the_arm_hold_then_stop(live, record_property):
    arm = live(
        "robot.image_size=[32, 24]",
        "robot.freeze_camera_after_s=0.4",
        "safety={camera_stale_after_s: 0.15, camera_stop_after_s: 0.4}",
    )
    arm.go()
    arm.ended()
    notes = arm.journal()
    stopped = next(i for i, note in enumerate(notes) if note.what == "stop")
    held = [note for note in notes[:stopped] if not note.moves]
    assert len(held) > 5  # first it holds
    assert arm.num_moves(stopped) == 0
    assert_recorded(arm)
    assert_refuses(arm, "the newest frame of 'front' is 0.4")
    front = arm.episode.column("observation/front")  # each frame is complete, and the last one repeats
    assert all(len(np.unique(frame)) == 1 for frame in front)
    shades = front[:, 0, 0, 0].astype(int)
    assert np.all(np.diff(shades) >= 0)
    assert len(set(shades[-10:])) == 1
    assert 4 <= len(set(shades)) <= 14  # 30 Hz for 0.4 s


@pytest.mark.extended
def test_killed_recorder_stops_the_arm(live):
    arm = live()
    arm.go(until_moves=30)
    killed_ns = arm.send_signal("recorder")
    arm.ended()
    assert_stopped(arm, killed_ns)
    assert_recorded(arm)
    assert_refuses(arm, "the recorder process has died: killed by SIGKILL")


@pytest.mark.extended
def test_slow_recorder_is_a_fault_without_a_gap_in_the_episode(live):
    arm = live("actor.recorder_buffer_s=0.4")
    arm.go(until_moves=30)
    arm.send_signal("recorder", signal.SIGSTOP)
    time.sleep(0.8)
    resumed_ns = arm.send_signal("recorder", signal.SIGCONT)
    arm.ended()
    assert_stopped(arm, resumed_ns)
    assert_recorded(arm)
    assert np.all(np.diff(arm.episode.column("time_ns")) < 0.1 * NS_PER_S)
    assert_refuses(arm, "the recorder is more than")


def test_full_disk_stops_the_arm(live):
    arm = live()
    arm.go(until_moves=30)
    resource.prlimit(arm.host.processes["recorder"], resource.RLIMIT_FSIZE, (4096, 4096))
    full_ns = time.monotonic_ns()
    arm.ended()
    assert_stopped(arm, full_ns, within_s=2.0)
    assert_recorded(arm, at_least=1)
    assert_refuses(arm, f"the recorder process has died: cannot write to spool {arm.spool}: file too large")


@pytest.mark.extended
def test_supervisor_stops_the_arm_after_control_was_killed(live, record_property):
    arm = live("robot.watchdog_s=0.2")
    arm.go(until_moves=30)
    pid = arm.host.processes["control"]
    killed_ns = arm.send_signal("control")
    arm.ended()
    record_property("stopped_s", assert_stopped(arm, killed_ns))
    assert not [note for note in arm.after(killed_ns) if note.pid == pid]
    assert_recorded(arm)
    assert_refuses(arm, "the control process has died: killed by SIGKILL")
    arm.host.acknowledge()
    arm.go()
    arm.stop.set()
    assert arm.ended() is not None


def test_control_that_hangs_is_ended_after_a_stop_request(live):
    arm = live()
    arm.go(until_moves=30)
    arm.send_signal("control", signal.SIGSTOP)
    asked_ns = time.monotonic_ns()
    arm.stop.set()
    arm.ended()
    assert_stopped(arm, asked_ns, within_s=1.0)
    assert arm.host.stopped
    assert_recorded(arm)
    assert arm.host.fault is None  # the end of a run is not a fault


def test_control_that_hangs_is_killed_after_tick_timeout(live):
    arm = live("actor.tick_timeout_s=1.0", "actor.heartbeat_timeout_s=10.0")  # earlier than the guard
    arm.go(until_moves=30)
    hung_ns = arm.send_signal("control", signal.SIGSTOP)
    arm.ended()
    assert_stopped(arm, hung_ns, within_s=3.0)
    assert_recorded(arm)
    assert_refuses(arm, "it had not ticked for 1 s, and was killed")


def test_stop_is_fast_while_other_processes_hang(live):
    arm = live()
    arm.go(until_moves=30)
    for role in ("inference", "recorder"):
        arm.send_signal(role, signal.SIGSTOP)
    asked_s = time.monotonic()
    arm.stop.set()
    arm.ended()
    arm.host.close()
    assert time.monotonic() - asked_s < 4.0  # without a stop request, a reply may take a minute
    assert_recorded(arm)


def test_exception_of_a_plugin_in_control_stops_the_arm(live):
    arm = live("task.type=support.live_host:BrokenTask")
    began_ns = time.monotonic_ns()
    arm.go()
    arm.ended()
    assert_stopped(arm, began_ns, within_s=10.0)
    assert arm.episode is not None
    assert (arm.episode.outcome, len(arm.episode)) == (Outcome.ABORTED, 9)
    assert_refuses(arm, "the control process has died: KeyError: 'no such pose'")


def test_process_killed_between_two_episodes_is_a_fault(live):
    arm = live("task.max_steps=10")
    arm.go()
    assert arm.ended().outcome is Outcome.TIMEOUT
    arm.send_signal("inference")
    assert_refuses(arm, "robot 'live_arm' cannot start: the inference process has died: killed by SIGKILL")
    assert_refuses(arm, "does not move after a fault: the inference process has died")
    arm.host.acknowledge()
    arm.go()
    assert arm.ended().outcome is Outcome.TIMEOUT


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (
            "policy.fail_to_start=true",
            "the inference process has died: RuntimeError: the policy failed on purpose",
        ),
        ("policy.exit_at_start=true", r"the inference process has died \(exit status 3\)"),
    ],
)
def test_process_that_ends_before_it_is_ready_fails_the_start(live, processes, override, reason):
    arm = live(override)
    began_s = time.monotonic()
    with pytest.raises(FailureError, match=reason):
        arm.host.start()
    assert time.monotonic() - began_s < 10.0
    assert processes.alive() == {}
    assert not [note for note in arm.journal() if note.what == "send"]


def test_run_that_ends_during_the_start_ends_all_processes(live, processes):
    arm = live()
    arm.stop.set()
    began_s = time.monotonic()
    assert arm.host.run(order()) is None
    assert arm.host.stopped
    arm.host.close()
    assert time.monotonic() - began_s < 3.0
    assert processes.alive() == {}


def test_arm_that_is_cut_off_for_a_moment_before_an_episode_has_no_fault(live):
    arm = live()
    arm.host.start()
    arm.send_signal("inference", signal.SIGSTOP)
    asking = threading.Timer(0.2, arm.stop.set)
    asking.start()
    assert arm.host.run(order()) is None  # inference has not replied
    assert arm.host.stopped and arm.host.fault is None
    asking.join()
    arm.stop.clear()
    arm.go()
    assert arm.error is None
    arm.stop.set()
    assert arm.ended() is not None


def test_episode_stays_stopped_if_the_link_is_back_before_it_has_ended(live):
    arm = live()
    arm.go(until_moves=30)
    arm.send_signal("control", signal.SIGSTOP)
    asked = iter([True])
    arm.host._should_stop = lambda: next(asked, False)
    arm.ended()
    assert arm.host.stopped
    assert arm.host.fault is None


def test_weights_that_are_interrupted_by_a_cut_link_are_loaded_later(live):
    arm = live()
    snapshot = WeightSnapshot(version=3, components={"actor": {"gain": np.array([0.2], np.float32)}}, hashes={})
    arm.host.start()
    arm.send_signal("inference", signal.SIGSTOP)
    arm.stop.set()
    with pytest.raises(StopRequested):
        arm.host.load(snapshot)
    arm.stop.clear()
    arm.send_signal("inference", signal.SIGCONT)
    arm.host.load(snapshot)
    assert arm.host.fault is None


def test_invalid_weights_are_refused_and_the_old_ones_stay_in_use(live):
    arm = live("task.max_steps=10")

    def version_and_reach():
        arm.go()
        episode = arm.ended()
        acted = (episode.column("source") == Source.POLICY) & (episode.column("chunk_id") >= 0)
        return set(episode.column("policy_version")[acted]), float(episode.column("proposed")[acted][:, 0].max())

    def weights(version, gain):
        return WeightSnapshot(
            version=version, components={"actor": {"gain": np.array(gain, np.float32)}}, hashes={}
        )

    arm.host.load(weights(3, [0.2]))  # before the processes start
    assert version_and_reach() == ({3}, pytest.approx(0.2 * 0.02))
    for wrong, reason in (([0.3, 0.3], "do not fit"), ([np.nan], "not finite")):
        with pytest.raises(StoreError, match=reason):
            arm.host.load(weights(4, wrong))
        assert version_and_reach() == ({3}, pytest.approx(0.2 * 0.02))
    arm.host.load(weights(5, [0.4]))
    assert version_and_reach() == ({5}, pytest.approx(0.4 * 0.02))
    arm.send_signal("inference")
    with pytest.raises(RobotFault):
        arm.host.run(order())
    arm.host.acknowledge()  # the restarted process loads them again
    assert version_and_reach() == ({5}, pytest.approx(0.4 * 0.02))


@pytest.mark.extended
def test_online_episodes_use_newer_weights_and_evaluations_do_not(live):
    arm = live("actor.swap_weights=chunk")
    store = DiskWeightStore(arm.weights)

    def versions_of(purpose):
        arm.stop.clear()
        arm.go(purpose=purpose)
        store.publish({"actor": {"gain": np.array([0.1 + 0.001 * max(store.versions())], np.float32)}})
        newest = max(store.versions())
        time.sleep(1.2)  # it polls twice per second
        arm.stop.set()
        return set(arm.ended().column("policy_version").tolist()) - {0}, newest

    store.publish({"actor": {"gain": np.array([0.1], np.float32)}})
    arm.host.load(store.load(1))
    seen, _ = versions_of(Purpose.EVAL)
    assert seen == {1}
    seen, newest = versions_of(Purpose.ONLINE)
    assert newest in seen and len(seen) > 1


def test_published_weights_are_not_written_again(live):
    arm = live("task.max_steps=10")
    store = DiskWeightStore(arm.weights)
    store.publish({"actor": {"gain": np.array([0.2], np.float32)}})
    arm.host.load(store.load(1))
    arm.go()
    assert set(arm.ended().column("policy_version")[1:]) == {1}
    assert not (arm.host._temp_folder.path / "weights").exists()


def test_rtc_refuses_a_policy_without_guidance(live, processes):
    with pytest.raises(UsageError, match="policy 'faulty' cannot be guided"):
        live("actor.type=rtc")
    assert processes.alive() == {}
    arm = live("actor.type=rtc", "policy.guidable=true", "task.max_steps=20")
    arm.go()
    assert arm.ended().outcome is Outcome.TIMEOUT


def test_shared_memory_is_anonymous_and_control_has_no_torch(live):
    arm = live()
    arm.go()
    for pid in arm.host.processes.values():
        with open(f"/proc/{pid}/maps") as file:
            maps = file.read()
        assert "memfd:dovetail-board" in maps
        assert "/dev/shm" not in maps
        assert "libtorch" not in maps
    arm.stop.set()
    arm.ended()


def test_host_without_a_spool_returns_the_episode(live):
    arm = live("task.max_steps=10", spool=False)
    arm.go()
    assert len(arm.ended()) == 10


def test_close_ends_all_processes(live, processes):
    arm = live()
    arm.go()
    pids = list(arm.host.processes.values())
    arm.stop.set()
    arm.ended()
    began_s = time.monotonic()
    arm.host.close()
    assert time.monotonic() - began_s < 1.5
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert processes.alive() == {}
    wait_until(lambda: arm.journal()[-1].what == "stop", timeout_s=0.1)
