"""Packets of the Feetech bus.

    instruction  FF FF id length instruction parameters checksum
    status       FF FF id length error parameters checksum

`length` counts the parameters plus 2. The checksum is the inverted low byte of the sum from id to the last parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ACTION",
    "BROADCAST",
    "PING",
    "READ",
    "REG_WRITE",
    "SYNC_READ",
    "SYNC_WRITE",
    "WRITE",
    "Instruction",
    "PacketReader",
    "checksum",
    "instruction",
    "status",
]

PING, READ, WRITE, REG_WRITE, ACTION = 0x01, 0x02, 0x03, 0x04, 0x05
SYNC_READ, SYNC_WRITE = 0x82, 0x83
BROADCAST = 0xFE
_HEADER = b"\xff\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction packet."""

    id: int
    code: int
    parameters: bytes


def checksum(body: bytes) -> int:
    return ~sum(body) & 0xFF


def instruction(id_: int, code: int, parameters: bytes = b"") -> bytes:
    """An instruction packet, for tests."""
    return _packet(id_, code, parameters)


def status(id_: int, error: int, parameters: bytes = b"") -> bytes:
    return _packet(id_, error, parameters)


def _packet(id_: int, code: int, parameters: bytes) -> bytes:
    body = bytes((id_, len(parameters) + 2, code)) + parameters
    return _HEADER + body + bytes((checksum(body),))


class PacketReader:
    """Finds instruction packets in a stream of bytes. Skips garbage and wrong checksums, as a motor does."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Instruction]:
        self._buffer += data
        found = []
        while (packet := self._next()) is not None:
            found.append(packet)
        return found

    def _next(self) -> Instruction | None:
        buffer = self._buffer
        while True:
            start = buffer.find(_HEADER)
            if start < 0:
                del buffer[: max(len(buffer) - 1, 0)]  # the last byte may begin a header
                return None
            del buffer[:start]
            if len(buffer) < 6:
                return None
            size = buffer[3] + 4
            if buffer[2] == 0xFF or buffer[3] < 2:
                del buffer[0]
                continue
            if len(buffer) < size:
                return None
            packet = bytes(buffer[:size])
            if checksum(packet[2:-1]) != packet[-1]:
                del buffer[0]
                continue
            del buffer[:size]
            return Instruction(id=packet[2], code=packet[4], parameters=packet[5:-1])
