"""Observations as a model of the user gets them: a nested TensorDict, as in EmbodiChain.

rgb       camera -> uint8 [B, H, W, 3]
depth     camera -> float32 [B, H, W, 1] in meters, 0 where nothing was measured
proprio   key -> float32 [B, D]
language  the B prompts, as text
mask      key -> bool [B, h], of keys with history: false before the episode's first tick, where the values are 0

A key with history has one more axis, [B, h, ...], the newest tick last. Groups without a key are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from dovetail.core.prompts import decode_prompt
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.types import Array

__all__ = ["group_of", "nest"]

_MM_PER_M = 1000.0


def nest(
    spec: PolicySpec, tensors: Mapping[str, Tensor], *, normalize: Callable[[str, Tensor], Tensor]
) -> TensorDict:
    """A TensorDict [B] of a policy's observations. `normalize` is applied to the low-dimensional ones."""
    groups: dict[str, Any] = {}
    for key, array in spec.observation.items():
        values, group = tensors[key], group_of(array)
        if group == "depth":
            values = values.float() / _MM_PER_M
        elif group == "proprio":
            values = normalize(key, values)
        if key in spec.history:
            mask = tensors[f"{key}/mask"]
            values = torch.where(mask.view(*mask.shape, *(1,) * (values.ndim - 2)), values, 0)
            groups.setdefault("mask", {})[key] = mask
        groups.setdefault(group, {})[key] = values
    first = tensors[next(iter(spec.observation))]
    if spec.prompted:
        groups["language"] = _texts(tensors["prompt"].cpu().numpy(), first.device)
    return TensorDict(groups, batch_size=[len(first)], device=first.device)


def group_of(array: ArraySpec) -> str:
    if array.is_picture:
        return "depth" if array.is_depth else "rgb"
    return "proprio"


def _texts(prompts: Array, device: torch.device) -> NonTensorStack:
    """uint8 [B, 256] to B texts. Each different text is decoded and wrapped once: that takes longer than a small network."""
    return NonTensorStack(*(_text(prompt.tobytes(), device) for prompt in prompts))


@lru_cache(maxsize=256)
def _text(data: bytes, device: torch.device) -> NonTensorData:
    # with its device, or a TensorDict would copy each row to its own
    return NonTensorData(decode_prompt(np.frombuffer(data, np.uint8)), device=device)
