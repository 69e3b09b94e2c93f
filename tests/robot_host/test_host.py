"""The robot's processes, really killed, stopped and starved: the arm stops, the fault stays, nothing is left behind."""

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
from support.live_host import Live, eventually, order

PROMPT_S = 0.5  # within which an arm is stopped; seen: 0.02


def assert_stopped(one: Live, since_ns: int, *, within_s: float = PROMPT_S) -> float:
    """The last thing that the arm was told is to stop, and soon; returns after how many seconds it was told first."""
    notes = one.after(since_ns)
    assert notes[-1].what == "stop"
    first = next(i for i, note in enumerate(notes) if note.what == "stop")
    assert all(note.what == "stop" for note in notes[first:]), "it was commanded after it was stopped"
    stopped_s = (notes[first].time_ns - since_ns) / NS_PER_S
    assert stopped_s < within_s
    return stopped_s


def assert_kept(one: Live, *, at_least: int = 8) -> None:
    """The episode so far is there, aborted, and in the spool until somebody has it."""
    episode = one.episode
    assert episode is not None
    assert episode.outcome is Outcome.ABORTED
    assert len(episode) >= at_least
    assert np.all(np.diff(episode.column("time_ns")) > 0)
    again = Spool(one.spool).load(one.order.id)
    assert again is not None
    assert np.array_equal(again.column("executed"), episode.column("executed"))


def assert_refuses(one: Live, reason: str) -> None:
    """The next run says why in one line, and the arm is not touched."""
    before = len(one.journal())
    with pytest.raises(RobotFault) as refused:
        one.host.run(order())
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(one.journal()) == before


def test_inference_is_killed(live, record_property):
    one = live()
    one.go()
    killed_ns = one.harm("inference")
    one.ended()
    record_property("stopped_s", assert_stopped(one, killed_ns))
    assert_kept(one)
    assert one.host.fault == ("robot 'live_arm' was stopped: the inference process has died: killed by SIGKILL")
    assert_refuses(one, "the inference process has died: killed by SIGKILL")
    one.host.acknowledge()  # what died is started anew, and it goes on
    one.go()
    one.stop.set()
    assert one.ended() is not None
    assert one.host.fault is None


def test_a_crash_is_not_somebody_elses_doing(live):
    """Killed from outside is one thing; a driver that dies of itself is a fault that somebody must see to."""
    one = live()
    one.go()
    one.harm("inference", signal.SIGSEGV)
    one.ended()
    assert "killed by SIGSEGV" in one.host.fault
    assert one.host.killed is None
    one.host.acknowledge()
    one.go()
    one.harm("inference", signal.SIGKILL)
    one.ended()
    assert one.host.killed == "inference"


def test_inference_stands_still(live, record_property):
    """The plan is used up, then the arm holds, then it stops; and a process that hangs is not asked again."""
    one = live()
    one.go()
    frozen_ns = one.harm("inference", signal.SIGSTOP)
    one.ended()
    stopped_s = assert_stopped(one, frozen_ns, within_s=1.5)
    assert stopped_s > 0.3  # not before inference_timeout_s after its last question
    notes = one.after(frozen_ns)
    moves = [i for i, note in enumerate(notes) if note.moves]
    held = [note for note in notes[moves[-1] + 1 :] if note.what == "send"]
    assert len(moves) <= 16 + 4  # one plan, and easing into rest
    assert len(held) > 5
    record_property("stopped_s", stopped_s)
    assert_kept(one)
    assert_refuses(one, "inference has not answered for 0.5 s")
    one.host.acknowledge()
    one.go()
    one.stop.set()
    assert one.ended() is not None


@pytest.mark.parametrize(
    ("mood", "reason"),
    [
        ("policy.nan_after=4", "policy 'moody' gave 5 consecutive chunks that are not finite"),
        (
            "policy.raise_after=4",
            "the inference process has died: RuntimeError: the policy has had enough after 4",
        ),
        ("policy.hang_after=4", "inference has not answered for 0.5 s"),
    ],
)
def test_a_policy_fails(live, mood, reason):
    one = live(mood)
    began_ns = time.monotonic_ns()
    one.go()
    one.ended()
    assert_stopped(one, began_ns, within_s=10.0)
    sent = np.array([note.action for note in one.journal() if note.what == "send"])
    assert np.isfinite(sent).all()
    assert_kept(one)
    assert_refuses(one, reason)


def test_a_camera_freezes(live, record_property):
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
    assert_kept(one)
    assert_refuses(one, "the newest frame of 'front' is 0.4")
    front = one.episode.column("observation/front")  # each frame whole, and the last one again and again
    assert all(len(np.unique(frame)) == 1 for frame in front)
    shades = front[:, 0, 0, 0].astype(int)
    assert np.all(np.diff(shades) >= 0)
    assert len(set(shades[-10:])) == 1
    assert 4 <= len(set(shades)) <= 14  # 30 Hz for 0.4 s


def test_the_recorder_is_killed(live):
    one = live()
    one.go(until_moves=30)
    killed_ns = one.harm("recorder")
    one.ended()
    assert_stopped(one, killed_ns)
    assert_kept(one)
    assert_refuses(one, "the recorder process has died: killed by SIGKILL")


def test_the_recorder_cannot_keep_up(live):
    """An error, never a gap."""
    one = live("actor.recorder_buffer_s=0.4")
    one.go(until_moves=30)
    one.harm("recorder", signal.SIGSTOP)
    time.sleep(0.8)
    woken_ns = one.harm("recorder", signal.SIGCONT)
    one.ended()
    assert_stopped(one, woken_ns)
    assert_kept(one)
    assert np.all(np.diff(one.episode.column("time_ns")) < 0.1 * NS_PER_S)
    assert_refuses(one, "the recorder is more than")


def test_the_disk_is_full(live):
    one = live()
    one.go(until_moves=30)
    resource.prlimit(one.host.processes["recorder"], resource.RLIMIT_FSIZE, (4096, 4096))
    full_ns = time.monotonic_ns()
    one.ended()
    assert_stopped(one, full_ns, within_s=2.0)
    assert_kept(one, at_least=1)
    assert_refuses(one, f"the recorder process has died: cannot write to spool {one.spool}: file too large")


def test_control_is_killed(live, record_property):
    """Then nobody is left who drives: the supervisor tells the arm to stop."""
    one = live("robot.watchdog_s=0.2")
    one.go(until_moves=30)
    pid = one.host.processes["control"]
    killed_ns = one.harm("control")
    one.ended()
    record_property("stopped_s", assert_stopped(one, killed_ns))
    assert not [note for note in one.after(killed_ns) if note.pid == pid]
    assert_kept(one)
    assert_refuses(one, "the control process has died: killed by SIGKILL")
    one.host.acknowledge()
    one.go()
    one.stop.set()
    assert one.ended() is not None


def test_control_hangs_when_asked_to_stop(live):
    one = live()
    one.go(until_moves=30)
    one.harm("control", signal.SIGSTOP)
    asked_ns = time.monotonic_ns()
    one.stop.set()
    one.ended()
    assert_stopped(one, asked_ns, within_s=2.0)
    assert one.host.stopped
    assert_kept(one)
    assert "the control process has died: it did not stop when asked to" in one.host.fault


def test_control_hangs_and_nobody_asked_anything(live):
    one = live("actor.tick_timeout_s=1.0")
    one.go(until_moves=30)
    hung_ns = one.harm("control", signal.SIGSTOP)
    one.ended()
    assert_stopped(one, hung_ns, within_s=3.0)
    assert_kept(one)
    assert_refuses(one, "it had not ticked for 1 s, and was killed")


def test_everybody_hangs_when_asked_to_stop(live):
    one = live()
    one.go(until_moves=30)
    for role in ("inference", "recorder"):
        one.harm(role, signal.SIGSTOP)
    asked_s = time.monotonic()
    one.stop.set()
    one.ended()
    one.host.close()
    assert time.monotonic() - asked_s < 4.0  # and not a minute, which is what a reply may take
    assert_kept(one)


def test_a_plugin_breaks_in_the_control_process(live):
    one = live("task.type=support.live_host:BrokenTask")
    began_ns = time.monotonic_ns()
    one.go()
    one.ended()
    assert_stopped(one, began_ns, within_s=10.0)
    assert one.episode is not None
    assert (one.episode.outcome, len(one.episode)) == (Outcome.ABORTED, 9)
    assert_refuses(one, "the control process has died: KeyError: 'no such pose'")


def test_a_death_between_two_episodes_is_a_fault_too(live):
    one = live("task.max_steps=10")
    one.go()
    assert one.ended().outcome is Outcome.TIMEOUT
    one.harm("inference")
    assert_refuses(one, "robot 'live_arm' does not move: the inference process has died: killed by SIGKILL")
    assert_refuses(one, "does not move after a fault: the inference process has died")
    one.host.acknowledge()
    one.go()
    assert one.ended().outcome is Outcome.TIMEOUT


@pytest.mark.parametrize(
    ("mood", "reason"),
    [
        (
            "policy.fail_to_start=true",
            "the inference process has died: RuntimeError: the policy does not feel like",
        ),
        ("policy.exit_at_start=true", r"the inference process has died \(exit status 3\)"),
    ],
)
def test_a_child_that_dies_before_it_is_ready_leaves_nobody_waiting(live, processes, mood, reason):
    """Trap: the other one waited forever."""
    one = live(mood)
    began_s = time.monotonic()
    with pytest.raises(FailureError, match=reason):
        one.host.start()
    assert time.monotonic() - began_s < 10.0
    assert processes.alive() == {}
    assert not [note for note in one.journal() if note.what == "send"]


def test_asked_to_stop_while_the_processes_start(live, processes):
    one = live()
    one.stop.set()
    began_s = time.monotonic()
    assert one.host.run(order()) is None
    assert one.host.stopped
    assert time.monotonic() - began_s < 3.0
    assert processes.alive() == {}


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_go_on(live):
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

    one.host.load(weights(3, [0.2]))  # before there is anybody to load them
    assert version_and_reach() == ({3}, pytest.approx(0.2 * 0.02))
    for wrong, reason in (([0.3, 0.3], "do not fit"), ([np.nan], "not finite")):
        with pytest.raises(StoreError, match=reason):
            one.host.load(weights(4, wrong))
        assert version_and_reach() == ({3}, pytest.approx(0.2 * 0.02))
    one.host.load(weights(5, [0.4]))
    assert version_and_reach() == ({5}, pytest.approx(0.4 * 0.02))
    one.harm("inference")
    with pytest.raises(RobotFault):
        one.host.run(order())
    one.host.acknowledge()  # who is started anew is given them again
    assert version_and_reach() == ({5}, pytest.approx(0.4 * 0.02))


def test_practice_takes_newer_weights_up_between_chunks_and_an_examination_does_not(live):
    """The same host serves both, whichever comes first."""
    one = live("actor.swap_weights=chunk")
    store = DiskWeightStore(one.weights)

    def versions_of(purpose):
        one.stop.clear()
        one.go(purpose=purpose)
        store.publish({"actor": {"gain": np.array([0.1 + 0.001 * max(store.versions())], np.float32)}})
        newest = max(store.versions())
        time.sleep(1.2)  # it looks twice a second
        one.stop.set()
        return set(one.ended().column("policy_version").tolist()) - {0}, newest

    store.publish({"actor": {"gain": np.array([0.1], np.float32)}})
    one.host.load(store.load(1))
    seen, _ = versions_of(Purpose.EVAL)
    assert seen == {1}
    seen, newest = versions_of(Purpose.ONLINE)
    assert newest in seen and len(seen) > 1


def test_what_the_run_has_published_is_not_written_again(live):
    one = live("task.max_steps=10")
    store = DiskWeightStore(one.weights)
    store.publish({"actor": {"gain": np.array([0.2], np.float32)}})
    one.host.load(store.load(1))
    one.go()
    assert set(one.ended().column("policy_version")[1:]) == {1}
    assert not (Path(one.host._scratch.name) / "weights").exists()


def test_rtc_refuses_at_once_what_cannot_be_guided(live, processes):
    with pytest.raises(UsageError, match="policy 'moody' cannot be guided"):
        live("actor.type=rtc")
    assert processes.alive() == {}
    one = live("actor.type=rtc", "policy.guidable=true", "task.max_steps=20")
    one.go()
    assert one.ended().outcome is Outcome.TIMEOUT


def test_the_memory_has_no_name_and_control_no_torch(live):
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


def test_a_host_without_a_spool_keeps_nothing(live):
    one = live("task.max_steps=10", spool=False)
    one.go()
    assert len(one.ended()) == 10


def test_the_processes_are_gone_after_close(live, processes):
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
    eventually(lambda: one.journal()[-1].what == "stop", within_s=0.1)
