"""The emergency stop that all arms of a run share: many writers, kills, stale and crafted files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dovetail.live.emergency import report_device_stop
from dovetail.live.run_stop import STOP_JSON, Kind, NotRunning, RunStop

LEADER = """
import sys, time
from pathlib import Path
from dovetail.live.run_stop import RunStop
stop = RunStop.create(Path(sys.argv[1]))
print("created", flush=True)
time.sleep(60)
"""
PRESSER = """
import sys
from pathlib import Path
from dovetail.live.run_stop import RunStop
stop = RunStop.attach(Path(sys.argv[1]))
print("attached", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    stop.press(f"{sys.argv[3]}-{number}")
"""


@pytest.fixture
def stop(tmp_path):
    stop = RunStop.create(tmp_path)
    yield stop
    stop.close()


def process(code: str, *arguments: str) -> subprocess.Popen:
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child.stdout.readline()
    return child


def test_a_press_is_seen_by_every_process_until_it_is_acknowledged(stop, tmp_path):
    arm = RunStop.from_descriptor(stop.descriptor, arm="left")
    console = RunStop.attach(tmp_path)
    assert not arm.emergency and arm.source == "" and arm.pressed_ns == 0

    console.press("console")
    assert stop.emergency and arm.emergency and arm.source == "console" and arm.pressed_ns > 0

    stop.acknowledge()
    assert not stop.emergency and not arm.emergency and not console.emergency


def test_stop_published_in_two_folders_is_one_stop(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    stop = RunStop.create(folders[0])
    stop.publish(folders[1])
    with RunStop.attach(folders[1]) as other:
        other.press("dovetail stop")
    assert stop.source == "dovetail stop"
    stop.close()
    for folder in folders:
        with pytest.raises(NotRunning):
            RunStop.attach(folder)


def test_a_press_during_an_acknowledgement_stays_in_force(stop, tmp_path):
    stop.press("console")
    seen = stop.position
    RunStop.attach(tmp_path).press("gamepad")  # after the person saw the first press, before the acknowledgement
    stop.acknowledge(seen=seen)
    assert stop.emergency and stop.source == "gamepad"
    stop.acknowledge()
    assert not stop.emergency


def test_a_late_acknowledgement_of_an_older_press_releases_nothing_newer(stop):
    stop.press("console")
    seen = stop.position
    stop.acknowledge()
    stop.press("pedal")
    stop.acknowledge(seen=seen)  # from a slow process
    assert stop.emergency and stop.source == "pedal"


def test_one_arm_is_stopped_and_released_without_the_others(stop):
    left, right = (RunStop.from_descriptor(stop.descriptor, arm=name) for name in ("left", "right"))
    for name in ("left", "right"):
        stop.join(name)
    assert stop.arms == ("left", "right")

    stop.press("dovetail stop", arm="right")
    assert right.emergency and not left.emergency and stop.emergency

    stop.acknowledge(arm="left")
    assert right.emergency
    stop.acknowledge(arm="right")
    assert not right.emergency and not stop.emergency


def test_an_emergency_of_all_arms_lasts_until_each_is_released(stop):
    left, right = (RunStop.from_descriptor(stop.descriptor, arm=name) for name in ("left", "right"))
    for name in ("left", "right"):
        stop.join(name)
    stop.press("console")
    stop.acknowledge(arm="left")
    assert not left.emergency and right.emergency and stop.emergency
    stop.acknowledge(arm="right")
    assert not right.emergency and not stop.emergency


def test_an_emergency_of_all_arms_stops_an_arm_that_joins_later(stop):
    stop.join("left")
    stop.press("console")
    stop.acknowledge(arm="left")
    assert not stop.emergency  # of the arms that have joined
    right = RunStop.from_descriptor(stop.descriptor, arm="right")
    stop.join("right")
    assert right.emergency and stop.emergency and not stop.is_stopped("left")
    stop.acknowledge()
    assert not right.emergency and not stop.emergency


def test_a_press_for_one_arm_is_not_one_for_all(stop):
    arm = RunStop.from_descriptor(stop.descriptor, arm="left")
    stop.join("left")
    stop.press("dovetail stop", arm="left")
    assert arm.emergency and not stop.is_stopped("right")
    report_device_stop(arm, "pad")
    assert stop.is_stopped("left") and stop.is_stopped("right")
    num = len(stop.records())
    report_device_stop(arm, "pad")  # the same press, by the other process that reads the device
    assert len(stop.records()) == num


def test_a_device_of_a_stopped_arm_stops_an_arm_that_was_released(stop):
    right = RunStop.from_descriptor(stop.descriptor, arm="right")
    for name in ("left", "right"):
        stop.join(name)
    stop.press("console")
    stop.acknowledge(arm="left")
    report_device_stop(right, "gamepad")
    assert stop.is_stopped("left") and stop.source == "gamepad of right"


def test_a_press_of_a_device_during_an_acknowledgement_stays_in_force(stop):
    arm = RunStop.from_descriptor(stop.descriptor, arm="left")
    stop.press("console")
    seen = stop.position
    report_device_stop(arm, "gamepad")  # after the person saw the first press, before the acknowledgement
    stop.acknowledge(seen=seen)
    assert arm.emergency and arm.source == "gamepad of left"


def test_a_second_press_of_a_device_counts(stop):
    arm = RunStop.from_descriptor(stop.descriptor, arm="left")
    report_device_stop(arm, "gamepad")
    seen = stop.position
    time.sleep(0.12)
    report_device_stop(arm, "gamepad")
    stop.acknowledge(seen=seen)
    assert arm.emergency


def test_the_place_of_a_press_with_a_long_source_is_its_own(stop, tmp_path, monkeypatch):
    """Two processes write at once. A wrong place would leave the press in force after its acknowledgement."""
    source = "x" * 79 + " y"  # a space where it is cut
    read = RunStop._read

    def read_and_write(self):
        state = read(self)
        monkeypatch.setattr(RunStop, "_read", read)
        stop.join("left")  # by another process, before this one writes
        return state

    monkeypatch.setattr(RunStop, "_read", read_and_write)
    place = stop.press(source)
    [press] = [record for record in stop.records() if record.kind is Kind.PRESS]
    assert place == press.at


def test_requests_are_of_one_moment(stop):
    position, pressed_ns, end_ns = stop.requests
    assert (position, pressed_ns, end_ns) == (stop.position, 0, 0)
    stop.press("console")
    stop.request_end("Ctrl-C")
    assert stop.requests == (stop.position, stop.pressed_ns, stop.end_ns)


def test_an_end_is_requested_once_and_keeps_its_source(stop, tmp_path):
    arm = RunStop.attach(tmp_path, arm="left")
    assert not arm.ending
    stop.request_end("SIGHUP")
    stop.request_end("SIGTERM")
    assert arm.ending and arm.end_source == "SIGHUP" and arm.end_ns > 0
    assert not arm.emergency


def test_a_confirmation_counts_for_the_records_before_it(stop):
    arm = RunStop.from_descriptor(stop.descriptor, arm="left")
    first = stop.press("console")
    arm.confirm(arm.position)
    second = stop.press("keyboard")
    assert stop.confirmed_ns("left", after=first)
    assert stop.confirmed_ns("left", after=second) is None
    assert stop.confirmed_ns("right", after=first) is None
    arm.confirm(arm.position)
    assert stop.confirmed_ns("left", after=second)


def test_no_press_of_many_processes_is_lost(stop, tmp_path):
    number = 300
    children = [process(PRESSER, str(tmp_path), str(number), name) for name in ("a", "b", "c")]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    for _ in range(number):
        stop.press("own")
        stop.acknowledge()
    assert [child.wait(timeout=60) for child in children] == [0, 0, 0]
    sources = [record.source for record in stop.records() if record.kind is Kind.PRESS]
    for name in ("a", "b", "c"):
        assert [one for one in sources if one.startswith(name)] == [f"{name}-{n}" for n in range(number)]


def test_a_process_killed_while_pressing_leaves_complete_records(stop, tmp_path):
    child = process(PRESSER, str(tmp_path), "1000000", "killed")
    child.stdin.write("\n")
    child.stdin.flush()
    while not stop.emergency:
        pass
    child.kill()
    child.wait()
    stop.acknowledge()
    assert not stop.emergency
    stop.press("console")
    assert stop.source == "console"


def test_threads_that_press_and_acknowledge_never_lose_the_last_press(stop):
    def press() -> None:
        for _ in range(500):
            stop.press("thread")

    threads = [threading.Thread(target=press) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        stop.acknowledge()
    for thread in threads:
        thread.join()
    stop.press("last")
    assert stop.emergency and stop.source == "last"
    assert sum(record.kind is Kind.PRESS for record in stop.records()) == 1501


def test_an_arm_still_reads_and_writes_after_the_leader_was_killed(tmp_path):
    leader = process(LEADER, str(tmp_path))
    arm, other = RunStop.attach(tmp_path, arm="left"), RunStop.attach(tmp_path, arm="right")
    leader.kill()
    leader.wait()
    arm.press("gamepad of left")
    assert other.emergency and other.source == "gamepad of left"
    with RunStop.attach(tmp_path) as terminal:
        terminal.press("dovetail stop")  # through the memory of this process
    assert other.source == "dovetail stop"
    arm.close()
    other.close()
    with pytest.raises(NotRunning, match="no run is active"):
        RunStop.attach(tmp_path)


def test_a_paused_leader_does_not_delay_a_press(tmp_path):
    leader = process(LEADER, str(tmp_path))
    try:
        arm = RunStop.attach(tmp_path, arm="left")
        os.kill(leader.pid, signal.SIGSTOP)
        RunStop.attach(tmp_path).press("dovetail stop")
        assert arm.emergency
    finally:
        leader.kill()
        leader.wait()


def test_the_file_is_private_and_disappears_with_the_run(stop, tmp_path):
    file = tmp_path / STOP_JSON
    assert file.stat().st_mode & 0o777 == 0o600
    stop.close()
    assert not file.exists() and list(tmp_path.iterdir()) == []
    with pytest.raises(NotRunning):
        RunStop.attach(tmp_path)


@pytest.mark.parametrize("change", [{"boot_id": "other"}, {"token": "other"}, {"started": 1, "token": "other"}])
def test_a_stale_file_is_recognized(stop, tmp_path, change):
    file = tmp_path / STOP_JSON
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(NotRunning, match="no run is active"):
        RunStop.attach(tmp_path)


def test_a_crafted_file_never_makes_us_write_to_another_file(stop, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"data")
    with victim.open("r+b") as open_victim:
        file = tmp_path / STOP_JSON
        file.write_text(json.dumps({**json.loads(file.read_text()), "descriptor": open_victim.fileno()}))
        with pytest.raises(NotRunning):
            RunStop.attach(tmp_path)
    assert victim.read_bytes() == b"data"


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", "[" * 4000, '{"pid": "x"}'])
def test_a_damaged_file_is_one_clear_error(tmp_path, text):
    (tmp_path / STOP_JSON).write_text(text)
    with pytest.raises(NotRunning, match="no run is active"):
        RunStop.attach(tmp_path)


def test_a_link_in_place_of_the_file_is_not_followed(stop, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / STOP_JSON).symlink_to(tmp_path / STOP_JSON)
    with pytest.raises(NotRunning):
        RunStop.attach(tmp_path / "sub")


def test_long_and_multiline_sources_are_cut_to_one_line(stop):
    stop.press("ä" * 200 + "\nsecond line")
    assert set(stop.source) == {"ä"}
    stop.press("half \ud800")
    assert stop.source == "half ?"
    stop.press("two\nlines")
    assert stop.source == "two lines"


def test_a_closed_stop_keeps_its_last_state(tmp_path):
    stop = RunStop.create(Path(tmp_path))
    stop.press("console")
    assert stop.emergency
    stop.close()
    assert stop.emergency
