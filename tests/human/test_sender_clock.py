"""The sender's clock: a delayed message is as old as its delay, whatever the offset and drift of the clocks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import UsageError
from dovetail.human.sender_clock import SenderClock

MS = 1_000_000
PERIOD_MS = 25.0
OFFSETS_MS = st.integers(0, 10**9)
SHORTEST_MS = 3.0


def stamps(delays_ms, *, offset_ms=0, drift=0.0):
    """True and estimated ages in ms of messages sent every 25 ms. Messages arrive in order, as in a TCP stream."""
    clock, arrived_ms, ages = SenderClock(), 0.0, []
    for number, delay_ms in enumerate(delays_ms):
        sent_ms = PERIOD_MS * number
        arrived_ms = max(arrived_ms, sent_ms + delay_ms)
        arrived_ns = round((10**6 + arrived_ms) * MS)
        time_ns = clock.to_host_ns(offset_ms + sent_ms * (1.0 + drift), arrived_ns=arrived_ns)
        ages.append((arrived_ms - sent_ms, (arrived_ns - time_ns) / MS))
    return ages


@given(st.lists(st.floats(SHORTEST_MS, 5000.0), max_size=60), OFFSETS_MS, st.floats(-100e-6, 100e-6))
def test_age_is_the_delay_beyond_the_shortest_one(delays_ms, offset_ms, drift):
    ages = stamps([SHORTEST_MS, *delays_ms], offset_ms=offset_ms, drift=drift)
    for number, (true_ms, estimated_ms) in enumerate(ages):
        elapsed_ms = PERIOD_MS * number + true_ms
        assert estimated_ms >= 0.0
        assert abs(estimated_ms - (true_ms - SHORTEST_MS)) <= 500e-6 * elapsed_ms + 0.01


def test_burst_after_a_stall_is_old_and_the_message_after_it_is_fresh():
    stall = [1000.0 - PERIOD_MS * number for number in range(40)]  # all arrive at the same moment
    ages = [estimated for _, estimated in stamps([5.0, *stall, 5.0])]
    assert ages[1] == pytest.approx(995.0, abs=1.0)
    assert ages[30] == pytest.approx(270.0, abs=1.0)
    assert ages[-1] == pytest.approx(0.0, abs=1.0)


def test_lasting_delay_stays_visible():
    """A link that becomes slow and stays slow does not look fresh after a minute."""
    ages = [estimated for _, estimated in stamps([5.0] * 40 + [800.0] * 2400)]
    assert min(ages[40:]) > 750.0


def test_drift_of_an_hour_does_not_age_messages():
    clock = SenderClock()
    for drift in (-150e-6, 150e-6):
        clock = SenderClock()
        for second in range(0, 3600, 5):
            arrived_ns = second * 1000 * MS
            time_ns = clock.to_host_ns(second * 1000.0 * (1.0 + drift), arrived_ns=arrived_ns)
            assert arrived_ns - time_ns < 5 * MS


@pytest.mark.parametrize("sent_ms", [math.nan, math.inf, -1.0, 1e30])
def test_invalid_time_is_refused_and_changes_nothing(sent_ms):
    clock = SenderClock()
    assert clock.to_host_ns(0.0, arrived_ns=7) == 7
    with pytest.raises(UsageError, match="milliseconds"):
        clock.to_host_ns(sent_ms, arrived_ns=8)
    assert clock.to_host_ns(0.0, arrived_ns=9) == 7
