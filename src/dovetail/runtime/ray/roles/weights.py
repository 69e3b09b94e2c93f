"""Weights from the learner to any number of arms: put into shared memory once, by component; the latest wins.

The learner puts what has changed into Ray's object store and tells the `WeightsRole` where; arms wait there for something
newer, and fetch only the components that are new to them. Nobody waits for a reader.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from dovetail.core.types import Array, WeightSnapshot

__all__ = ["Offer", "Publisher", "WeightsReader", "WeightsRole"]

_HALF = "bf16:"  # before the name of an array that travels as the upper half of its floats
Reference = list[Any]  # of one object reference: in a list it is passed on, and not fetched


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A version, by component: what names its content, and where its arrays are."""

    version: int
    components: Mapping[str, tuple[str, Reference]] = field(default_factory=dict)


class WeightsRole:
    """Holds the references of the latest version; the arrays stay where they were put."""

    def __init__(self) -> None:
        self._offer = Offer(version=0)
        self._news = asyncio.Condition()

    async def publish(self, offer: Offer) -> None:
        async with self._news:
            self._offer = offer
            self._news.notify_all()

    async def report(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "host": socket.gethostname(), "version": self._offer.version}

    async def latest(self, newer_than: int, *, wait_s: float = 0.0) -> Offer | None:
        """None if the caller has it, and nothing else came meanwhile. Another version than the caller's may be an older
        one: somebody pinned it, or a learner went back to its checkpoint."""
        async with self._news:
            try:
                await asyncio.wait_for(self._news.wait_for(lambda: self._is_news(newer_than)), max(wait_s, 1e-3))
            except TimeoutError:
                return None
            return self._offer

    def _is_news(self, newer_than: int) -> bool:
        return self._offer.version not in (0, newer_than)


class Publisher:
    """The learner's end. What has not changed since the version before is not put there again."""

    def __init__(self, role: Any, *, half: bool = False) -> None:
        self._role, self._half = role, half
        self._put: dict[
            str, tuple[str, Mapping[str, Array], Any]
        ] = {}  # name, arrays and reference of each component

    def publish(self, components: Mapping[str, Mapping[str, Array]], *, version: int) -> None:
        for name, arrays in components.items():
            if name not in self._put or not _equal(arrays, self._put[name][1]):
                reference = ray.put(dict(_packed(key, array, half=self._half) for key, array in arrays.items()))
                # to compare with: what was put, which shared memory holds in any case; but not where it is rounded
                kept = ray.get(reference) if not self._half else {k: np.array(a) for k, a in arrays.items()}
                self._put[name] = (f"{name}@{version}", kept, reference)
        offer = {name: (self._put[name][0], [self._put[name][2]]) for name in components}
        self._role.publish.remote(Offer(version=version, components=offer))


class WeightsReader:
    """One arm's end. Whoever is away gives nothing: the arm goes on with what it has."""

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
        except RayError:  # the role, or the learner that owns the arrays, is being started anew
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
    import torch  # takes a second: the role that only passes references on starts without

    return _HALF + key, torch.tensor(array).bfloat16().view(torch.int16).numpy().view(np.uint16)


def _unpacked(key: str, array: Array) -> tuple[str, Array]:
    if not key.startswith(_HALF):
        return key, array
    halves = np.zeros((*array.shape, 2), "<u2")
    halves[..., 1] = array
    return key.removeprefix(_HALF), halves.view("<f4")[..., 0]
