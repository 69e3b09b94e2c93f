import time

from dovetail.core.clock import RealClock, SimulatedClock


def test_simulated_time_advances_only_in_sleep():
    clock, durations = SimulatedClock(), []
    clock.on_advance(durations.append)
    clock.sleep_until(100)
    clock.sleep_until(250)
    clock.sleep_until(200)  # already past: nothing happens, time never runs backwards
    assert durations == [100, 150]
    assert clock.now_ns() == 250


def test_real_clock_never_wakes_early():
    clock = RealClock()
    for delay_ns in (0, 50_000, 2_000_000):
        deadline_ns = clock.now_ns() + delay_ns
        clock.sleep_until(deadline_ns)
        assert clock.now_ns() >= deadline_ns


def test_realtime_simulation_does_not_run_ahead():
    clock = SimulatedClock(realtime=True)
    started_s = time.monotonic()
    clock.sleep_until(30_000_000)
    assert time.monotonic() - started_s >= 0.0299  # the clock started a moment before


def test_lost_time_is_not_made_up():
    """Trap: an overrun tick that does not re-anchor makes the following ticks fire back to back."""
    clock = SimulatedClock(realtime=True)
    clock.on_advance(lambda duration_ns: time.sleep(0.05) if clock.now_ns() == 10_000_000 else None)
    clock.sleep_until(10_000_000)  # takes 50 ms instead of 10
    started_s = time.monotonic()
    clock.sleep_until(40_000_000)
    assert time.monotonic() - started_s >= 0.029
