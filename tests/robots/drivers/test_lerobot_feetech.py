"""Corrections of the Feetech package, on a port handler like its own."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from dovetail.robots.drivers.lerobot.dovetail_bridge.feetech import wait_for_bytes


class PortHandler:
    """Reads what is there at once, as the package does."""

    def __init__(self):
        self.num_reads = 0
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.ser = SimpleNamespace(fileno=lambda: self.read_end)

    def readPort(self, length):  # noqa: N802
        self.num_reads += 1
        try:
            return os.read(self.read_end, max(length, 0))
        except BlockingIOError:
            return b""


@pytest.fixture
def port(monkeypatch):
    made = PortHandler()
    monkeypatch.setattr(PortHandler, "__module__", "scservo_sdk.port_handler")
    yield made
    os.close(made.read_end)
    os.close(made.write_end)


def test_reading_sleeps_until_bytes_arrive(port):
    bus = SimpleNamespace(port_handler=port)
    assert wait_for_bytes(bus) and wait_for_bytes(bus)  # a second call changes nothing
    answer, began_s, used_s = b"", time.monotonic(), time.thread_time()
    threading.Timer(0.1, lambda: os.write(port.write_end, b"answer")).start()
    while len(answer) < 6 and time.monotonic() - began_s < 5.0:
        answer += port.readPort(6 - len(answer))
    assert answer == b"answer"
    assert port.num_reads < 60 and time.thread_time() - used_s < 0.05


def test_reading_nothing_does_not_wait(port):
    wait_for_bytes(SimpleNamespace(port_handler=port))
    began_s = time.monotonic()
    for _ in range(100):
        assert port.readPort(0) == b""
    assert time.monotonic() - began_s < 0.4


def test_another_bus_is_not_touched():
    other = SimpleNamespace(readPort=len)
    assert not wait_for_bytes(SimpleNamespace(port_handler=other))
    assert other.readPort is len
