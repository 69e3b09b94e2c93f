"""How the emulated camera misbehaves."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from dovetail.core.errors import UsageError, did_you_mean

__all__ = ["FAULTS", "Fault", "FaultName", "FaultState", "corrupted"]

FaultName = Literal["none", "freeze", "repeat", "drop", "late", "garbage", "half", "size", "disconnect", "lie"]
FAULTS: tuple[str, ...] = get_args(FaultName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`freeze`: sends nothing, connections stay open. `repeat`: sends one picture again and again. `drop`: leaves out 9 of
    10 frames. `late`: sends pictures that are `amount_s` old. `garbage`: random bytes instead of a JPEG. `half`: the first
    half of a JPEG. `size`: pictures of half the size. `disconnect`: closes connections and refuses new ones. `lie`: time
    stamps that are `amount_s` ahead; below 0 they stand still (only the stream with time stamps has some)."""

    name: str = "none"
    until_s: float = float("inf")  # by the monotonic clock
    amount_s: float = 0.0


class FaultState:
    """The fault that is in effect now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fault, self._begins_s = Fault(), 0.0

    def set(
        self, name: str, *, seconds: float | None = None, amount_s: float = 3600.0, after_s: float = 0.0
    ) -> None:
        if name not in FAULTS:
            raise UsageError(f"an emulated camera has no fault '{name}'.{did_you_mean(name, FAULTS)}")
        begins_s = time.monotonic() + after_s
        until_s = float("inf") if seconds is None else begins_s + seconds
        with self._lock:
            self._fault, self._begins_s = Fault(name=name, until_s=until_s, amount_s=amount_s), begins_s

    @property
    def now(self) -> Fault:
        with self._lock:
            return self._fault if self._begins_s <= time.monotonic() < self._fault.until_s else Fault()


def corrupted(jpeg: bytes, fault: Fault, rng: np.random.Generator) -> bytes:
    if fault.name == "garbage":
        return rng.bytes(len(jpeg))
    return jpeg[: len(jpeg) // 2] if fault.name == "half" else jpeg
