"""Messages over the network: openpi's policy protocol, and the protocol of a robot's computer.

The messages of our own policy server are fuzzed over real sockets (`support.fuzz_policy_wire`).
"""

from __future__ import annotations

import json
import socket
import struct
import time
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from hypothesis import strategies as st

from dovetail.core.errors import RobotError
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.types import ActContext
from dovetail.policies.openpi.context import context_from_wire, context_to_wire
from dovetail.policies.openpi.keys import own_keys
from dovetail.policies.openpi.packing import pack, unpack
from dovetail.robots.drivers.remote.robot_side import wire
from support.fuzz.formats import Format
from support.fuzz.mutate import mutate_bytes, mutate_json

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
            if name == "observation":
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
    """An observation that a robot's computer sends. Checksums are off, so damage reaches the code behind them."""

    name = "robot messages"
    _PREFIX = struct.Struct("<4sII")

    def make(self, folder: Path) -> None:
        arrays = {"joint_pos": np.arange(3, dtype=np.float32), "front": np.zeros((8, 8, 3), np.uint8)}
        fields = {"id": 1, "received_ns": 5, "sent_ns": 9, "session": "abc"}
        message = wire.Message("observation", fields, arrays)
        (folder / "frame").write_bytes(b"".join(wire.encode(message)))

    def damage(self, folder: Path, data: st.DataObject) -> None:
        frame = (folder / "frame").read_bytes()
        if data.draw(st.booleans()):
            (folder / "frame").write_bytes(mutate_bytes(data, frame))
            return
        magic, size, _ = self._PREFIX.unpack_from(frame)
        start = self._PREFIX.size
        header, body = frame[start : start + size], frame[start + size :]
        header = json.dumps(mutate_json(data, json.loads(header))).encode()
        (folder / "frame").write_bytes(self._PREFIX.pack(magic, len(header), len(body)) + header + body)

    def read(self, folder: Path) -> None:
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


WIRE_FORMATS: dict[str, Format] = {one.name: one for one in (OpenpiMessages(), RobotMessages())}
