"""Tensors of networks as numpy and back, also where a network is sharded over processes: then all of them take part."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.types import Array

__all__ = ["fill_module", "sharded_like", "to_numpy"]


def to_numpy(tensor: Tensor) -> Array:
    """A copy, gathered from wherever its parts are."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    array: Array = whole.detach().cpu().numpy().copy()
    return array


def sharded_like(whole: Tensor, example: Tensor) -> Tensor:
    """The same numbers, laid out as `example` is."""
    if not hasattr(example, "full_tensor"):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(example, DTensor)
    whole = whole.to(example.device)
    return distribute_tensor(whole, example.device_mesh, example.placements, src_data_rank=None)


def fill_module(module: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Load a module's state, whole, by the names of its `state_dict`."""
    tensors = {key: torch.from_numpy(np.array(value)) for key, value in arrays.items()}
    own = module.state_dict()
    if not any(hasattr(value, "full_tensor") for value in own.values()):
        module.load_state_dict(tensors)
        return
    with torch.no_grad():
        for key, value in own.items():
            value.copy_(sharded_like(tensors[key], value))
