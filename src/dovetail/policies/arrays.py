"""Conversion between tensors and numpy arrays. A sharded tensor (FSDP) is whole in numpy; all ranks must call together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.bfloat16 import BFLOAT16
from dovetail.core.disk import sha256
from dovetail.core.tensor_files import tensor_blocks
from dovetail.core.types import Array

__all__ = [
    "copy_in_pieces",
    "fill_module",
    "module_digest",
    "sharded_like",
    "stage_module",
    "to_numpy",
    "to_tensor",
    "whole",
]

_PIECE_BYTES = 16 << 20


@runtime_checkable
class _Sharded(Protocol):
    """A DTensor. Its class is not imported here, because that takes long."""

    def full_tensor(self) -> Tensor: ...


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or gathered from all ranks if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, _Sharded) else tensor


def to_numpy(tensor: Tensor) -> Array:
    """A copy, gathered from all ranks if the tensor is sharded."""
    return _viewed(whole(tensor)).copy()


def module_digest(module: nn.Module) -> str:
    """The sha256 of a module's safetensors file. A module on the CPU is not copied."""
    return sha256(tensor_blocks({key: _viewed(value) for key, value in module.state_dict().items()}))


def _viewed(tensor: Tensor) -> Array:
    """The memory of a tensor on the CPU; a copy of one on a GPU."""
    local = tensor.detach().cpu()
    if local.dtype == torch.bfloat16:
        return local.view(torch.int16).numpy().view(BFLOAT16)
    array: Array = local.numpy()
    return array


def to_tensor(array: Array) -> Tensor:
    """A copy on the CPU, of the same type."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(np.array(array.view(np.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def sharded_like(tensor: Tensor, example: Tensor) -> Tensor:
    """The same values, sharded as `example` is."""
    if not isinstance(example, _Sharded):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(example, DTensor)
    tensor = tensor.to(example.device)
    return distribute_tensor(tensor, example.device_mesh, example.placements, src_data_rank=None)


def stage_module(module: nn.Module, arrays: Mapping[str, Array], device: torch.device) -> Callable[[], None]:
    """Copy new weights to a module's device. The result puts them into use; delete it soon, it then holds the old ones.

    On a CPU it exchanges memory. On a GPU it copies, because CUDA graphs know the addresses of the weights."""
    present = module.state_dict(keep_vars=True)
    is_gpu = device.type == "cuda"
    if is_gpu:
        # a stream of its own and a small pinned buffer: a copy of ordinary memory keeps the driver, and actions wait for it
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        buffer = torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        with torch.cuda.stream(stream):
            staged = {key: torch.empty(v.shape, dtype=v.dtype, device=device) for key, v in present.items()}
            for key, target in staged.items():
                copy_in_pieces(arrays[key], target, buffer, wait=stream.synchronize)
    else:
        staged = {key: to_tensor(arrays[key]).to(value.dtype) for key, value in present.items()}

    def use() -> None:
        for key, value in present.items():
            if is_gpu:
                value.data.copy_(staged[key])
                staged[key].record_stream(torch.cuda.current_stream(device))  # its memory is free after that
            else:
                value.data, staged[key] = staged[key], value.data

    return use


def copy_in_pieces(array: Array, target: Tensor, buffer: Tensor, *, wait: Callable[[], None]) -> None:
    """Copy through a buffer of bytes. `wait` returns when the buffer is free again."""
    part = buffer.view(target.dtype)
    source, flat = array.reshape(-1), target.view(-1)
    for start in range(0, len(source), len(part)):
        piece = to_tensor(source[start : start + len(part)])
        part[: len(piece)].copy_(piece)
        flat[start : start + len(piece)].copy_(part[: len(piece)], non_blocking=True)
        wait()


def fill_module(module: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Load the complete `state_dict` of a module, sharded or not."""
    tensors = {key: to_tensor(value) for key, value in arrays.items()}
    state = module.state_dict()
    if not any(isinstance(value, _Sharded) for value in state.values()):
        module.load_state_dict(tensors)
        return
    with torch.no_grad():
        for key, value in state.items():
            value.copy_(sharded_like(tensors[key], value))
