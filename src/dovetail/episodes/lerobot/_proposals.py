"""Propose `--rename` for a foreign dataset: which features, or which of their entries, are a robot's arrays."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dovetail.core.specs import ArraySpec
from dovetail.episodes.lerobot._layout import ACTION, feature_names

__all__ = ["own_names", "rename_option"]


def rename_option(
    missing: Mapping[str, ArraySpec],
    features: Mapping[str, Mapping[str, Any]],
    *,
    rename: Mapping[str, str],
    unused_cameras: Mapping[str, ArraySpec],
) -> tuple[str | None, list[str]]:
    """Return the complete option, with what was renamed before, and the keys for which no feature was found.

    Names of a feature's entries tell where an array is (`joint_pos.joint1`). A camera is proposed if it is the only one of
    its size. `unused_cameras` are the dataset's cameras by feature that no observation uses.
    """
    found = {key: place for key, spec in missing.items() for place in _places(key, spec, features)}
    for key, spec in missing.items():
        rivals = [other for other in missing.values() if other.is_image and other.shape == spec.shape]
        fitting = [feature for feature, theirs in unused_cameras.items() if theirs.shape == spec.shape]
        if spec.is_image and len(rivals) == len(fitting) == 1:
            found[key] = fitting[0]
    if not found:
        return None, list(missing)
    pairs = [f"{place}={key}" for place, key in rename.items()] + [
        f"{place}={key}" for key, place in found.items()
    ]
    return f"--rename {shlex.quote(','.join(pairs))}", [key for key in missing if key not in found]


def own_names(key: str, names: Collection[str]) -> tuple[str, ...]:
    """Return the names without the key before them: `joint_pos.joint1` is `joint1` of `joint_pos`."""
    prefix = f"{key}."
    return tuple(name.removeprefix(prefix) for name in names)


def _places(key: str, spec: ArraySpec, features: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the place of an array, if the features have exactly one."""
    if len(spec.shape) != 1:
        return
    places = []
    for feature, of in features.items():
        shape = of["shape"]
        if of["dtype"] in ("image", "video", "string") or len(shape) != 1 or (feature == ACTION and key != ACTION):
            continue
        names = feature_names(of.get("names"), int(shape[0]))
        places += [_cut(feature, first, spec.shape[0]) for first in _starts(key, spec, names)]
    if len(places) == 1:
        yield places[0]


def _starts(key: str, spec: ArraySpec, names: tuple[str, ...]) -> Iterator[int]:
    """Yield the first entry of each part of a feature that is named like the array."""
    size = spec.shape[0]
    named = [index for index, name in enumerate(names) if name == key or name.startswith(f"{key}.")]
    if named and len(named) == size and named[-1] - named[0] == size - 1:
        yield named[0]
    elif spec.names and not named:
        yield from (first for first in range(len(names) - size + 1) if names[first : first + size] == spec.names)


def _cut(feature: str, first: int, size: int) -> str:
    return f"{feature}[{first}]" if size == 1 else f"{feature}[{first}:{first + size}]"
