"""The sizes in a folder's config, compared with its tensors before a network is built: it may come from elsewhere.

Each size of a network is the length of some tensor's axis, so a larger one is refused. Sizes that no tensor has, such as the
horizon, have limits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.core.errors import CheckpointError, shown
from dovetail.policies.checkpoints.folder_files import MAX_AXES
from dovetail.policies.vla.networks.sizes import VlaSizes

__all__ = ["check_sizes"]

_LIMITS = {
    "horizon": 1000,
    "num_prompt_tokens": 2048,
    "num_flow_steps": 1000,
    "state_size": MAX_AXES,
    "action_size": MAX_AXES,
    "num_cameras": 32,
    "image_size": 2048,
    "join": 64,
}
_MAX_PATCHES = 64 * 64
_MAY_BE_ZERO = ("self_attention_every",)


def check_sizes(folder: Path, sizes: VlaSizes, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError for sizes that the tensors of these shapes cannot have."""
    longest = max((axis for shape in shapes.values() for axis in shape), default=0)
    for name, value in _numbers(sizes):
        limit = len(shapes) if name == "num_layers" else _LIMITS.get(name, longest)
        if type(value) is float:
            is_valid = math.isfinite(value) and value > 0.0
        else:
            is_valid = type(value) is int and (name in _MAY_BE_ZERO or 1 <= value <= limit)
        if not is_valid:
            raise CheckpointError(
                f"{folder}: {name} is {shown(value)}, which its weights cannot have (expected 1 to {limit}). Copy the "
                "folder again"
            )
    if sizes.vision.num_patches > _MAX_PATCHES:
        raise CheckpointError(
            f"{folder} divides an image into {sizes.vision.num_patches} patches, more than {_MAX_PATCHES}, which are allowed"
        )


def _numbers(sizes: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(sizes):
        value = getattr(sizes, field.name)
        if dataclasses.is_dataclass(value):
            yield from _numbers(value)
        elif not isinstance(value, bool):
            yield field.name, value
