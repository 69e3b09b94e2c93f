"""A server of the robot protocol that misbehaves on the wire on request."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np

from dovetail.robots.drivers.remote.robot_side.server import RobotServer, Session
from dovetail.robots.drivers.remote.robot_side.wire import Message, WireError

__all__ = ["WIRE_FAULTS", "MisbehavingServer"]

WIRE_FAULTS = (
    "drop",  # no answer
    "delay",  # an answer that is a little late: harmless
    "late",  # an answer that is too late
    "garbage",  # random bytes instead of an answer
    "flip",  # one bit of the answer is wrong
    "half",  # half of an answer, then silence
    "cut",  # half of an answer, then the end of the connection
    "close",  # the end of the connection
    "repeat",  # the answer twice
    "huge",  # an answer that announces 4 GB
    "wrong_size",  # a valid message with arrays of other sizes
    "wrong_kind",
    "wrong_number",  # the answer to another request
    "clock_jump",  # the clock of the robot's computer jumps by 10 s, once and for all
    "clock_back",
)
_DELAY_S = 0.01


class MisbehavingServer(RobotServer):
    """`misbehave(name)` spoils the next answers on connections that observe or control; stops are always answered."""

    def __init__(self, robot: Any, *, late_s: float, seed: int = 0, **options: Any) -> None:
        super().__init__(robot, **options)
        self._random = random.Random(seed)
        self._late_s = late_s
        self._fault, self._num_left = "", 0
        self._clock_ns = 0
        self._faults_lock = threading.Lock()

    def misbehave(self, name: str, *, count: int = 1) -> None:
        with self._faults_lock:
            self._fault, self._num_left = name, count

    def _transmit(self, session: Session, answer: Message) -> None:
        with self._faults_lock:
            active = session.role == "robot" and self._num_left > 0
            name = self._fault if active else ""
            self._num_left -= active
        if name in ("clock_jump", "clock_back"):
            self._clock_ns += 10_000_000_000 if name == "clock_jump" else -10_000_000_000
        if self._clock_ns:
            answer = _shifted(answer, self._clock_ns)
        if name and not name.startswith("clock"):
            self._spoil(session, answer, name)
        else:
            super()._transmit(session, answer)

    def _spoil(self, session: Session, answer: Message, name: str) -> None:
        link, deadline_s = session.link, time.monotonic() + 1.0
        if name == "drop":
            return
        if name == "close":
            raise WireError("emulated end of the connection")
        if name in ("delay", "late"):
            time.sleep(_DELAY_S if name == "delay" else self._late_s)
        changed = _changed(answer, name)
        frame = b"".join(link.frame(changed))
        if name == "garbage":
            frame = self._random.getrandbits(8 * 200).to_bytes(200, "little")
        elif name == "flip":
            at = self._random.randrange(len(frame))
            frame = frame[:at] + bytes([frame[at] ^ (1 << self._random.randrange(8))]) + frame[at + 1 :]
        elif name in ("half", "cut"):
            frame = frame[: len(frame) // 2]
        elif name == "repeat":
            frame += frame
        elif name == "huge":
            frame = frame[:8] + b"\xff\xff\xff\xff" + frame[12:]
        link.write([frame], deadline_s)
        if name == "cut":
            raise WireError("emulated end of the connection")


def _changed(answer: Message, name: str) -> Message:
    if name == "wrong_size":
        arrays = {key: np.zeros(max(value.size - 1, 1), value.dtype) for key, value in answer.arrays.items()}
        return Message(answer.kind, answer.fields, arrays)
    if name == "wrong_kind":
        return Message("pong" if answer.kind != "pong" else "stopped", answer.fields, answer.arrays)
    if name == "wrong_number":
        return Message(answer.kind, {**answer.fields, "id": answer.integer("id") + 1}, answer.arrays)
    return answer


def _shifted(answer: Message, by_ns: int) -> Message:
    """All times of an answer, by a clock that jumped."""
    fields = dict(answer.fields)
    for key in ("received_ns", "sent_ns", "time_ns"):
        if key in fields:
            fields[key] = max(fields[key] + by_ns, 0)
    if "captured_ns" in fields:
        fields["captured_ns"] = {key: max(value + by_ns, 0) for key, value in fields["captured_ns"].items()}
    return Message(answer.kind, fields, answer.arrays)
