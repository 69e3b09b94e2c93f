"""Messages over the network: openpi's policy protocol, the protocol of a robot's computer, and driving in the console.

The messages of our own policy server are fuzzed over real sockets (`support.fuzz_policy_wire`).
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from pathlib import Path
from typing import Any, ClassVar

import msgpack
import numpy as np
from hypothesis import strategies as st

from dovetail.console.drive_control import DriveControl, InvalidMessage
from dovetail.core.errors import RobotError, UsageError
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.types import ActContext
from dovetail.human.mailbox import Mailbox, MailboxReader, MailboxWriter
from dovetail.policies.openpi.context import context_from_wire, context_to_wire
from dovetail.policies.openpi.keys import KeyMap, own_keys
from dovetail.policies.openpi.packing import pack, unpack
from dovetail.policies.openpi.policy import OpenpiConfig, OpenpiPolicy, _server_s
from dovetail.robots.drivers.remote.robot_side import wire
from dovetail.robots.drivers.remote.settings import RemoteSpecConfig
from support.fuzz.formats import Format, in_turn
from support.fuzz.mutate import mutate_bytes, mutate_json
from support.openpi_servers import ROBOT

__all__ = ["WIRE_FORMATS"]


class OpenpiMessages(Format):
    """An observation of a client, and the answer of a server."""

    name = "openpi messages"
    _SPEC = PolicySpec(
        name="fuzzed",
        observation={"joint_pos": ArraySpec(shape=(3,)), "front": ArraySpec(shape=(8, 8, 3), dtype="uint8")},
        action=ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
        action_kind="joint_target",
        horizon=4,
    )

    _client = OpenpiPolicy(
        OpenpiConfig(address="127.0.0.1:1", keys=KeyMap(state={"state": ("joint_pos",)}), horizon=4), robot=ROBOT
    )

    def make(self, folder: Path) -> None:
        observation = {"joint_pos": np.arange(3, dtype=np.float32), "front": np.zeros((8, 8, 3), np.uint8)}
        context = ActContext(deterministic=True, prefix=np.zeros((1, 4, 2), np.float32), delay=1, horizon=4)
        observation |= context_to_wire(context, row=0)
        timing = {"server_timing": {"infer_ms": np.float32(1.5)}, "policy_version": 3}
        answer = {"actions": np.zeros((4, 2), np.float64), **timing}
        (folder / "observation").write_bytes(pack(observation))
        (folder / "answer").write_bytes(pack(answer))

    def damage(self, folder: Path, data: st.DataObject) -> None:
        path = folder / data.draw(st.sampled_from(["observation", "answer"]))
        before = path.read_bytes()
        if data.draw(st.booleans()):
            path.write_bytes(mutate_bytes(data, before))
            return
        tree = mutate_json(data, _as_json(msgpack.unpackb(before)))
        try:
            path.write_bytes(msgpack.packb(_as_wire(tree), unicode_errors="surrogatepass"))
        except (ValueError, OverflowError):  # nested too deeply for the encoder, or a larger number than it knows
            path.write_bytes(b"\x91" * 600 + before)

    def read(self, folder: Path) -> None:
        for name in ("observation", "answer"):
            message = unpack((folder / name).read_bytes())
            if name == "answer":
                actions = self._client._read_actions(message.get("actions"))
                low, high = ROBOT.action.bounds
                assert actions.shape == (4, 2) and ((low <= actions) & (actions <= high)).all()
                assert 0.0 <= _server_s(message) < math.inf
            else:
                inputs = own_keys(self._SPEC).from_wire(message, self._SPEC)
                for key, spec in self._SPEC.observation.items():
                    assert inputs[key].shape == spec.shape and inputs[key].dtype == spec.dtype
                    assert np.isfinite(inputs[key]).all()
                context = context_from_wire(message, self._SPEC)
                assert context is None or context.prefix is None or context.prefix.shape[::2] == (1, 2)


def _as_json(value: Any) -> Any:
    """A decoded message with texts in place of bytes."""
    if isinstance(value, dict):
        return {_as_json(key): _as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _as_wire(value: Any, key: str = "") -> Any:
    """The opposite: the data of arrays are bytes again."""
    if isinstance(value, dict):
        return {name: _as_wire(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_as_wire(one) for one in value]
    return value.encode("latin-1", errors="replace") if key == "data" and isinstance(value, str) else value


class RobotMessages(Format):
    """An observation and the spec that a robot's computer sends. Checksums are off: damage reaches the code behind them."""

    name = "robot messages"
    _SPEC: ClassVar = {
        "name": "arm",
        "control_hz": 10,
        "observation": {"joint_pos": {"shape": [2]}, "front": {"shape": [8, 8, 3], "dtype": "uint8"}},
        "action": [{"name": "arm", "kind": "joint_target", "unit": "rad", "axes": ["a", "b"], "low": -1.0,
                    "high": [1.0, 2.0], "max_speed": 1.0, "measured": "joint_pos"}],
    }  # fmt: skip
    _PREFIX = struct.Struct("<4sII")

    def make(self, folder: Path) -> None:
        arrays = {"joint_pos": np.arange(3, dtype=np.float32), "front": np.zeros((8, 8, 3), np.uint8)}
        fields = {"id": 1, "received_ns": 5, "sent_ns": 9, "session": "abc"}
        message = wire.Message("observation", fields, arrays)
        (folder / "frame").write_bytes(b"".join(wire.encode(message)))
        (folder / "spec").write_text(json.dumps(self._SPEC))

    def damage(self, folder: Path, data: st.DataObject) -> None:
        frame = (folder / "frame").read_bytes()
        if data.draw(st.integers(0, 3)) == 0:
            (folder / "spec").write_text(json.dumps(mutate_json(data, self._SPEC)))
            return
        if data.draw(st.booleans()):
            (folder / "frame").write_bytes(mutate_bytes(data, frame))
            return
        magic, size, _ = self._PREFIX.unpack_from(frame)
        start = self._PREFIX.size
        header, body = frame[start : start + size], frame[start + size :]
        header = json.dumps(mutate_json(data, json.loads(header))).encode()
        (folder / "frame").write_bytes(self._PREFIX.pack(magic, len(header), len(body)) + header + body)

    def read(self, folder: Path) -> None:
        in_turn(lambda: self._read_frame(folder), lambda: self._read_spec(folder))

    def _read_spec(self, folder: Path) -> None:
        sent = json.loads((folder / "spec").read_text())
        spec = RemoteSpecConfig.from_robot(sent).robot_spec()
        assert spec.name.isprintable() and np.isfinite(spec.action.bounds).all()

    def _read_frame(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sender = socket.create_connection(listener.getsockname())
            receiver, _ = listener.accept()
        with sender, receiver:
            sender.sendall((folder / "frame").read_bytes())
            sender.shutdown(socket.SHUT_WR)
            try:
                message = wire.Link(receiver, is_server=False).receive(time.monotonic() + 5.0, max_body=1 << 20)
                for name in ("id", "received_ns", "sent_ns"):
                    message.integer(name)
                assert message.text("session").isprintable()
            except wire.WireError as error:
                raise RobotError(str(error)) from error
        assert sum(array.nbytes for array in message.arrays.values()) <= 1 << 20


class DriveMessages(Format):
    """What a page of the console sends while a person drives."""

    name = "drive messages"

    def make(self, folder: Path) -> None:
        first = {"n": 1, "t": 10.0, "held": True, "axes": [0.5, -1.0, 0.0]}
        messages = [first, {**first, "n": 2, "t": 20.5, "lost": True}, {"n": 3, "t": 30.0, "held": False}]
        (folder / "messages").write_text("\n".join(json.dumps(one) for one in messages))

    def damage(self, folder: Path, data: st.DataObject) -> None:
        path = folder / "messages"
        if data.draw(st.booleans()):
            path.write_bytes(mutate_bytes(data, path.read_bytes()))
            return
        lines = path.read_text().split("\n")
        number = data.draw(st.integers(0, len(lines) - 1))
        lines[number] = json.dumps(mutate_json(data, json.loads(lines[number])))
        path.write_text("\n".join(lines))

    def read(self, folder: Path) -> None:
        box = Mailbox(3)
        control, reader = DriveControl(_Driven(MailboxWriter(box))), MailboxReader(box)
        session = control.connect("eva")
        try:
            for line in (folder / "messages").read_bytes().decode(errors="replace").split("\n"):
                session.receive(line)
                command = reader.command()
                assert command is None or (command.is_valid and (np.abs(command.axes) <= 1.0).all())
                assert command is None or command.time_ns <= time.monotonic_ns()
        except InvalidMessage as error:
            raise UsageError(str(error)) from error
        finally:
            control.disconnect(session)


class _Driven:
    """As `LiveRobot`, without a run."""

    def __init__(self, writer: MailboxWriter) -> None:
        self._writer = writer

    def drive(self, *, session: int, sequence: int, held: bool, axes: tuple[float, ...], time_ns: int) -> None:
        values = axes or (0.0,) * 3
        self._writer.drive(session=session, sequence=sequence, held=held, axes=values, time_ns=time_ns)

    def disconnect(self, *, session: int, sequence: int) -> None:
        self._writer.lose(session=session, sequence=sequence)


WIRE_FORMATS: dict[str, Format] = {one.name: one for one in (OpenpiMessages(), RobotMessages(), DriveMessages())}
