"""A server of a Franka arm that sends without an end, or numbers and texts that must not reach anybody."""

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from dovetail.core.errors import RobotError
from dovetail.robots.drivers.franka.connection import Connection
from dovetail.robots.drivers.franka.driver import FrankaRobot
from dovetail.robots.drivers.franka.settings import FrankaConfig

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
STATE = {
    "pose": [0.4, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0],
    "vel": [0.0] * 6,
    "force": [0.0] * 3,
    "torque": [0.0] * 3,
    "q": [0.0] * 7,
    "dq": [0.0] * 7,
}


@contextmanager
def sending(first, again=b"", *, pause_s=0.0):
    """A server that answers `first`, and then `again` until the client leaves. Gives its address and the bytes it sent."""
    sent = [0]

    def serve():
        with suppress(OSError):
            asked, _ = server.accept()
            with asked:
                asked.recv(1 << 16)
                asked.sendall(first)
                while again:
                    asked.sendall(again)
                    sent[0] += len(again)
                    time.sleep(pause_s)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", sent
        thread.join(5.0)
        assert not thread.is_alive(), "the client has kept its connection"


@pytest.mark.parametrize(
    ("first", "again", "pause_s"),
    [
        (b"", 1000 * INTERIM, 0.0),  # interim answers
        (b"", INTERIM, 0.01),  # the same, slowly
        (CHUNKED + b"-1\r\n", bytes(1 << 16), 0.0),  # a chunk of a negative size
        (CHUNKED + b"2\r\n{}\r\n0\r\n", 1000 * b"x: y\r\n", 0.0),  # trailers
        (CHUNKED, b"1\r\n \r\n", 0.01),  # small chunks, slowly
    ],
)
def test_an_answer_without_an_end_is_an_error_in_time_and_is_not_kept(first, again, pause_s):
    with sending(first, again, pause_s=pause_s) as (address, sent):
        connection = Connection(address, timeout_s=0.5)
        began_s = time.monotonic()
        with pytest.raises(RobotError, match=r"answered more than \d+ bytes|did not answer within 0.5 s"):
            connection.post("/getstate")
        assert time.monotonic() - began_s < 3.0
    assert sent[0] < 32 << 20  # the buffers of both sockets, and little more


@pytest.mark.parametrize("number", [1e300, -1e39, 10**40])
def test_a_number_that_float32_cannot_hold_is_refused(number):
    body = json.dumps({**STATE, "q": [number, *STATE["q"][1:]]}).encode()
    with sending(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body) as (address, _):
        robot = FrankaRobot(FrankaConfig(address=address, gripper="none"))
        with pytest.raises(RobotError, match="sent 'q' that is not finite or too large"):
            robot.observe()
        robot.close()


def test_the_largest_number_is_accepted():
    largest = float(np.finfo(np.float32).max)
    body = json.dumps({**STATE, "force": [largest, 0.0, 0.0]}).encode()
    with sending(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body) as (address, _):
        robot = FrankaRobot(FrankaConfig(address=address, gripper="none"))
        assert robot.observe().values["force"][0] == np.float32(largest)
        robot.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/\x1b[2J 200 OK\r\n\r\n",
        HEAD + b'Content-Length: 7\r\n\r\n"\x1b]0;x"',
        HEAD + b'Content-Length: 25\r\n\r\n{"pose": "\\u001b[2J\\u0007"}',
    ],
)
def test_control_characters_of_a_server_are_in_no_error(answer):
    with sending(answer) as (address, _):
        robot = FrankaRobot(FrankaConfig(address=address, gripper="none"))
        with pytest.raises(RobotError) as error:
            robot.observe()
        assert str(error.value).isprintable()
        robot.close()
