"""The clock offset: within its bound for every network, and a fault for a clock that jumps."""

from __future__ import annotations

import random

import pytest

from dovetail.core.errors import RobotError
from dovetail.robots.drivers.remote.clock import ClockOffset

MS = 1_000_000


def _exchange(
    clock: ClockOffset, *, at_ns: int, offset_ns: int, there_ns: int, work_ns: int, back_ns: int
) -> None:
    received_ns = at_ns + there_ns + offset_ns
    sent_ns = received_ns + work_ns
    clock.update(
        asked_ns=at_ns, received_ns=received_ns, sent_ns=sent_ns, answered_ns=sent_ns + back_ns - offset_ns
    )


def test_bound_contains_the_true_offset_for_asymmetric_delays() -> None:
    rng, offset_ns = random.Random(0), 123_456_789_012
    for _ in range(50):
        clock = ClockOffset(max_error_s=1.0)
        for number in range(20):
            _exchange(
                clock,
                at_ns=number * 20 * MS,
                offset_ns=offset_ns,
                there_ns=rng.randrange(MS // 10, 9 * MS),
                work_ns=rng.randrange(5 * MS),
                back_ns=rng.randrange(MS // 10, 2 * MS),
            )
            assert abs(clock.offset_ns - offset_ns) <= clock.error_ns + 1
        assert clock.error_ns < 2 * MS  # the best requests count
        assert abs(clock.to_ours(offset_ns + 5) - 5) <= clock.error_ns + 1


def test_hand_computed_offset() -> None:
    clock = ClockOffset(max_error_s=1.0)
    clock.update(asked_ns=1000, received_ns=5500, sent_ns=5600, answered_ns=2100)  # 500 there, 100 work, 500 back
    assert (clock.offset_ns, clock.error_ns, clock.round_trip_ns) == (4000, 500, 1000)
    clock.check()


@pytest.mark.parametrize("jump_ns", [50 * MS, -50 * MS, 10_000 * MS])
def test_jump_is_a_fault(jump_ns: int) -> None:
    clock = ClockOffset(max_error_s=1.0)
    _exchange(clock, at_ns=0, offset_ns=0, there_ns=MS, work_ns=0, back_ns=MS)
    with pytest.raises(RobotError, match="clock jumped"):
        _exchange(clock, at_ns=20 * MS, offset_ns=jump_ns, there_ns=MS, work_ns=0, back_ns=MS)


def test_normal_drift_is_followed() -> None:
    clock = ClockOffset(max_error_s=0.001)
    for second in range(100):  # 100 ppm
        drifted_ns = 100_000 * second
        _exchange(
            clock, at_ns=second * 1000 * MS, offset_ns=drifted_ns, there_ns=50_000, work_ns=0, back_ns=50_000
        )
        clock.check()
        assert abs(clock.offset_ns - drifted_ns) <= clock.error_ns + 1


def test_clock_backward_or_too_fast_or_too_uncertain_is_a_fault() -> None:
    with pytest.raises(RobotError, match="ran backward"):
        ClockOffset(max_error_s=1.0).update(asked_ns=0, received_ns=10, sent_ns=5, answered_ns=20)
    with pytest.raises(RobotError, match="runs faster"):
        ClockOffset(max_error_s=1.0).update(asked_ns=0, received_ns=10, sent_ns=500, answered_ns=20)
    clock = ClockOffset(max_error_s=0.01)
    _exchange(clock, at_ns=0, offset_ns=0, there_ns=30 * MS, work_ns=0, back_ns=30 * MS)
    with pytest.raises(RobotError, match=r"only to ±30\.0 ms.*max_clock_error_s"):
        clock.check()
