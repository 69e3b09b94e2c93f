"""When the role of an arm counts as cut off from the run, and whether it holds then. Without Ray."""

from __future__ import annotations

import time

import pytest

from dovetail.live.run_stop import RunStop
from dovetail.live.stop_relay import Exchange, RelayedStop


def silence(monkeypatch, seconds: float) -> None:
    monkeypatch.setattr(RelayedStop, "silent_s", property(lambda relayed: seconds))


def test_real_arm_is_cut_off_before_the_first_exchange_and_not_after_it(make):
    role = make()
    assert role._is_cut_off() and role._should_stop()
    role.exchange_stop(Exchange(token="of an older list"))  # the driver does not know this list yet
    assert role._is_cut_off()
    role.exchange_stop(Exchange(token=role._stop.token))
    assert not role._is_cut_off() and not role._should_stop()


@pytest.mark.parametrize(("silent_s", "expected"), [(0.69, False), (0.71, True)])
def test_real_arm_is_cut_off_after_the_default_time_without_the_relay(make, monkeypatch, silent_s, expected):
    role = make()
    silence(monkeypatch, silent_s)
    assert role._is_cut_off() == role._should_stop() == expected


def test_time_without_the_relay_is_a_setting(make, monkeypatch):
    role = make(stop_link_timeout_s=3.0)
    silence(monkeypatch, 2.9)
    assert not role._should_stop()
    silence(monkeypatch, 3.1)
    assert role._should_stop()


@pytest.mark.parametrize(
    ("real_time", "rule", "holds"),
    [(True, "null", True), (True, "hold", True), (True, "finish", False), (False, "null", False)],
)
def test_arm_that_is_cut_off_holds_on_the_real_clock_unless_it_shall_finish(
    make, monkeypatch, real_time, rule, holds
):
    role = make(real_time=real_time, on_disconnect=rule)
    silence(monkeypatch, 1.0)
    role._called_s = time.monotonic() - 6.0  # also longer than other calls of the driver may take
    assert role._is_cut_off()
    assert role._should_stop() == holds


def test_simulated_arm_waits_for_other_calls_of_the_driver(make, monkeypatch):
    role = make(real_time=False, on_disconnect="hold")
    silence(monkeypatch, 1.0)
    assert not role._should_stop()
    role._called_s = time.monotonic() - 6.0
    assert role._should_stop()


def test_arm_that_shares_the_memory_of_stop_needs_no_relay(make, tmp_path):
    with RunStop.create(tmp_path) as stop:
        role = make(stop_token=stop.token)
        assert role.exchange_stop(Exchange(token=stop.token)) is None
        assert not role._is_cut_off() and not role._should_stop()
        role._called_s = time.monotonic() - 6.0  # the driver itself is gone
        assert role._should_stop()


def test_far_arm_of_the_bench_is_relayed_although_it_is_on_the_same_machine(make, tmp_path, monkeypatch):
    monkeypatch.setattr(RunStop, "attach", RunStop.attach)  # the far arm replaces it in this process
    with RunStop.create(tmp_path) as stop:
        role = make(
            stop_token=stop.token,
            robot='{"type": "dovetail.testing.far_arm:FarSocketArm", "address": "127.0.0.1:1"}',
        )
        assert role.exchange_stop(Exchange(token="")) is not None
        RunStop.attach(tmp_path).close()  # the console and `dovetail stop` find the run's
