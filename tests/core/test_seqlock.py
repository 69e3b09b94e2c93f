"""Seqlock: reads are complete or empty for any writer, and never block."""

import mmap
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.seqlock import Seqlock

SIZE = 4096
WRITER = """
    import mmap, os, signal, sys, time
    import numpy as np
    from dovetail.core.seqlock import Seqlock

    descriptor, size, manner = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    memory = mmap.mmap(descriptor, 0)
    words = np.frombuffer(memory, np.int64)
    fields = {"id": words[2:3].reshape(()), "before": words[3:3 + size], "after": words[3 + size:3 + 2 * size]}
    lock = Seqlock(words[:1].view(np.uint64), words[1:2].view(np.uint32)[:1], fields)
    rng = np.random.default_rng(0)

    class Hostile(dict):
        def __getitem__(self, name):
            if name == "after":  # half of it is written
                if manner == "pausing" and rng.random() < 0.02:
                    time.sleep(0.01)
                if manner == "dying" and self["id"] == 200:
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(name)

    number = 0
    while True:
        number += 1
        lock.write(Hostile(id=number, before=number, after=number))
        if rng.random() < 0.1:
            time.sleep(0.0001)
"""


def over(memory):
    words = np.frombuffer(memory, np.int64)
    fields = {
        "id": words[2:3].reshape(()),
        "before": words[3 : 3 + SIZE],
        "after": words[3 + SIZE : 3 + 2 * SIZE],
    }
    return Seqlock(words[:1].view(np.uint64), words[1:2].view(np.uint32)[:1], fields)


@pytest.fixture
def writing():
    """`writing(manner)` starts a writer in another process; the lock that they share, and that process."""
    descriptor = os.memfd_create("seqlock")
    os.ftruncate(descriptor, 8 * (3 + 2 * SIZE))
    memory, processes = mmap.mmap(descriptor, 0), []

    def start(manner):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(descriptor), str(SIZE), manner],
            pass_fds=[descriptor],
        )
        processes.append(process)
        return over(memory), process

    yield start
    for process in processes:
        process.kill()
        process.wait()
    os.close(descriptor)


def read_for(lock, seconds, *, newer_than=0):
    """Every value that could be caught, checked to be whole: their versions, their numbers, the longest read."""
    versions, numbers, longest_s = [newer_than], [0], 0.0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        found = lock.read(newer_than=versions[-1])
        longest_s = max(longest_s, time.monotonic() - began)
        if found is None:
            continue
        version, values = found
        assert version % 2 == 0
        number = int(values["id"])
        assert (values["before"] == number).all()
        assert (values["after"] == number).all()
        versions.append(version)
        numbers.append(number)
    return versions[1:], numbers[1:], longest_s


def wait_for(lock, version=2):
    until = time.monotonic() + 20.0
    while lock.version < version:
        assert time.monotonic() < until, "the writer has not come"
        time.sleep(0.005)


@pytest.mark.parametrize("manner", ["fast", "pausing"])
def test_reads_beside_a_busy_writer_are_complete_and_newer(writing, manner):
    lock, process = writing(manner)
    wait_for(lock)
    versions, numbers, longest_s = read_for(lock, 1.0)
    assert process.poll() is None
    assert len(versions) > 20
    assert (np.diff(versions) > 0).all()
    assert (np.diff(numbers) > 0).all()
    assert longest_s < 5.0  # it gives up: readers never block


def test_writer_killed_during_write_leaves_nothing_new(writing):
    lock, process = writing("dying")
    assert process.wait(timeout=20.0) == -signal.SIGKILL
    assert lock.version % 2 == 1
    died_at = lock.version
    for newer_than in (0, 2, died_at - 1):
        assert lock.read(newer_than=newer_than) is None
    version = lock.write({"id": 7, "before": 7, "after": 7})
    assert version > died_at
    assert version % 2 == 0
    found, values = lock.read(newer_than=died_at - 1)
    assert found == version
    assert (values["after"] == 7).all()


def test_killed_writer_can_be_replaced(writing):
    newest = 0
    for _ in range(3):
        lock, process = writing("fast")
        wait_for(lock, newest + 8)
        versions, _, _ = read_for(lock, 0.05, newer_than=newest)
        process.kill()
        process.wait()
        assert all(version > newest for version in versions)
        newest = lock.version
        assert lock.read(newer_than=newest) is None


# ---- in one process


def alone(fields):
    return Seqlock(np.zeros(1, np.uint64), np.zeros(1, np.uint32), fields)


dtypes = st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_])
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes))


@given(st.dictionaries(st.sampled_from("abcd"), arrays, min_size=1), st.integers(1, 4))
def test_read_returns_the_written_values(values, num_writes):
    lock = alone({name: np.zeros_like(value) for name, value in values.items()})
    assert lock.read() is None
    version = 0
    for _ in range(num_writes):
        assert lock.write(values) == version + 2
        version += 2
        found, got = lock.read(newer_than=version - 2)
        assert found == version == lock.version
        assert got.keys() == values.keys()
        for name, value in values.items():
            assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape)
            assert got[name].tobytes() == value.tobytes()
        assert lock.read(newer_than=version) is None
    assert lock.read()[0] == version  # for a new reader


def test_read_returns_copies():
    lock = alone({"x": np.zeros(3)})
    lock.write({"x": 1.0})
    _, first = lock.read()
    lock.write({"x": 2.0})
    assert first["x"].tolist() == [1.0] * 3


def test_data_with_wrong_checksum_is_rejected():
    """A processor that shows the counter before the data."""
    field = np.zeros(3)
    lock = alone({"x": field})
    lock.write({"x": 1.0})
    field[2] = 5.0
    assert lock.read() is None


def test_failed_write_leaves_nothing_to_read():
    lock = alone({"x": np.zeros(3), "y": np.zeros(2)})
    lock.write({"x": 1.0, "y": 1.0})
    with pytest.raises(ValueError, match="broadcast"):
        lock.write({"x": 2.0, "y": np.zeros(7)})
    assert lock.read() is None
    lock.write({"x": 3.0, "y": 3.0})
    assert lock.read()[1]["x"].tolist() == [3.0] * 3
