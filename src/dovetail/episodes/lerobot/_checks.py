"""Checks of a dataset that may come from an untrusted source: types and sizes in its metadata, and the values to import."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.core.errors import StoreError
from dovetail.core.types import Array, Episode, Labels
from dovetail.episodes._frames import MAX_PIXELS
from dovetail.episodes._image_stream import ImageStream

__all__ = ["MAX_EPISODES", "check_info", "check_row", "check_values", "fill"]

MAX_EPISODES = 1_000_000
_MAX_FRAMES = 10**10
_MAX_ENTRIES = 100_000  # of one row of a feature
_MAX_FPS = 100_000
_FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. \[\]()+-]{0,199}")
_FIELD = re.compile(r"\{(?P<name>[a-z_]+)(:0?(?P<width>[0-9])d)?\}")


def fill(pattern: str, parts: Mapping[str, Any], *, name: str) -> str:
    """Fill a path pattern: `{chunk_index:03d}` and `{video_key}`, and no other format that Python knows."""

    def value(field: re.Match[str]) -> str:
        found = parts.get(field["name"])
        if found is None or (field["width"] is not None and not isinstance(found, int)):
            raise StoreError(f"{name}: the path {pattern[:200]!r} has the unknown field {field[0]!r}")
        return str(found) if field["width"] is None else str(found).zfill(int(field["width"]))

    filled = _FIELD.sub(value, pattern)
    if "{" in _FIELD.sub("", pattern) or "}" in _FIELD.sub("", pattern):
        raise StoreError(
            f"{name}: the path {pattern[:200]!r} should have plain fields only, as {{chunk_index:03d}}"
        )
    return filled


def check_info(info: Mapping[str, Any], *, name: str) -> None:
    """Raise StoreError unless info.json has the expected types, and sizes that fit into memory."""
    fps = info["fps"]
    _require(_is_number(fps) and 0 < fps <= _MAX_FPS, "fps should be a positive number", name)
    for field, limit in (("total_episodes", MAX_EPISODES), ("total_frames", _MAX_FRAMES)):
        _require(type(info[field]) is int and 0 <= info[field] <= limit, f"{field} is out of range", name)
    _require(isinstance(info["data_path"], str), "data_path should be a text", name)
    _require(isinstance(info.get("video_path") or "", str), "video_path should be a text", name)
    _require(isinstance(info.get("robot_type") or "", str), "robot_type should be a text", name)
    _require(isinstance(info["features"], dict), "features should be a mapping", name)
    for feature, of in info["features"].items():
        _require(_FEATURE.fullmatch(feature) is not None, f"{feature[:80]!r} is not the name of a feature", name)
        _check_feature(feature, of, name)


def _check_feature(feature: str, of: Any, name: str) -> None:
    _require(isinstance(of, dict), f"feature '{feature}' should be a mapping", name)
    shape, dtype = of.get("shape"), of.get("dtype")
    sides = isinstance(shape, list | tuple) and all(type(side) is int and side > 0 for side in shape)
    _require(sides, f"feature '{feature}' should have a shape of positive integers", name)
    if dtype in ("image", "video"):
        _require(len(shape) == 3, f"feature '{feature}' should have three sides", name)
        _require(math.prod(shape) <= 4 * MAX_PIXELS, f"the images of '{feature}' are too large", name)
        return
    try:
        known = dtype == "string" or np.dtype(dtype).kind in "biuf"
    except (TypeError, ValueError, SyntaxError):
        known = False
    _require(
        known and isinstance(dtype, str), f"feature '{feature}' has the unknown dtype {str(dtype)[:80]!r}", name
    )
    _require(math.prod(shape) <= _MAX_ENTRIES, f"feature '{feature}' has more than {_MAX_ENTRIES} entries", name)


def check_row(row: Mapping[str, Any], *, name: str) -> None:
    """Raise StoreError unless a row of the table of episodes has the expected types."""
    required = ("episode_index", "length", "dataset_from_index", "data/chunk_index", "data/file_index")
    for field in (*required, *(key for key in row if key.startswith("videos/") and key.endswith("_index"))):
        value = row.get(field)
        valid = type(value) is int and 0 <= value <= _MAX_FRAMES
        _require(valid or (field not in required and value is None), f"'{field}' should be an index", name)
    for field, value in row.items():
        if field.startswith("videos/") and field.endswith("_timestamp"):
            _require(
                value is None or (_is_number(value) and 0 <= value < 1e9), f"'{field}' should be a time", name
            )


def check_values(
    episode: Episode, labels: Labels | None, *, name: str, streams: Mapping[str, ImageStream] | None = None
) -> None:
    """Raise StoreError if an episode to import has values that are not finite, or shapes that its robot does not have.

    `streams` are the images of cameras that the episode lacks."""
    robot, streams = episode.robot, streams or {}
    columns = {key: episode.column(key) for key in episode.segments[0].columns}
    columns |= {f"last observation '{key}'": value for key, value in episode.last_observation.values.items()}
    for key, spec in robot.observation.items():
        if key in streams:
            _check_shape(streams[key], (len(episode) + 1, *spec.shape), spec.dtype, f"{name}: images of '{key}'")
            continue
        _check_shape(columns[f"observation/{key}"][0], spec.shape, spec.dtype, f"{name}: observation '{key}'")
        last = f"last observation '{key}'"
        _check_shape(columns[last], spec.shape, spec.dtype, f"{name}: {last}")
    for key in ("proposed", "executed"):
        _check_shape(columns[key][0], robot.action.shape, "float32", f"{name}: column '{key}'")
    if labels is not None:
        columns |= {"rewards of its label": labels.rewards, "discounts of its label": labels.discounts}
        for values in (labels.rewards, labels.discounts):
            _check_shape(values, (len(episode),), "float32", f"{name}: the label")
    for key, values in columns.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise StoreError(f"{name}: {key} contains NaN or infinity. Correct the dataset, then import it")


def _check_shape(values: Array | ImageStream, shape: tuple[int, ...], dtype: str, what: str) -> None:
    if values.shape != shape or values.dtype != dtype:
        raise StoreError(f"{what} is {values.dtype}{list(values.shape)}, but should be {dtype}{list(shape)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(condition: bool, problem: str, name: str) -> None:
    if not condition:
        raise StoreError(f"{name}: {problem}")
