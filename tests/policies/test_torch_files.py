"""Weights in torch's own format that are damaged, or larger in memory than in their file."""

import pytest
import torch

from dovetail.core.errors import DovetailError, StoreError, UsageError
from dovetail.policies.images.backbones import convert
from dovetail.policies.torch_files import read_torch_file


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_that_repeats_its_numbers_by_strides_is_refused(tmp_path, dtype):
    """A few bytes in the file, 40 GB in a copy."""
    path = tmp_path / "weights.pth"
    torch.save({"w": torch.zeros(1, dtype=dtype).expand(10**10)}, path)
    assert path.stat().st_size < 10_000
    with pytest.raises(StoreError, match="fewer numbers than the shape of 'w'"):
        read_torch_file(path)
    with pytest.raises(DovetailError, match="fewer numbers than the shape of 'w'"):
        convert(path, tmp_path / "encoder.safetensors")


def test_a_sparse_tensor_is_refused(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save({"w": torch.eye(3).to_sparse()}, path)
    with pytest.raises(StoreError, match=r"'w'|not a file of weights"):
        read_torch_file(path)


def test_weights_of_other_shapes_are_refused_before_any_arithmetic(tmp_path):
    path = tmp_path / "weights.pth"
    parts = {f"n.{part}": torch.ones(1000, 1) for part in ("weight", "bias", "running_mean", "running_var")}
    torch.save({"c.weight": torch.ones(1, 1, 1, 1000), **parts}, path)
    with pytest.raises(UsageError, match="does not hold a MobileNetV2"):
        convert(path, tmp_path / "encoder.safetensors")


def test_views_of_one_storage_are_read(tmp_path):
    both = torch.arange(6.0)
    torch.save({"a": both[:2], "b": both[2:].reshape(2, 2).T}, tmp_path / "weights.pth")
    found = read_torch_file(tmp_path / "weights.pth")
    assert found["a"].tolist() == [0.0, 1.0] and found["b"].tolist() == [[2.0, 4.0], [3.0, 5.0]]


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x02.", b"\x80\x02}q\x00.", b"\x80\x02K\x01\x85R.", b"PK\x03\x04" + bytes(40)]
)
def test_a_damaged_file_is_one_line(tmp_path, data):
    path = tmp_path / "weights.pth"
    path.write_bytes(data)
    with pytest.raises(StoreError) as error:
        read_torch_file(path)
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError) as error:
        convert(path, tmp_path / "encoder.safetensors")
    assert "\n" not in str(error.value)
