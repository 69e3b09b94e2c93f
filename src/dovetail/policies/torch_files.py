"""Weights in torch's own format (.pth, .pt), read without running code from them.

Such a file is a pickle. torch's reader with `weights_only` accepts tensors and plain containers and refuses everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dovetail.core.disk import open_file
from dovetail.core.errors import StoreError, shown
from dovetail.core.types import Array

__all__ = ["TORCH_SUFFIXES", "check_sizes", "read_torch_file"]

TORCH_SUFFIXES = (".pth", ".pt")
_INSIDE = ("policy", "model", "state_dict", "model_state_dict")  # where trainers keep the weights in a larger file


def read_torch_file(path: Path) -> dict[str, Array]:
    """The weights of a file: a mapping from names to tensors, or a mapping with one of them under a usual name, such as
    `policy` in EmbodiChain's checkpoints. bfloat16 becomes float32."""
    try:
        with open_file(path) as file:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except StoreError:
        raise
    except Exception as error:  # a damaged or hostile file can raise any exception
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise StoreError(
            f"{path} is not a file of weights that torch reads without running code from it ({reason[:160]}). Save "
            "`model.state_dict()`, or convert it to safetensors"
        ) from error
    weights = found if _is_weights(found) else _weights_inside(found, path)
    check_sizes(weights, path)
    return {name: _array(tensor) for name, tensor in weights.items()}


def check_sizes(weights: Mapping[str, Tensor], path: Path) -> None:
    """Raise StoreError for a tensor with more numbers than the file has for it: its strides repeat them, and a copy could
    take any memory."""
    for name, tensor in weights.items():
        if tensor.layout is not torch.strided or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise StoreError(
                f"{path} has fewer numbers than the shape of '{shown(name)}' says. Save contiguous tensors"
            )


def _weights_inside(found: Any, path: Path) -> Mapping[str, Tensor]:
    inside = [name for name in _INSIDE if isinstance(found, Mapping) and _is_weights(found.get(name))]
    if len(inside) != 1:
        what = f"both {' and '.join(inside)}" if inside else f"none of {', '.join(_INSIDE)}"
        raise StoreError(
            f"{path} is no mapping from names to tensors, and it has {what} with one. Save one state_dict"
        )
    weights: Mapping[str, Tensor] = found[inside[0]]
    return weights


def _is_weights(found: Any) -> bool:
    return (
        isinstance(found, Mapping)
        and len(found) > 0
        and all(isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items())
    )


def _array(tensor: Tensor) -> Array:
    tensor = tensor.detach()
    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array
