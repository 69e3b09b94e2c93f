"""Correct faults of the Feetech package that LeRobot uses (feetech-servo-sdk 1.0.0), on the objects of one bus.

It does not compare the length of an answer with what was asked: of a short answer it takes the checksum for data, and a
late answer to another question for a position. It never clears its input. And it asks for the bytes of an answer again and
again without a pause: other processes that compute then get the core in the middle of a measurement.
"""

from __future__ import annotations

import contextlib
import select
import time
from typing import Any

__all__ = ["check_lengths", "drain", "wait_for_bytes"]

_CORRUPT = -7  # COMM_RX_CORRUPT of the package
_SUCCESS = 0
_OVERHEAD = 6  # bytes of an answer that are no data
_QUIET_S, _LONGEST_DRAIN_S = 0.06, 0.3
_WAIT_S = 0.05  # then the package looks at its own timeout, of some 50 ms: a late answer has up to 0.1 s


def check_lengths(bus: Any) -> None:
    """Make answers of another length than asked for count as corrupt. Other buses than Feetech's are not touched."""
    handler = bus.packet_handler
    if not type(handler).__module__.startswith("scservo_sdk") or "rxPacket" in vars(handler):
        return
    receive, read_answer, read = handler.rxPacket, handler.readRx, handler.readTxRx
    last: dict[str, int] = {"size": 0}

    def receive_noting_size(port: Any) -> Any:
        packet, result = receive(port)
        last["size"] = len(packet)
        return packet, result

    def checked(answer: Any, length: int) -> Any:
        data, result, error = answer
        if result == _SUCCESS and (last["size"] != length + _OVERHEAD or len(data) != length):
            result = _CORRUPT
        return data, result, error

    handler.rxPacket = receive_noting_size
    handler.readRx = lambda port, id_, length: checked(read_answer(port, id_, length), length)
    handler.readTxRx = lambda port, id_, address, length: checked(read(port, id_, address, length), length)


def wait_for_bytes(bus: Any) -> bool:
    """Make a process sleep until bytes arrive. False for other buses than Feetech's, which are not touched."""
    port = bus.port_handler
    if not type(port).__module__.startswith("scservo_sdk"):
        return False
    if "readPort" in vars(port):
        return True
    read = port.readPort

    def read_after_wait(length: int) -> Any:
        if length > 0:
            select.select([port.ser.fileno()], [], [], _WAIT_S)
        return read(length)

    port.readPort = read_after_wait
    return True


def drain(bus: Any) -> None:
    """After a failed call: wait until the line is silent, and forget what came."""
    port = bus.port_handler
    with contextlib.suppress(Exception):  # it may be closed, or of another kind
        deadline_s = time.monotonic() + _LONGEST_DRAIN_S
        quiet_s = time.monotonic() + _QUIET_S
        while time.monotonic() < min(quiet_s, deadline_s):
            if port.ser.in_waiting:
                port.ser.reset_input_buffer()
                quiet_s = time.monotonic() + _QUIET_S
            time.sleep(0.005)
        port.is_using = False  # left over from a call that was interrupted
