"""The weight store on disk: publishing, pins, pruning, damage, and readers and publishers in parallel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.bfloat16 import BFLOAT16
from dovetail.core.contracts import WeightStore
from dovetail.core.disk import dump_json
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import Array
from dovetail.weights.store import DiskWeightStore

Components = Mapping[str, Mapping[str, Array]]


def weights(value: float, *, frozen: float = 0.0) -> Components:
    return {
        "actor": {"w": np.full((3, 2), value, np.float32), "b": np.float32(value)[None]},
        "encoder": {"w": np.full(4, frozen, np.float32)},
    }


def assert_same(a: Components, b: Components) -> None:
    assert a.keys() == b.keys()
    for component, arrays in a.items():
        assert arrays.keys() == b[component].keys()
        for name, array in arrays.items():
            other = np.asarray(b[component][name])
            assert array.dtype == other.dtype
            assert array.shape == other.shape
            assert array.tobytes() == other.tobytes()


def test_is_a_weight_store(tmp_path: Path) -> None:
    assert isinstance(DiskWeightStore(tmp_path), WeightStore)
    assert list(tmp_path.iterdir()) == []


def test_published_versions_can_be_read(tmp_path: Path) -> None:
    store = DiskWeightStore(tmp_path / "weights")
    assert store.latest() is None
    assert store.versions() == []
    assert store.publish(weights(1)) == 1
    assert store.publish(weights(2)) == 2
    snapshot = DiskWeightStore(tmp_path / "weights").latest()
    assert snapshot is not None
    assert snapshot.version == 2
    assert_same(snapshot.components, weights(2))
    assert_same(store.load(1).components, weights(1))
    assert set(snapshot.hashes) == {"actor", "encoder"}


def test_readers_have_independent_cursors(tmp_path: Path) -> None:
    store = DiskWeightStore(tmp_path)
    readers = [DiskWeightStore(tmp_path), DiskWeightStore(tmp_path), store]
    cursors = [0, 0, 0]
    for value in (1, 2, 3):
        store.publish(weights(value))
        for number, reader in enumerate(readers):
            if number == 1 and value < 3:
                continue  # a slow reader
            snapshot = reader.latest(newer_than=cursors[number])
            assert snapshot is not None
            assert snapshot.version == value
            cursors[number] = snapshot.version
            assert reader.latest(newer_than=cursors[number]) is None


def test_version_numbers_continue_after_restart_and_pruning(tmp_path: Path) -> None:
    for expected in range(1, 8):
        assert DiskWeightStore(tmp_path, keep=2).publish(weights(expected)) == expected
    assert DiskWeightStore(tmp_path).versions() == [6, 7]


def test_unchanged_components_are_written_once_and_shared(tmp_path: Path) -> None:
    store = DiskWeightStore(tmp_path)
    store.publish(weights(1))
    before = {path.name: path.stat().st_ino for path in (tmp_path / "components").iterdir()}
    store.publish(weights(2))
    after = {path.name: path.stat().st_ino for path in (tmp_path / "components").iterdir()}
    assert len(after) == 3  # two actors, one encoder
    assert before.items() <= after.items()
    reader = DiskWeightStore(tmp_path)
    first, second = reader.load(1), reader.load(2)
    assert first.components["encoder"] is second.components["encoder"]
    assert first.hashes["encoder"] == second.hashes["encoder"]
    with pytest.raises(ValueError, match="read-only"):
        first.components["encoder"]["w"][0] = 1


def test_snapshot_does_not_change_with_the_published_arrays(tmp_path: Path) -> None:
    store = DiskWeightStore(tmp_path)
    live = {"actor": {"w": np.zeros(3, np.float32)}}
    store.publish(live)
    live["actor"]["w"] += 1
    snapshot = store.latest()
    assert snapshot is not None
    assert snapshot.components["actor"]["w"].tolist() == [0, 0, 0]


def test_pruning_keeps_the_newest_and_pinned_versions_with_their_files(tmp_path: Path) -> None:
    store = DiskWeightStore(tmp_path, keep=2)
    store.publish(weights(1))
    store.pin(1)
    for value in range(2, 7):
        store.publish(weights(value))
    assert store.versions() == [1, 5, 6]
    assert len(list((tmp_path / "components").iterdir())) == 3 + 1
    store.pin(None)
    assert store.versions() == [5, 6]
    assert len(list((tmp_path / "components").iterdir())) == 2 + 1


def test_all_readers_get_the_pinned_version(tmp_path: Path) -> None:
    store = DiskWeightStore(tmp_path)
    for value in (1, 2, 3):
        store.publish(weights(value))
    store.pin(2)
    reader = DiskWeightStore(tmp_path)
    for cursor in (0, 1, 3):  # also readers of a newer version
        snapshot = reader.latest(newer_than=cursor)
        assert snapshot is not None
        assert snapshot.version == 2
    assert reader.latest(newer_than=2) is None
    store.publish(weights(4))
    assert reader.latest(newer_than=2) is None
    reader.pin(None)
    snapshot = store.latest(newer_than=2)
    assert snapshot is not None
    assert snapshot.version == 4
    with pytest.raises(UsageError, match="cannot pin version 9: available: 1, 2, 3, 4"):
        store.pin(9)


def test_named_versions_are_kept_until_others_are_named(tmp_path: Path) -> None:
    store = DiskWeightStore(tmp_path, keep=2)
    for value in (1, 2, 3):
        store.publish(weights(value))
        store.keep_versions([1, 2])
    DiskWeightStore(tmp_path, keep=2).publish(weights(4))  # another process
    assert store.versions() == [1, 2, 3, 4]
    store.keep_versions([2])
    store.publish(weights(5))
    assert store.versions() == [2, 4, 5]
    assert_same(store.load(2).components, weights(2))


def test_reader_gets_an_older_version_after_a_newer_one(tmp_path: Path) -> None:
    """An arm's own store follows a roll-back, also to a version that it no longer has."""
    learner, arm = DiskWeightStore(tmp_path / "learner"), DiskWeightStore(tmp_path / "arm", keep=1)
    for value in (1, 2, 3):
        learner.publish(weights(value))
        arm.serve_only(learner.load(value))
    assert arm.versions() == [3]
    reader = DiskWeightStore(tmp_path / "arm")
    arm.serve_only(learner.load(1))
    snapshot = reader.latest(newer_than=3)
    assert snapshot is not None and snapshot.version == 1
    assert_same(snapshot.components, weights(1))
    arm.serve_only(learner.load(3))
    newer = reader.latest(newer_than=1)
    assert newer is not None and newer.version == 3
    assert arm.versions() == [3]


def test_flipped_bit_is_reported_with_its_file(tmp_path: Path) -> None:
    store = DiskWeightStore(tmp_path)
    store.publish(weights(1))
    store.pin(1)
    rng = np.random.default_rng(0)
    files = [tmp_path / "v00000001.json", tmp_path / "pin.json", *(tmp_path / "components").iterdir()]
    for path in files:
        data = path.read_bytes()
        for place in rng.integers(len(data), size=60):
            damaged = bytearray(data)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            with pytest.raises(StoreError, match=path.name):
                DiskWeightStore(tmp_path).latest()
        path.write_bytes(data)
    assert DiskWeightStore(tmp_path).latest() is not None


@pytest.mark.parametrize("version", [1e308, -1, 0, True, "1", 10**300], ids=str)
def test_pin_of_an_impossible_version_is_refused(tmp_path: Path, version: object) -> None:
    store = DiskWeightStore(tmp_path)
    store.publish(weights(1))
    (tmp_path / "pin.json").write_bytes(dump_json({"version": version}))
    with pytest.raises(StoreError, match=r"pin\.json is not valid"):
        store.latest()


def test_missing_files_are_reported(tmp_path: Path) -> None:
    store = DiskWeightStore(tmp_path)
    store.publish(weights(1))
    with pytest.raises(StoreError, match=r"v00000004\.json is missing: available: 1"):
        store.load(4)
    for path in (tmp_path / "components").iterdir():
        path.unlink()
    with pytest.raises(StoreError, match=r"safetensors is missing"):
        DiskWeightStore(tmp_path).latest()


def test_publishing_again_repairs_a_damaged_component(tmp_path: Path) -> None:
    DiskWeightStore(tmp_path).publish(weights(1))
    for path in (tmp_path / "components").iterdir():
        path.write_bytes(b"torn")
    store = DiskWeightStore(tmp_path)
    assert store.publish(weights(1)) == 2
    assert_same(store.load(1).components, weights(1))


def test_publishing_works_with_a_damaged_old_manifest(tmp_path: Path) -> None:
    store = DiskWeightStore(tmp_path)
    store.publish(weights(1))
    (tmp_path / "v00000001.json").write_bytes(b"{}")
    assert store.publish(weights(2)) == 2
    assert_same(store.load(2).components, weights(2))


def test_temporary_files_are_removed_by_the_next_publisher(tmp_path: Path) -> None:
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp" / "v00000001.json").write_bytes(b"half")
    store = DiskWeightStore(tmp_path)
    assert store.versions() == []
    store.publish(weights(1))
    assert list((tmp_path / ".tmp").iterdir()) == []


@pytest.mark.parametrize("bad", [np.array([None]), np.array(["x"]), np.zeros(2, complex)])
def test_other_types_than_plain_numbers_are_refused(tmp_path: Path, bad: Array) -> None:
    with pytest.raises(UsageError, match="'actor/w'"):
        DiskWeightStore(tmp_path).publish({"actor": {"w": bad}})
    with pytest.raises(UsageError, match="without components"):
        DiskWeightStore(tmp_path).publish({})
    assert DiskWeightStore(tmp_path).versions() == []


def test_transposed_array_is_read_unchanged(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    store = DiskWeightStore(tmp_path)
    store.publish({"a": {"t": array.T, "s": array[:, ::2], "f": np.asfortranarray(array)}})
    assert_same(store.load(1).components, {"a": {"t": array.T, "s": array[:, ::2], "f": array}})


def test_readers_during_pruning_only_get_newer_versions(tmp_path: Path) -> None:
    publisher = DiskWeightStore(tmp_path, keep=1)
    publisher.publish(weights(1))
    stop, failures = threading.Event(), []

    def read() -> None:
        store, cursor = DiskWeightStore(tmp_path), 0
        try:
            while not stop.is_set():
                snapshot = store.latest(newer_than=cursor)
                if snapshot is not None:
                    assert snapshot.version > cursor
                    assert_same(snapshot.components, weights(snapshot.version))
                    cursor = snapshot.version
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for value in range(2, 60):
        publisher.publish(weights(value))
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


PUBLISHER = """
import sys
import numpy as np
from dovetail.weights.store import DiskWeightStore
store = DiskWeightStore(sys.argv[1], keep=3)
while True:
    print(store.publish({"a": {"w": np.random.default_rng().normal(size=2000)}}), flush=True)
"""


def test_acknowledged_versions_survive_a_killed_publisher(tmp_path: Path) -> None:
    newest = 0
    for delay_s in (0.0, 0.02, 0.05):
        command = [sys.executable, "-c", PUBLISHER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(delay_s)
            process.kill()
            lines = (first + process.stdout.read()).splitlines(keepends=True)
        acknowledged = [int(line) for line in lines if line.endswith("\n")]
        assert acknowledged[0] > newest
        newest = acknowledged[-1]
        store = DiskWeightStore(tmp_path, keep=3)
        snapshot = store.latest()
        assert snapshot is not None
        assert snapshot.version >= newest
        for version in store.versions():
            store.load(version)


shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
dtypes = st.sampled_from(
    [BFLOAT16, *map(np.dtype, ("float16", "float32", "float64", "int8", "uint8", "int64", "bool"))]
)
arrays = st.tuples(dtypes, shapes).flatmap(lambda kind: hnp.arrays(*kind))
components = st.dictionaries(
    st.text(max_size=5), st.dictionaries(st.text(max_size=5), arrays, max_size=3), min_size=1, max_size=3
)


@settings(max_examples=20, deadline=None)
@given(st.lists(components, min_size=1, max_size=3))
def test_published_arrays_are_read_unchanged(
    tmp_path_factory: pytest.TempPathFactory, published: list[Components]
) -> None:
    folder = tmp_path_factory.mktemp("weights")
    store = DiskWeightStore(folder)
    versions = [store.publish(each) for each in published]
    assert versions == list(range(1, len(published) + 1))
    reader = DiskWeightStore(folder)
    for version, each in zip(versions, published, strict=True):
        assert_same(reader.load(version).components, each)
