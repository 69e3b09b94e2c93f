"""Processes of the robot that are killed, stopped or cannot write: the arm stops, the fault remains, all processes end."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import FailureError, RobotFault, StoreError, UsageError
from dovetail.core.types import Outcome, Purpose, Source, WeightSnapshot
from dovetail.episodes.spool import Spool
from dovetail.weights.store import DiskWeightStore
from support.live_host import LiveHost, order
from support.waiting import wait_until

STOP_S = 0.5  # an arm must be stopped within this time; measured: 0.02


def assert_stopped(one: LiveHost, since_ns: int, *, within_s: float = STOP_S) -> float:
    """The arm was stopped in time and got no other command afterwards; returns the seconds until the stop."""
    notes = one.after(since_ns)
    assert notes[-1].what == "stop"
    first = next(i for i, note in enumerate(notes) if note.what == "stop")
    assert all(note.what == "stop" for note in notes[first:]), "a command after the stop"
    stopped_s = (notes[first].time_ns - since_ns) / NS_PER_S
    assert stopped_s < within_s
    return stopped_s


def assert_recorded(one: LiveHost, *, at_least: int = 8) -> None:
    """The steps until now are recorded as an aborted episode, also in the spool."""
    episode = one.episode
    assert episode is not None
    assert episode.outcome is Outcome.ABORTED
    assert len(episode) >= at_least
    assert np.all(np.diff(episode.column("time_ns")) > 0)
    again = Spool(one.spool).load(one.order.id)
    assert again is not None
    assert np.array_equal(again.column("executed"), episode.column("executed"))


def assert_refuses(one: LiveHost, reason: str) -> None:
    """The next episode is refused with the reason in one line, and the arm gets no command."""
    before = len(one.journal())
    with pytest.raises(RobotFault) as refused:
        one.host.run(order())
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(one.journal()) == before


def test_killed_inference_process_stops_the_arm(live, record_property):
    one = live()
    one.go()
    killed_ns = one.send_signal("inference")
    one.ended()
    record_property("stopped_s", assert_stopped(one, killed_ns))
    assert_recorded(one)
    assert one.host.fault == ("robot 'live_arm' was stopped: the inference process has died: killed by SIGKILL")
    assert_refuses(one, "the inference process has died: killed by SIGKILL")
    one.host.acknowledge()  # the process is restarted
    one.go()
    one.stop.set()
    assert one.ended() is not None
    assert one.host.fault is None


def test_crashed_process_does_not_count_as_killed(live):
    """A killed process is restarted automatically. A crash needs a person."""
    one = live()
    one.go()
    one.send_signal("inference", signal.SIGSEGV)
    one.ended()
    assert "killed by SIGSEGV" in one.host.fault
    assert one.host.killed_process is None
    one.host.acknowledge()
    one.go()
    one.send_signal("inference", signal.SIGKILL)
    one.ended()
    assert one.host.killed_process == "inference"


def test_stopped_inference_process_makes_the_arm_hold_then_stop(live, record_property):
    """The arm executes the rest of the plan, holds, then stops."""
    one = live()
    one.go()
    frozen_ns = one.send_signal("inference", signal.SIGSTOP)
    one.ended()
    stopped_s = assert_stopped(one, frozen_ns, within_s=1.5)
    assert stopped_s > 0.3  # inference_timeout_s after its last request
    notes = one.after(frozen_ns)
    moves = [i for i, note in enumerate(notes) if note.moves]
    held = [note for note in notes[moves[-1] + 1 :] if note.what == "send"]
    assert len(moves) <= 16 + 4  # one plan, and the deceleration
    assert len(held) > 5
    record_property("stopped_s", stopped_s)
    assert_recorded(one)
    assert_refuses(one, "inference has not answered for 0.5 s")
    one.host.acknowledge()
    one.go()
    one.stop.set()
    assert one.ended() is not None


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
    one = live(override)
    began_ns = time.monotonic_ns()
    one.go()
    one.ended()
    assert_stopped(one, began_ns, within_s=10.0)
    sent = np.array([note.action for note in one.journal() if note.what == "send"])
    assert np.isfinite(sent).all()
    assert_recorded(one)
    assert_refuses(one, reason)


def test_frozen_camera_makes_the_arm_hold_then_stop(live, record_property):
    one = live(
        "robot.image_size=[32, 24]",
        "robot.freeze_camera_after_s=0.4",
        "safety={camera_stale_after_s: 0.15, camera_stop_after_s: 0.4}",
    )
    one.go()
    one.ended()
    notes = one.journal()
    stopped = next(i for i, note in enumerate(notes) if note.what == "stop")
    held = [note for note in notes[:stopped] if not note.moves]
    assert len(held) > 5  # first it holds
    assert one.num_moves(stopped) == 0
    assert_recorded(one)
    assert_refuses(one, "the newest frame of 'front' is 0.4")
    front = one.episode.column("observation/front")  # each frame is complete, and the last one repeats
    assert all(len(np.unique(frame)) == 1 for frame in front)
    shades = front[:, 0, 0, 0].astype(int)
    assert np.all(np.diff(shades) >= 0)
    assert len(set(shades[-10:])) == 1
    assert 4 <= len(set(shades)) <= 14  # 30 Hz for 0.4 s


def test_killed_recorder_stops_the_arm(live):
    one = live()
    one.go(until_moves=30)
    killed_ns = one.send_signal("recorder")
    one.ended()
    assert_stopped(one, killed_ns)
    assert_recorded(one)
    assert_refuses(one, "the recorder process has died: killed by SIGKILL")


def test_slow_recorder_is_a_fault_without_a_gap_in_the_episode(live):
    one = live("actor.recorder_buffer_s=0.4")
    one.go(until_moves=30)
    one.send_signal("recorder", signal.SIGSTOP)
    time.sleep(0.8)
    resumed_ns = one.send_signal("recorder", signal.SIGCONT)
    one.ended()
    assert_stopped(one, resumed_ns)
    assert_recorded(one)
    assert np.all(np.diff(one.episode.column("time_ns")) < 0.1 * NS_PER_S)
    assert_refuses(one, "the recorder is more than")


def test_full_disk_stops_the_arm(live):
    one = live()
    one.go(until_moves=30)
    resource.prlimit(one.host.processes["recorder"], resource.RLIMIT_FSIZE, (4096, 4096))
    full_ns = time.monotonic_ns()
    one.ended()
    assert_stopped(one, full_ns, within_s=2.0)
    assert_recorded(one, at_least=1)
    assert_refuses(one, f"the recorder process has died: cannot write to spool {one.spool}: file too large")


def test_supervisor_stops_the_arm_after_control_was_killed(live, record_property):
    one = live("robot.watchdog_s=0.2")
    one.go(until_moves=30)
    pid = one.host.processes["control"]
    killed_ns = one.send_signal("control")
    one.ended()
    record_property("stopped_s", assert_stopped(one, killed_ns))
    assert not [note for note in one.after(killed_ns) if note.pid == pid]
    assert_recorded(one)
    assert_refuses(one, "the control process has died: killed by SIGKILL")
    one.host.acknowledge()
    one.go()
    one.stop.set()
    assert one.ended() is not None


def test_control_that_hangs_is_killed_after_a_stop_request(live):
    one = live()
    one.go(until_moves=30)
    one.send_signal("control", signal.SIGSTOP)
    asked_ns = time.monotonic_ns()
    one.stop.set()
    one.ended()
    assert_stopped(one, asked_ns, within_s=2.0)
    assert one.host.stopped
    assert_recorded(one)
    assert "the control process has died: it did not stop when asked to" in one.host.fault


def test_control_that_hangs_is_killed_after_tick_timeout(live):
    one = live("actor.tick_timeout_s=1.0")
    one.go(until_moves=30)
    hung_ns = one.send_signal("control", signal.SIGSTOP)
    one.ended()
    assert_stopped(one, hung_ns, within_s=3.0)
    assert_recorded(one)
    assert_refuses(one, "it had not ticked for 1 s, and was killed")


def test_stop_is_fast_while_other_processes_hang(live):
    one = live()
    one.go(until_moves=30)
    for role in ("inference", "recorder"):
        one.send_signal(role, signal.SIGSTOP)
    asked_s = time.monotonic()
    one.stop.set()
    one.ended()
    one.host.close()
    assert time.monotonic() - asked_s < 4.0  # without a stop request, a reply may take a minute
    assert_recorded(one)


def test_exception_of_a_plugin_in_control_stops_the_arm(live):
    one = live("task.type=support.live_host:BrokenTask")
    began_ns = time.monotonic_ns()
    one.go()
    one.ended()
    assert_stopped(one, began_ns, within_s=10.0)
    assert one.episode is not None
    assert (one.episode.outcome, len(one.episode)) == (Outcome.ABORTED, 9)
    assert_refuses(one, "the control process has died: KeyError: 'no such pose'")


def test_process_killed_between_two_episodes_is_a_fault(live):
    one = live("task.max_steps=10")
    one.go()
    assert one.ended().outcome is Outcome.TIMEOUT
    one.send_signal("inference")
    assert_refuses(one, "robot 'live_arm' cannot start: the inference process has died: killed by SIGKILL")
    assert_refuses(one, "does not move after a fault: the inference process has died")
    one.host.acknowledge()
    one.go()
    assert one.ended().outcome is Outcome.TIMEOUT


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
    one = live(override)
    began_s = time.monotonic()
    with pytest.raises(FailureError, match=reason):
        one.host.start()
    assert time.monotonic() - began_s < 10.0
    assert processes.alive() == {}
    assert not [note for note in one.journal() if note.what == "send"]


def test_stop_request_during_the_start_ends_all_processes(live, processes):
    one = live()
    one.stop.set()
    began_s = time.monotonic()
    assert one.host.run(order()) is None
    assert one.host.stopped
    assert time.monotonic() - began_s < 3.0
    assert processes.alive() == {}


def test_invalid_weights_are_refused_and_the_old_ones_stay_in_use(live):
    one = live("task.max_steps=10")

    def version_and_reach():
        one.go()
        episode = one.ended()
        acted = (episode.column("source") == Source.POLICY) & (episode.column("chunk_id") >= 0)
        return set(episode.column("policy_version")[acted]), float(episode.column("proposed")[acted][:, 0].max())

    def weights(version, gain):
        return WeightSnapshot(
            version=version, components={"actor": {"gain": np.array(gain, np.float32)}}, hashes={}
        )

    one.host.load(weights(3, [0.2]))  # before the processes start
    assert version_and_reach() == ({3}, pytest.approx(0.2 * 0.02))
    for wrong, reason in (([0.3, 0.3], "do not fit"), ([np.nan], "not finite")):
        with pytest.raises(StoreError, match=reason):
            one.host.load(weights(4, wrong))
        assert version_and_reach() == ({3}, pytest.approx(0.2 * 0.02))
    one.host.load(weights(5, [0.4]))
    assert version_and_reach() == ({5}, pytest.approx(0.4 * 0.02))
    one.send_signal("inference")
    with pytest.raises(RobotFault):
        one.host.run(order())
    one.host.acknowledge()  # the restarted process loads them again
    assert version_and_reach() == ({5}, pytest.approx(0.4 * 0.02))


def test_online_episodes_use_newer_weights_and_evaluations_do_not(live):
    one = live("actor.swap_weights=chunk")
    store = DiskWeightStore(one.weights)

    def versions_of(purpose):
        one.stop.clear()
        one.go(purpose=purpose)
        store.publish({"actor": {"gain": np.array([0.1 + 0.001 * max(store.versions())], np.float32)}})
        newest = max(store.versions())
        time.sleep(1.2)  # it polls twice per second
        one.stop.set()
        return set(one.ended().column("policy_version").tolist()) - {0}, newest

    store.publish({"actor": {"gain": np.array([0.1], np.float32)}})
    one.host.load(store.load(1))
    seen, _ = versions_of(Purpose.EVAL)
    assert seen == {1}
    seen, newest = versions_of(Purpose.ONLINE)
    assert newest in seen and len(seen) > 1


def test_published_weights_are_not_written_again(live):
    one = live("task.max_steps=10")
    store = DiskWeightStore(one.weights)
    store.publish({"actor": {"gain": np.array([0.2], np.float32)}})
    one.host.load(store.load(1))
    one.go()
    assert set(one.ended().column("policy_version")[1:]) == {1}
    assert not (Path(one.host._temp_folder.name) / "weights").exists()


def test_rtc_refuses_a_policy_without_guidance(live, processes):
    with pytest.raises(UsageError, match="policy 'faulty' cannot be guided"):
        live("actor.type=rtc")
    assert processes.alive() == {}
    one = live("actor.type=rtc", "policy.guidable=true", "task.max_steps=20")
    one.go()
    assert one.ended().outcome is Outcome.TIMEOUT


def test_shared_memory_is_anonymous_and_control_has_no_torch(live):
    one = live()
    one.go()
    for pid in one.host.processes.values():
        with open(f"/proc/{pid}/maps") as file:
            maps = file.read()
        assert "memfd:dovetail-board" in maps
        assert "/dev/shm" not in maps
        assert "libtorch" not in maps
    one.stop.set()
    one.ended()


def test_host_without_a_spool_returns_the_episode(live):
    one = live("task.max_steps=10", spool=False)
    one.go()
    assert len(one.ended()) == 10


def test_close_ends_all_processes(live, processes):
    one = live()
    one.go()
    pids = list(one.host.processes.values())
    one.stop.set()
    one.ended()
    began_s = time.monotonic()
    one.host.close()
    assert time.monotonic() - began_s < 1.5
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert processes.alive() == {}
    wait_until(lambda: one.journal()[-1].what == "stop", timeout_s=0.1)
