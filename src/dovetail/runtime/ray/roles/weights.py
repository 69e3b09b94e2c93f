"""Weights from the learner to any number of arms: in shared memory once per component; the newest version wins.

The learner puts changed components into Ray's object store and sends the references to the `WeightsRole`. Arms wait there
for another version and fetch only components that are new to them. The learner never waits for an arm.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from dovetail.core.bfloat16 import from_bfloat16, to_bfloat16
from dovetail.core.types import Array, WeightSnapshot
from dovetail.runs.checkpoints import Components
from dovetail.runs.folder import RunFolder
from dovetail.weights.store import DiskWeightStore

__all__ = ["Offer", "RayPublisher", "SharedMemoryPublisher", "WeightsReader", "WeightsRole"]

_HALF = "bf16:"  # prefix of the name of a float32 array that is sent as bfloat16
_VERSIONS, _NUM_RESERVED = "versions.json", 100
Reference = list[Any]  # with one object reference: Ray does not fetch references inside a list


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A version: for each component, a name of its content and the reference of its arrays."""

    version: int
    components: Mapping[str, tuple[str, Reference]] = field(default_factory=dict)


class WeightsRole:
    """Holds the references of the newest version. The arrays stay in the object store."""

    def __init__(self) -> None:
        self._offer = Offer(version=0)
        self._changed = asyncio.Condition()

    async def publish(self, offer: Offer) -> None:
        async with self._changed:
            self._offer = offer
            self._changed.notify_all()

    async def report(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "host": socket.gethostname(), "version": self._offer.version}

    async def latest(self, known: int, *, wait_s: float = 0.0) -> Offer | None:
        """Another version than `known`, or None after `wait_s`. It may be older: a pinned one, or one of a checkpoint."""
        async with self._changed:
            try:
                is_other = self._changed.wait_for(lambda: self._offer.version not in (0, known))
                await asyncio.wait_for(is_other, max(wait_s, 1e-3))
            except TimeoutError:
                return None
            return self._offer


class SharedMemoryPublisher:
    """The learner's side of the WeightsRole. Components that did not change are not put there again."""

    def __init__(self, role: Any, *, half: bool = False) -> None:
        self._role, self._half = role, half
        self._sent: dict[
            str, tuple[str, Mapping[str, Array], Any]
        ] = {}  # content, arrays and reference by component

    def publish(self, components: Components, *, version: int) -> None:
        for name, arrays in components.items():
            if name not in self._sent or not _equal(arrays, self._sent[name][1]):
                reference = ray.put(dict(_packed(key, array, half=self._half) for key, array in arrays.items()))
                # for the next comparison: the arrays in shared memory, or a copy if those are rounded
                kept = ray.get(reference) if not self._half else {k: np.array(a) for k, a in arrays.items()}
                self._sent[name] = (f"{name}@{version}", kept, reference)
        offer = {name: (self._sent[name][0], [self._sent[name][2]]) for name in components}
        self._role.publish.remote(Offer(version=version, components=offer))


class RayPublisher:
    """See `runs.checkpoints.WeightPublisher`: every version goes to the arms, and a version to keep also to disk.

    If a version is pinned, arms get that one. The store is notified of every version.
    """

    writes_every_version = False

    def __init__(
        self, weights: Any, store: Any, *, folder: RunFolder, half: bool, online_updates: Callable[[], int]
    ) -> None:
        self._memory, self._store = SharedMemoryPublisher(weights, half=half), store
        self._folder, self._online_updates = folder, online_updates
        self._disk = DiskWeightStore(folder.weights)
        self.version = self._reserved = 0  # the newest number, and the last that may be used
        self.published_s = 0.0

    def publish(self, components: Components, *, keep: bool = False) -> int:
        self.version = version = self._next_version()
        if keep:
            self._disk.publish(components, version=version)
        pinned = self._disk.pinned()
        if pinned is None:
            self._memory.publish(components, version=version)
        else:
            self._memory.publish(self._disk.load(pinned).components, version=pinned)
        normalizer = dict(components.get("normalizer", {}))
        self._store.published.remote(version, pinned or version, normalizer, updates=self._online_updates())
        self.published_s = time.monotonic()
        return version

    def close(self) -> None:
        """Give back the reserved numbers."""
        if self._reserved:
            self._folder.write_json(_VERSIONS, {"used_up_to": self.version})

    def _next_version(self) -> int:
        """A number above all that were ever used, even by a killed process: numbers are reserved on disk before use."""
        if not self._reserved:
            used = (self._folder.read_json(_VERSIONS) or {"used_up_to": 0})["used_up_to"]
            self.version = self._reserved = max(used, max(self._disk.versions(), default=0))
        version = self.version + 1
        if version > self._reserved:
            self._reserved = version + _NUM_RESERVED - 1
            self._folder.write_json(_VERSIONS, {"used_up_to": self._reserved})
        return version


class WeightsReader:
    """An arm's side of the WeightsRole. While the role restarts it returns nothing, and the arm keeps its weights."""

    def __init__(self, role: Any, *, timeout_s: float = 20.0) -> None:
        self._role, self._timeout_s = role, timeout_s
        self._kept: dict[str, tuple[str, Mapping[str, Array]]] = {}

    def latest(self, *, newer_than: int = 0, wait_s: float = 0.0) -> WeightSnapshot | None:
        try:
            answer = self._role.latest.remote(newer_than, wait_s=wait_s)
            offer: Offer | None = ray.get(answer, timeout=self._timeout_s + wait_s)
            if offer is None:
                return None
            for name, (content, reference) in offer.components.items():
                if self._kept.get(name, ("",))[0] != content:
                    arrays = ray.get(reference[0], timeout=self._timeout_s)
                    self._kept[name] = (content, dict(_unpacked(key, array) for key, array in arrays.items()))
        except RayError:  # the role, or the learner that owns the arrays, restarts
            return None
        return WeightSnapshot(
            version=offer.version,
            components={name: self._kept[name][1] for name in offer.components},
            hashes={name: content for name, (content, _) in offer.components.items()},
        )


def _equal(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def _packed(key: str, array: Array, *, half: bool) -> tuple[str, Array]:
    if not half or array.dtype != np.float32:
        return key, array
    return _HALF + key, to_bfloat16(array)


def _unpacked(key: str, array: Array) -> tuple[str, Array]:
    if not key.startswith(_HALF):
        return key, array
    return key.removeprefix(_HALF), from_bfloat16(array)
