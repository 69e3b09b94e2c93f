"""Safetensors files are read without a second copy, and a file that does not follow the format is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from dovetail.core.disk import sha256
from dovetail.core.errors import StoreError
from dovetail.core.tensor_files import read_tensors
from dovetail.learn.checkpoint import save_checkpoint
from dovetail.weights.store import DiskWeightStore

ARRAYS = {
    "a/weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "scalar": np.array(3.5),
    "empty": np.zeros((0, 7), np.int16),
    "flags": np.array([True, False, True]),
    "bytes": np.arange(5, dtype=np.uint8),
    "half": np.ones((2, 2), np.float16),
    "count": np.array([2**40], np.int64),
}


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def tensor(begin: int = 0, end: int = 8, *, shape: Any = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_arrays_are_those_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors.numpy.save(ARRAYS, metadata={"arch": "x"}))
    found, expected = read_tensors(path, checksum=sha256(path.read_bytes())), safetensors.numpy.load_file(path)
    assert found.keys() == expected.keys() == ARRAYS.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].flags.writeable
        np.testing.assert_array_equal(found[name], array)


def test_array_at_an_odd_place_is_aligned(tmp_path: Path) -> None:
    data = np.arange(2, dtype=np.float32).tobytes()
    header = json.dumps({"a": tensor()}).encode()
    path = write(tmp_path / "w", header + b" " * (-len(header) % 8 + 1), data)
    assert read_tensors(path)["a"].flags.aligned
    assert read_tensors(path)["a"].tolist() == [0.0, 1.0]


def test_changed_file_is_damaged(tmp_path: Path) -> None:
    path = write(tmp_path / "w", {"a": tensor()}, bytes(8))
    with pytest.raises(StoreError, match="w is damaged"):
        read_tensors(path, checksum="0" * 64)


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"\xff\xff", b""),
        ([], b""),
        ({"a": 5}, b""),
        ({"a": {}}, b""),
        ({"a": tensor()}, b""),
        ({"a": tensor()}, bytes(9)),
        ({"a": tensor(8, 16)}, bytes(16)),
        ({"a": tensor(), "b": tensor(4, 12)}, bytes(12)),
        ({"a": tensor(8, 0)}, bytes(8)),
        ({"a": tensor(-8, 0)}, bytes(8)),
        ({"a": tensor(0, 8.0)}, bytes(8)),  # type: ignore[arg-type]
        ({"a": tensor(shape=[3])}, bytes(8)),
        ({"a": tensor(shape=[-1, -2])}, bytes(8)),
        ({"a": tensor(shape=[2**40, 2**40])}, bytes(8)),
        ({"a": tensor(shape=[True, 2])}, bytes(8)),
        ({"a": tensor(shape="2")}, bytes(8)),
        ({"a": tensor(shape=[1] * 60 + [2])}, bytes(8)),
        ({"a": tensor(shape=[4], dtype="BF16")}, bytes(8)),
        ({"a": tensor(dtype="O")}, bytes(8)),
        (b"[" * 100_000, b""),
    ],
)
def test_invalid_file_is_refused_in_one_line(tmp_path: Path, header: Any, data: bytes) -> None:
    with pytest.raises(StoreError, match="is not a safetensors file that numpy can read") as refused:
        read_tensors(write(tmp_path / "w", header, data))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("size", [0, 7, 8, 20])
def test_short_file_is_refused(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "w", {"a": tensor()}, bytes(8))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StoreError):
        read_tensors(path)


_LOAD = """
import resource, sys
from pathlib import Path
import numpy as np, safetensors.numpy
from dovetail.learn.checkpoint import load_checkpoint
from dovetail.runs.assembly.policy_components import read_component
from dovetail.weights.store import DiskWeightStore
load = {
    "weights": lambda folder: DiskWeightStore(folder).load(1),
    "checkpoint": load_checkpoint,
    "file": lambda folder: read_component(folder / "a.safetensors", "a"),
}[sys.argv[1]]
def peak_mb():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
before = peak_mb()
loaded = load(Path(sys.argv[2]))
print(peak_mb() - before)
"""


@pytest.mark.parametrize("kind", ["weights", "checkpoint", "file"])
def test_loading_64_mb_adds_little_more_than_64_mb(tmp_path: Path, kind: str) -> None:
    arrays = {f"layer{number}": np.full((1 << 20,), number, np.float32) for number in range(16)}
    if kind == "weights":
        DiskWeightStore(tmp_path).publish({"a": arrays})
    elif kind == "checkpoint":
        save_checkpoint(tmp_path, arrays, facts={})
    else:
        safetensors.numpy.save_file(arrays, tmp_path / "a.safetensors")
    command = [sys.executable, "-c", _LOAD, kind, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 60 < float(done.stdout) < 80  # two copies are 128 MB
