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
import safetensors.torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.bfloat16 import BFLOAT16, to_bfloat16
from dovetail.core.disk import sha256
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.tensor_files import parse_tensors, read_tensors, tensor_blocks
from dovetail.core.types import Array
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


_NUMBERS = (
    *("float64", "float32", "float16", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


def tensors(dtypes: Any) -> st.SearchStrategy[dict[str, Array]]:
    arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    return st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), max_size=6), arrays, max_size=5)


@given(tensors(st.sampled_from([np.dtype(name) for name in _NUMBERS])))
def test_written_bytes_are_those_of_the_library(arrays: dict[str, Array]) -> None:
    """So the names of the components of an old store stay valid."""
    copies = {name: np.array(array, order="C") for name, array in arrays.items()}
    assert b"".join(tensor_blocks(arrays)) == safetensors.numpy.save(copies)


@given(tensors(st.sampled_from([BFLOAT16, np.dtype("float16"), np.dtype("float32"), np.dtype("uint8")])))
def test_every_type_keeps_its_bytes(arrays: dict[str, Array]) -> None:
    found = parse_tensors(bytearray(b"".join(tensor_blocks(arrays))), name="it")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_bfloat16_file_made_by_hand(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}       '
    content = (64).to_bytes(8, "little") + header + bytes([0x80, 0x3F, 0x00, 0xC0])  # 1.0 and -2.0
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    found = read_tensors(path)["w"]
    assert found.dtype == BFLOAT16 and found.shape == (2, 1)
    assert found.tobytes() == to_bfloat16(np.array([[1.0], [-2.0]], np.float32)).tobytes()
    assert b"".join(tensor_blocks({"w": found})) == content
    assert safetensors.torch.load_file(path)["w"].tolist() == [[1.0], [-2.0]]


def test_arrays_of_every_memory_layout_are_written_in_c_order() -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    found = parse_tensors(bytearray(b"".join(tensor_blocks({"a": array}))), name="it")["a"]
    assert found.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_other_types_are_not_written() -> None:
    with pytest.raises(UsageError, match="weights 'a' are complex64, but only plain numbers can be saved"):
        tensor_blocks({"a": np.zeros(2, np.complex64)})


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
        ({"a": tensor(shape=[8], dtype="F8_E4M3")}, bytes(8)),
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
