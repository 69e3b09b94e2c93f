"""An arm on another machine has its own memory: the driver relays presses, acknowledgements and confirmations both ways."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.live.emergency import report_device_stop
from dovetail.live.run_stop import RunStop
from dovetail.live.stop_relay import Exchange, RelayedStop, StopRelay


class Remote:
    """An arm with its own memory, and the driver's relay to it."""

    def __init__(self, stop: RunStop, folder) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._run_stop, self._stops = folder, stop, []
        self.before_reply = lambda: None
        self.start()
        self.relay = StopRelay(stop, self._call)

    def start(self) -> None:
        self.stop = RunStop.create(self._folder, arm="far")
        self.stop.join("far")
        self.relayed = RelayedStop(self.stop)
        self._stops.append(self.stop)

    def _call(self, message: Exchange):
        reply = self.relayed.exchange(message)
        self.before_reply()
        return reply

    def step(self, number: int = 3) -> None:
        for _ in range(number):
            assert self.relay.step()

    def close(self) -> None:
        for stop in self._stops:
            stop.close()


@pytest.fixture
def stop(tmp_path):
    stop = RunStop.create(tmp_path)
    yield stop
    stop.close()


@pytest.fixture
def remote(stop, tmp_path):
    remote = Remote(stop, tmp_path / "far")
    yield remote
    remote.close()


def test_an_arm_knows_how_long_a_stop_could_not_reach_it(stop, tmp_path):
    """A new arm has no records of the driver: it must not move before the first complete exchange."""
    stop.press("console")
    remote = Remote(stop, tmp_path / "far")
    try:
        assert remote.relayed.silent_s == float("inf")
        remote.step(1)  # the driver learns that this list is new
        assert remote.relayed.silent_s == float("inf") and not remote.stop.emergency
        remote.step(1)
        assert remote.relayed.silent_s < 10.0 and remote.stop.emergency
        before_s = remote.relayed.silent_s
        time.sleep(0.02)
        assert remote.relayed.silent_s > before_s
    finally:
        remote.close()


def test_a_press_at_the_driver_reaches_the_arm_with_its_source(stop, remote):
    remote.step()
    assert stop.arms == ("far",)
    stop.press("console")
    remote.step(1)
    assert remote.stop.emergency and remote.stop.source == "console"


def test_a_press_at_the_arm_reaches_the_driver_once(stop, remote):
    remote.step()
    remote.stop.press("gamepad of far")
    remote.step(5)
    assert stop.emergency and stop.source == "gamepad of far"
    assert [record.source for record in stop.records() if record.source.startswith("gamepad")] == [
        "gamepad of far"
    ]


def test_a_press_of_a_device_of_the_arm_while_an_acknowledgement_is_under_way_stays_in_force(stop, remote):
    """The acknowledgement of an earlier stop has not reached the arm, so that the arm is still stopped."""
    remote.step()
    stop.press("console")
    remote.step()
    stop.acknowledge()  # the link is slow or cut
    report_device_stop(RunStop.from_descriptor(remote.stop.descriptor, arm="far"), "gamepad")
    remote.step()
    assert remote.stop.emergency and stop.emergency and stop.source == "gamepad of far"
    stop.acknowledge()
    remote.step()
    assert not remote.stop.emergency and not stop.emergency


def test_a_restarted_arm_is_silent_until_it_has_all_records(stop, remote):
    """It gets the records in several exchanges. After the first ones it may not know the newest press."""
    remote.step()
    stop.join("other")
    for _ in range(3):
        stop.press("dovetail stop", arm="other")
        stop.acknowledge(arm="other")
    stop.press("console")
    remote.start()
    remote.step(1)  # the driver learns that this list is new
    for _ in range(10):
        assert remote.relayed.silent_s == float("inf") or remote.stop.emergency
        remote.step(1)
    assert remote.relayed.silent_s < 10.0 and remote.stop.emergency


def test_an_acknowledgement_releases_both(stop, remote):
    remote.stop.press("gamepad of far")
    stop.press("console")
    remote.step()
    stop.acknowledge()
    remote.step()
    assert not stop.emergency and not remote.stop.emergency


def test_press_and_acknowledgement_before_the_same_step_release_the_arm(stop, remote):
    remote.step()
    stop.press("console")
    stop.acknowledge()
    remote.step()
    assert not remote.stop.emergency


def test_a_press_at_the_arm_that_the_acknowledgement_had_not_seen_stays_in_force(stop, remote):
    remote.step()
    stop.press("console")
    remote.step()
    remote.stop.press("pedal of far")  # not reported yet
    stop.acknowledge()
    remote.step()
    assert remote.stop.emergency and stop.emergency and stop.source == "pedal of far"
    stop.acknowledge()
    remote.step()
    assert not remote.stop.emergency and not stop.emergency


def test_a_confirmation_of_the_arm_is_one_for_the_run(stop, remote):
    remote.step()
    first = stop.press("console")
    assert stop.confirmed_ns("far", after=first) is None
    remote.step()
    remote.stop.confirm(remote.stop.position)
    second = stop.press("again")
    remote.step()
    assert stop.confirmed_ns("far", after=first) is not None
    assert stop.confirmed_ns("far", after=second) is None


def test_the_end_of_the_run_reaches_the_arm(stop, remote):
    remote.step()
    stop.request_end("SIGTERM")
    remote.step(1)
    assert remote.stop.ending and remote.stop.end_source == "SIGTERM"


def test_a_restarted_arm_gets_the_presses_in_force(stop, remote):
    remote.step()
    stop.press("old")
    stop.acknowledge()
    stop.press("console")
    remote.step()
    remote.start()
    assert not remote.stop.emergency
    remote.step(5)
    assert remote.stop.emergency and remote.stop.source == "console"
    stop.acknowledge()
    remote.step()
    assert not remote.stop.emergency


def test_an_arm_that_shares_the_memory_needs_no_relay(stop):
    assert not StopRelay(stop, lambda message: None).step()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["press", "far press", "acknowledge", "step", "race", "restart"]), max_size=25))
def test_no_press_is_lost_and_no_emergency_gets_stuck(tmp_path_factory, actions):
    """Whatever the order: an unacknowledged press reaches both sides, and acknowledging all of them releases both."""
    folder = tmp_path_factory.mktemp("relay")
    stop = RunStop.create(folder)
    remote = Remote(stop, folder / "far")
    try:
        last_press = last_acknowledgement = 0
        for number, action in enumerate(actions, start=1):
            if action == "press":
                stop.press("near")
                last_press = number
            elif action == "far press":
                remote.stop.press("far")
                last_press = number
            elif action == "acknowledge":
                stop.acknowledge()
                last_acknowledgement = number
            elif action == "race":  # a press at the arm between the exchange and the driver's next look
                remote.before_reply = lambda: remote.stop.press("far")
                remote.step(1)
                remote.before_reply = lambda: None
                last_press = number
            elif action == "restart":
                remote.step(6)  # presses that were not relayed end with the arm's process
                remote.start()
            else:
                remote.step(1)
        remote.step(8)
        assert stop.emergency == remote.stop.emergency
        if last_press > last_acknowledgement:
            assert stop.emergency
        stop.acknowledge()
        remote.step(8)
        assert not stop.emergency and not remote.stop.emergency
    finally:
        remote.close()
        stop.close()
