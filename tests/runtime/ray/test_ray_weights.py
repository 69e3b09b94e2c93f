"""Weights from learner to arms: which components are sent and fetched, and bfloat16."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dovetail.core.bfloat16 import BFLOAT16
from dovetail.core.types import Array
from dovetail.runtime.ray.roles import weights
from dovetail.runtime.ray.roles.weights import (
    SharedMemoryPublisher,
    WeightsReader,
    WeightsRole,
    _packed,
    _unpacked,
)

LOOP = asyncio.new_event_loop()


class FakeRay:
    """An object store that counts accesses and can lose objects."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}
        self.num_fetched = 0

    def put(self, value: Any) -> int:
        self.kept[len(self.kept)] = copy.deepcopy(value)
        return len(self.kept) - 1

    def get(self, reference: Any, timeout: float = 0.0) -> Any:
        if not isinstance(reference, int):
            return LOOP.run_until_complete(reference)
        self.num_fetched += 1
        if reference not in self.kept:
            raise weights.RayError
        return self.kept[reference]


class Remote:
    """A role whose remote methods run at once in this process."""

    def __init__(self, role: WeightsRole) -> None:
        self._role = role

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._role, name)

        class Call:
            def remote(self, *arguments: Any, **named: Any) -> Any:
                if name == "publish":
                    return LOOP.run_until_complete(method(*arguments, **named))
                return method(*arguments, **named)

        return Call()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake_ray = FakeRay()
    monkeypatch.setattr(weights.ray, "put", fake_ray.put)
    monkeypatch.setattr(weights.ray, "get", fake_ray.get)
    return fake_ray


def components(actor: float, encoder: float = 1.0) -> Mapping[str, Mapping[str, Array]]:
    return {"actor": {"w": np.full(3, actor, np.float32)}, "encoder": {"w": np.full(4, encoder, np.float32)}}


def test_unchanged_component_is_sent_and_fetched_once(fake: FakeRay) -> None:
    role = Remote(WeightsRole())
    publisher, reader = SharedMemoryPublisher(role), WeightsReader(role)
    assert reader.latest() is None
    publisher.publish(components(1.0), version=1)
    first = reader.latest()
    assert first is not None and first.version == 1
    assert (len(fake.kept), fake.num_fetched) == (2, 2 + 2)  # the publisher reads them too, to compare
    publisher.publish(components(2.0), version=2)
    second = reader.latest(newer_than=1)
    assert second is not None and second.version == 2
    assert (len(fake.kept), fake.num_fetched) == (3, 4 + 2)  # the actor alone
    np.testing.assert_array_equal(second.components["actor"]["w"], np.full(3, 2.0))
    assert first.hashes["encoder"] == second.hashes["encoder"]
    assert first.hashes["actor"] != second.hashes["actor"]
    assert reader.latest(newer_than=2) is None


def test_reader_gets_only_the_newest_version(fake: FakeRay) -> None:
    role = Remote(WeightsRole())
    publisher, reader = SharedMemoryPublisher(role), WeightsReader(role)
    for version in (1, 2, 3):
        publisher.publish(components(float(version)), version=version)
    fake.num_fetched = 0
    snapshot = reader.latest()
    assert snapshot is not None and snapshot.version == 3
    assert fake.num_fetched == 2


def test_reader_of_a_newer_version_gets_the_pinned_one(fake: FakeRay) -> None:
    role = Remote(WeightsRole())
    SharedMemoryPublisher(role).publish(components(1.0), version=4)
    snapshot = WeightsReader(role).latest(newer_than=9)
    assert snapshot is not None and snapshot.version == 4


def test_weights_of_a_dead_owner_are_not_returned(fake: FakeRay) -> None:
    role = Remote(WeightsRole())
    SharedMemoryPublisher(role).publish(components(1.0), version=1)
    fake.kept.clear()
    assert WeightsReader(role).latest() is None


@given(arrays.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32)))
def test_packed_floats_are_bfloat16(values: Array) -> None:
    name, half = _packed("w", values, half=True)
    assert half.dtype == BFLOAT16
    key, back = _unpacked(name, half)
    assert key == "w"
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(back, expected)


def test_integers_are_not_packed() -> None:
    counts = np.arange(3, dtype=np.int64)
    name, same = _packed("n", counts, half=True)
    assert name == "n" and same is counts
    assert _unpacked("n", counts)[1] is counts
