"""Messages of openpi's protocol that would take far more memory than their bytes."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest

from dovetail.policies.openpi.packing import unpack
from dovetail.policies.remote.wire import WireError

# (1024 x 1024 two-letter texts, each in 3 bytes, would take 60 MB of objects; four times as many 250 MB)
TEXTS = [[f"{number % 90 + 10}" for number in range(1024)]] * 1024


@pytest.mark.parametrize(
    "message",
    [{"x": TEXTS}, {"x": [[[]] * 1000] * 1000}, {"x": [{str(n): n for n in range(1000)}] * 1000}],
    ids=["short texts", "empty lists", "maps"],
)
def test_message_of_many_small_values_is_refused(message: dict[str, object]) -> None:
    data = msgpack.packb(message)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="more than 65536 values in maps and lists"):
            unpack(data)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 << 20


def test_list_of_a_thousand_numbers_is_read() -> None:
    assert unpack(msgpack.packb({"state": [0.5] * 1000}))["state"] == [0.5] * 1000
