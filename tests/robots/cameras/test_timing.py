"""Capture times from the stamps of a device, against numbers worked out by hand."""

from dovetail.robots.cameras.timing import KernelTimes, StreamTimes

MS = 1_000_000


def test_fastest_frame_defines_the_offset():
    times = StreamTimes()
    assert times.capture_ns(0, arrived_ns=1000 * MS) == 1000 * MS
    assert times.capture_ns(33 * MS, arrived_ns=1028 * MS) == 1028 * MS, "5 ms faster than the first"
    late = times.capture_ns(66 * MS, arrived_ns=1161 * MS)
    assert abs(late - 1061 * MS) < 100_000, "captured at 1061 ms and delayed by 100 ms"


def test_offset_follows_a_slow_clock():
    """A device clock that loses 100 ppm: after an hour a new frame is still new."""
    times = StreamTimes()
    for second in range(3600):
        arrived_ns = second * 1000 * MS
        age_ns = arrived_ns - times.capture_ns(round(arrived_ns * (1 - 1e-4)), arrived_ns=arrived_ns)
        assert 0 <= age_ns < MS


def test_stamp_that_jumps_ahead_keeps_its_error():
    times = StreamTimes()
    times.capture_ns(0, arrived_ns=1000 * MS)
    assert times.capture_ns(10_033 * MS, arrived_ns=1033 * MS) - 1033 * MS > 9_000 * MS
    assert abs(times.capture_ns(66 * MS, arrived_ns=1066 * MS) - 1066 * MS) < MS, "the offset did not change"


def test_monotonic_stamps_of_the_kernel_are_used_as_they_are():
    times = KernelTimes()
    assert times.capture_ns(990 * MS, arrived_ns=1000 * MS) == 990 * MS
    assert times.capture_ns(1_023 * MS, arrived_ns=1500 * MS) == 1_023 * MS


def test_kernel_stamps_of_another_clock_get_an_offset():
    wall_ns = 1_700_000_000 * 1000 * MS
    times = KernelTimes()
    assert times.capture_ns(wall_ns, arrived_ns=1000 * MS) == 1000 * MS
    assert abs(times.capture_ns(wall_ns + 33 * MS, arrived_ns=1040 * MS) - 1033 * MS) < 100_000
