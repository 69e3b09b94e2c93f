"""Peers without the token, and clients that have it and misbehave, against the server on a robot's computer."""

from __future__ import annotations

import socket
import struct
import time

import numpy as np
import pytest

from dovetail.core.errors import RobotError
from dovetail.robots.drivers.remote.connection import Connection
from dovetail.robots.drivers.remote.robot_side import server as server_module
from dovetail.robots.drivers.remote.robot_side.handshake import greet_server, read_token
from dovetail.robots.drivers.remote.robot_side.wire import Link, Message, encode
from dovetail.robots.drivers.remote.settings import RemoteSpecConfig
from support.remote_arm import connected, emulated, is_at_rest, wait_until

FAR = np.array([1.0, 0, 0, 0, 0, 0, 0.5], np.float32)


def _dial(emulator) -> socket.socket:
    host, _, port = emulator.server.address.rpartition(":")
    return socket.create_connection((host, int(port)), 5.0)


def _is_closed(sock: socket.socket) -> bool:
    try:
        while sock.recv(4096):
            pass
    except OSError:
        pass
    return True


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 500,
        struct.pack("<4sII", b"DVRB", 0xFFFFFFFF, 0xFFFFFFFF),
        struct.pack("<4sII", b"DVRB", 100, 100) + b"x" * 100,
        b"".join(encode(Message("hello", {"protocol": 1}))),
        b"".join(
            encode(Message("hello", {"protocol": 99, "nonce": "0" * 64, "role": "robot", "proof": "0" * 64}))
        ),
        b"".join(encode(Message("hello", {"protocol": 1, "nonce": "0" * 64, "role": "robot", "proof": "0" * 64}))),
        b"".join(encode(Message("hello", {"protocol": 1, "nonce": "0" * 64, "role": "root", "proof": ["x"]}))),
        b"".join(encode(Message("stop", {"id": 1, "stops": 1, "session": ""}))),
        b"".join(encode(Message("send", {"id": 1}, {"action": FAR}))),
    ],
)
def test_stranger_reaches_neither_arm_nor_session(data: bytes) -> None:
    with emulated() as emulator, connected(emulator) as robot:
        robot.observe()
        with _dial(emulator) as sock:
            sock.sendall(data)
            assert _is_closed(sock)
        assert emulator.arm.commands == []
        assert emulator.arm.stops_ns == []
        assert len(emulator.server._sessions) == 1
        robot.observe()  # is still served


def test_silent_strangers_are_closed_and_never_keep_a_client_out(monkeypatch) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 1.0)
    with emulated() as emulator:
        silent = [_dial(emulator) for _ in range(3 * server_module.MAX_UNPROVEN)]
        assert wait_until(lambda: len(emulator.server._unproven) <= server_module.MAX_UNPROVEN)
        with connected(emulator) as robot:
            robot.observe()  # although all places are taken
        assert wait_until(lambda: not emulator.server._unproven)  # their time has passed
        assert all(_is_closed(sock) for sock in silent)
        for sock in silent:
            sock.close()


def test_proof_of_another_session_or_role_is_refused() -> None:
    """A recorded handshake cannot be played again: the server's nonce is new each time."""
    with emulated() as emulator:
        recorded: list[bytes] = []

        class Recorder(Link):
            def write(self, parts, deadline_s):
                recorded.append(b"".join(parts))
                super().write(parts, deadline_s)

        link = Recorder(_dial(emulator), is_server=False)
        greet_server(link, read_token(emulator.token_file), "robot", time.monotonic() + 5.0)
        link.close()
        with _dial(emulator) as sock:
            sock.sendall(recorded[0])
            assert b"wrong token" in sock.recv(4096) + sock.recv(4096)


def test_server_without_the_token_is_refused_by_the_client() -> None:
    with emulated() as real, emulated() as impostor:
        token = read_token(real.token_file)
        impostor.server._token = b"another token, as long as that"
        with pytest.raises(RobotError, match="wrong token"):
            Connection(impostor.server.address, token, role="robot", timeout_s=5.0)


def test_role_stop_cannot_observe_or_move() -> None:
    for kind, arrays in (("observe", {}), ("send", {"action": FAR})):
        with emulated() as emulator:
            connection = Connection(
                emulator.server.address, read_token(emulator.token_file), role="stop", timeout_s=5.0
            )
            with pytest.raises(RobotError, match="closed"):
                connection.request(
                    Message(kind, {"stops": 0, "deadline_ns": 1 << 61}, arrays), "sent", timeout_s=5.0
                )
            connection.close()
            assert emulator.arm.commands == []


@pytest.mark.parametrize(
    "spoiled",
    [
        Message("send", {"id": 5, "stops": 0, "deadline_ns": 1 << 61}),
        Message("send", {"id": 5, "stops": 0}, {"action": FAR}),
        Message("send", {"stops": 0, "deadline_ns": 1 << 61}, {"action": FAR}),
        Message("send", {"id": 5, "stops": -1, "deadline_ns": "x"}, {"action": FAR}),
        Message("send", {"id": 5, "stops": 0, "deadline_ns": 1 << 61}, {"action": np.zeros(1024, np.float32)}),
        Message("fly", {"id": 5}),
    ],
)
def test_malformed_command_of_the_controller_stops_the_arm(spoiled: Message) -> None:
    with emulated(watchdog_s=9.0) as emulator, connected(emulator) as robot:
        robot.observe()
        robot.send(FAR)
        assert robot._connection is not None
        robot._connection._link.send(spoiled, time.monotonic() + 5.0)
        assert wait_until(lambda: emulator.arm.stops_ns)
        assert is_at_rest(emulator)


def test_unsigned_frame_on_the_controllers_connection_stops_the_arm() -> None:
    with emulated(watchdog_s=9.0) as emulator, connected(emulator) as robot:
        robot.observe()
        robot.send(FAR)
        assert robot._connection is not None
        forged = Message("send", {"id": 3, "stops": 0, "deadline_ns": 1 << 61}, {"action": FAR})
        robot._connection._link.write([*encode(forged), b"\0" * 16], time.monotonic() + 5.0)
        assert wait_until(lambda: emulator.arm.stops_ns)
        assert len(emulator.arm.commands) == 1


def test_client_survives_a_server_that_sends_too_much() -> None:
    with emulated() as emulator, connected(emulator) as robot:
        robot.observe()
        emulator.misbehave("huge")
        with pytest.raises(RobotError, match="larger than allowed"):
            robot.observe()


@pytest.mark.parametrize("watchdog_s", ["soon", None, [1], float("inf"), -1.0, True])
def test_welcome_with_an_impossible_watchdog_is_a_robot_error(watchdog_s: object) -> None:
    with emulated() as emulator, connected(emulator) as robot:
        robot.observe()
        assert robot._connection is not None
        robot._connection.welcome.fields["watchdog_s"] = watchdog_s
        with pytest.raises(RobotError, match="no valid 'watchdog_s'"):
            robot.describe_link()


def test_keys_of_a_foreign_spec_are_quoted_without_control_characters() -> None:
    with pytest.raises(RobotError) as error:
        RemoteSpecConfig.from_robot({"\x1b[2J\n" * 1000: 1})
    assert str(error.value).isprintable() and len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("name", "part"),
    [("arm", {"kind": "x" * 1000}), ("arm", {"axes": 1 << 31}), ("\0", {})],
    ids=["long kind", "many axes", "name"],
)
def test_foreign_spec_is_refused_in_one_short_line(name: str, part: dict[str, object]) -> None:
    arm = {
        "name": "arm",
        "kind": "joint_target",
        "unit": "rad",
        "low": -1.0,
        "high": 1.0,
        "max_speed": 1.0,
        **part,
    }
    spec = {"name": name, "control_hz": 20, "observation": {"joint_pos": {"shape": [1]}}, "action": [arm]}
    with pytest.raises(RobotError, match="invalid spec") as error:
        RemoteSpecConfig.from_robot(spec)
    assert str(error.value).isprintable() and len(str(error.value)) < 1000
