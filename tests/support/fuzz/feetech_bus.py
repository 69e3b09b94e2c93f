"""A bus whose packet handler reads answers as the package feetech-servo-sdk 1.0.0 does, with its faults.

Written from the behavior of the package. The slow tests use the package itself.
"""

from __future__ import annotations

__all__ = ["Bus"]

_SUCCESS, _TIMEOUT, _CORRUPT = 0, -6, -7
_ID, _LENGTH, _ERROR, _DATA = 2, 3, 4, 5
_MAX_LENGTH = 250


class _Port:
    """A line on which some bytes have arrived, and nothing follows."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def read(self, num_bytes: int) -> bytes:
        found, self._received = self._received[:num_bytes], self._received[num_bytes:]
        return found

    @property
    def has_ended(self) -> bool:
        return not self._received


class _Handler:
    __module__ = "scservo_sdk.protocol_packet_handler"

    def rxPacket(self, port: _Port) -> tuple[list[int], int]:  # noqa: N802
        packet: list[int] = []
        num_wanted = 6
        while True:
            packet.extend(port.read(max(num_wanted - len(packet), 0)))
            if len(packet) < num_wanted:
                if port.has_ended:
                    return packet, _CORRUPT if packet else _TIMEOUT
                continue
            start = next((i for i in range(len(packet) - 1) if packet[i : i + 2] == [255, 255]), len(packet) - 2)
            if start:
                del packet[:start]
            elif packet[_ID] > 0xFD or packet[_LENGTH] > _MAX_LENGTH or packet[_ERROR] > 0x7F:
                del packet[0]
            elif num_wanted != packet[_LENGTH] + 4:
                num_wanted = packet[_LENGTH] + 4
            else:
                is_right = packet[num_wanted - 1] == ~sum(packet[2 : num_wanted - 1]) & 0xFF
                return packet, _SUCCESS if is_right else _CORRUPT

    def readRx(self, port: _Port, id_: int, length: int) -> tuple[list[int], int, int]:  # noqa: N802
        while True:
            packet, result = self.rxPacket(port)
            if result != _SUCCESS:
                return [], result, 0
            if packet[_ID] == id_:
                return packet[_DATA : _DATA + length], result, packet[_ERROR]

    def readTxRx(self, port: _Port, id_: int, address: int, length: int) -> tuple[list[int], int, int]:  # noqa: N802
        return self.readRx(port, id_, length)


class Bus:
    """The part of LeRobot's bus that `check_lengths` uses."""

    def __init__(self, received: bytes) -> None:
        self.port_handler, self.packet_handler = _Port(received), _Handler()
