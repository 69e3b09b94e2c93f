"""How much memory Arrow streams need when they are read, found without decompressing them.

Each compressed buffer begins with its decompressed size, which Arrow allocates. Their places are in the header of each
message: a FlatBuffers table, of which this reads as much as needed.
"""

from __future__ import annotations

import struct

import pyarrow as pa

__all__ = ["decoded_bytes"]

_MESSAGE_HEADER, _BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 2, 3  # numbers of fields in Arrow's Message.fbs


def decoded_bytes(data: bytes) -> int:
    """Bytes of all buffers after decompression. Raises ValueError if the data is not a sequence of Arrow streams."""
    source, total = pa.BufferReader(data), 0
    try:
        while source.tell() < len(data):
            try:
                message = pa.ipc.read_message(source)
            except EOFError:  # the end of a stream: another may follow
                continue
            if message.type in ("record batch", "dictionary"):
                total += _batch_bytes(message.metadata.to_pybytes(), memoryview(message.body or b""))
    except (pa.ArrowException, OSError, struct.error, IndexError) as error:
        raise ValueError(f"not tables of dovetail: {' '.join(str(error).split())[:200]}") from error
    return total


def _batch_bytes(header: bytes, body: memoryview) -> int:
    batch = _table(header, _read(header, "<I", 0), _MESSAGE_HEADER)
    if batch is None:
        return len(body)
    compressed = _field(header, batch, _BATCH_COMPRESSION) is not None
    place = _table(header, batch, _BATCH_BUFFERS)
    if place is None:
        return 0
    total = 0
    for number in range(_read(header, "<I", place)):
        offset, length = struct.unpack_from("<qq", header, place + 4 + 16 * number)
        size = length
        if compressed and length >= 8:
            size = max(struct.unpack_from("<q", body, offset)[0], length)  # -1: stored without compression
        if size < 0 or offset < 0:
            raise struct.error("a buffer has a negative size")
        total += size
    return total


def _field(data: bytes, table: int, number: int) -> int | None:
    """The place of a field of a table; None if the table does not have it."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise struct.error("a table is outside the header")
    if 4 + 2 * number >= _read(data, "<H", vtable):
        return None
    offset = _read(data, "<H", vtable + 4 + 2 * number)
    return table + offset if offset else None


def _table(data: bytes, table: int, number: int) -> int | None:
    """The place that a field refers to: a table or a vector."""
    place = _field(data, table, number)
    return None if place is None else place + _read(data, "<I", place)


def _read(data: bytes, form: str, place: int) -> int:
    value: int = struct.unpack_from(form, data, place)[0]
    return value
