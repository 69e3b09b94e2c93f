"""Map features of a dataset to observations: by the layout of dovetail's own datasets, by name for others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dovetail.core.errors import SpecMismatch, StoreError, UsageError, did_you_mean
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array
from dovetail.episodes.lerobot._layout import ACTION, STATE, Layout, feature_names
from dovetail.episodes.lerobot._proposals import own_names, rename_option

__all__ = ["Mapped", "Piece", "RateMismatch", "check_rate", "foreign", "only", "ours", "without"]

_SLICE = re.compile(r"(?P<feature>.+)\[(?P<first>\d+)(:(?P<end>\d+))?\]")


class RateMismatch(SpecMismatch):
    """The robot runs at another rate than the dataset was recorded at."""

    def __init__(self, message: str, *, dataset_hz: float) -> None:
        super().__init__(message)
        self.dataset_hz = dataset_hz


def check_rate(robot: RobotSpec, *, dataset_hz: float) -> None:
    if robot.control_hz != dataset_hz:
        raise RateMismatch(
            f"the dataset was recorded at {dataset_hz:g} Hz, but robot '{robot.name}' runs at {robot.control_hz:g} Hz",
            dataset_hz=dataset_hz,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """An array of a robot and its place in a dataset: entries `first` to `end` of a feature."""

    feature: str
    spec: ArraySpec
    first: int = 0
    end: int | None = None

    def cut(self, column: Array) -> Array:
        """Cut the array [T, ...] out of the feature's column [T] or [T, D]."""
        values = column.reshape(len(column), -1)[:, self.first : self.end]
        if values.shape[1] != math.prod(self.spec.shape):
            what = f"column '{self.feature}' has {values.shape[1]} entries in each row"
            raise StoreError(f"{what}, but {self.spec.describe()} needs {math.prod(self.spec.shape)}")
        with np.errstate(over="ignore"):
            return values.astype(self.spec.dtype).reshape(len(column), *self.spec.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    robot: RobotSpec
    action: Piece
    numbers: Mapping[str, Piece]
    pictures: Mapping[str, Piece]


def ours(layout: Layout) -> Mapped:
    robot = layout.robot
    numbers: dict[str, Piece] = {}
    first = 0
    for key in layout.state:
        spec = robot.observation[key]
        end = first + int(np.prod(spec.shape, dtype=np.int64))
        numbers[key] = Piece(feature=STATE, spec=spec, first=first, end=end)
        first = end
    mapped = Mapped(
        robot=robot,
        action=Piece(feature=ACTION, spec=robot.action),
        numbers=numbers,
        pictures={
            **{
                camera.key: Piece(feature=camera.feature, spec=robot.observation[camera.key])
                for camera in layout.cameras
            },
            **{key: Piece(feature=name, spec=robot.observation[key]) for key, name in layout.depth_names.items()},
        },
    )
    return replace(mapped, robot=without(robot, mapped))


def only(mapped: Mapped, robot: RobotSpec, *, skipped: Mapping[str, str]) -> Mapped:
    """Leave out observations that the robot does not have, such as a camera that this run does not record.

    Raises SpecMismatch if the dataset lacks observations of the robot. `skipped`: why the export left some out.
    """
    there = {**mapped.numbers, **mapped.pictures}
    missing = [key for key in robot.observation if key not in there]
    if missing:
        why = [f"The export left out '{key}': {skipped[key]}. " for key in missing if key in skipped]
        raise SpecMismatch(
            f"the dataset of robot '{mapped.robot.name}' has no observation {', '.join(map(repr, missing))}, but robot "
            f"'{robot.name}' gives it. {''.join(why)}The dataset's cameras: {', '.join(mapped.pictures) or 'none'}; "
            f"its other observations: {', '.join(mapped.numbers) or 'none'}."
        )
    fewer = replace(
        mapped,
        numbers={key: piece for key, piece in mapped.numbers.items() if key in robot.observation},
        pictures={key: piece for key, piece in mapped.pictures.items() if key in robot.observation},
    )
    return replace(fewer, robot=without(mapped.robot, fewer))


def without(robot: RobotSpec, mapped: Mapped) -> RobotSpec:
    """Return the robot with only those observations that the dataset contains."""
    return robot.with_only({**mapped.numbers, **mapped.pictures})


def foreign(
    info: Mapping[str, Any], *, robot: RobotSpec | None, rename: Mapping[str, str], ignore_names: bool
) -> Mapped:
    """Map features by name: `observation.images.top` is `top`, `observation.state` is `state`.

    `rename` gives other names to a whole feature or to some of its entries (`observation.state[0:7]`). With a robot, the
    dataset must have its observations and actions. Without one, the robot is described by the features.
    """
    offered = dict(_offered(info["features"], rename))
    name = str(info.get("robot_type") or "lerobot")
    if robot is not None:
        check_rate(robot, dataset_hz=info["fps"])
        _check_complete(offered, robot, info["features"], rename)
    elif "action" not in offered:
        raise SpecMismatch(
            f"the dataset has no feature 'action'. Name it with --rename FEATURE=action. {_what(offered)}"
        )
    action = offered.pop("action")
    if robot is None:
        action = _as_float32(action)
        robot = RobotSpec(
            name=name,
            embodiment=name,
            observation={key: piece.spec for key, piece in offered.items()},
            action=action.spec,
            action_kind="unknown",
            control_hz=float(info["fps"]),
        )
    else:
        action = _checked_piece(ACTION, action, robot.action, robot=robot, ignore_names=ignore_names)
        offered = {
            key: _checked_piece(key, offered[key], spec, robot=robot, ignore_names=ignore_names)
            for key, spec in robot.observation.items()
        }
    return Mapped(
        robot=robot,
        action=action,
        numbers={key: piece for key, piece in offered.items() if not piece.spec.is_image},
        pictures={key: piece for key, piece in offered.items() if piece.spec.is_image},
    )


def _offered(features: Mapping[str, Mapping[str, Any]], rename: Mapping[str, str]) -> Iterator[tuple[str, Piece]]:
    renamed = set()
    for source, key in rename.items():
        cut = _SLICE.fullmatch(source)
        feature = cut["feature"] if cut else source
        if feature not in features:
            raise UsageError(f"--rename: the dataset has no feature '{feature}'.{did_you_mean(feature, features)}")
        renamed.add(feature)
        yield key, _piece(feature, features[feature], cut)
    for feature, of in features.items():
        if feature in renamed or of["dtype"] == "string":
            continue
        if feature == ACTION:
            yield "action", _piece(feature, of, None)
        elif feature.startswith("observation."):
            yield feature.removeprefix("observation.").removeprefix("images."), _piece(feature, of, None)


def _piece(feature: str, of: Mapping[str, Any], cut: re.Match[str] | None) -> Piece:
    shape = tuple(int(side) for side in of["shape"])
    if of["dtype"] in ("image", "video"):
        names = of.get("names") or ()
        channels_first = len(names) == 3 and str(next(iter(names))).startswith("channel")
        height, width = shape[1:] if channels_first else shape[:2]
        return Piece(feature=feature, spec=ArraySpec(shape=(height, width, 3), dtype="uint8"))
    names = feature_names(of.get("names"), shape[0]) if len(shape) == 1 else ()
    if cut is None:
        return Piece(feature=feature, spec=ArraySpec(shape=shape, dtype=of["dtype"], names=names))
    first = int(cut["first"])
    end = int(cut["end"]) if cut["end"] else first + 1
    if len(shape) != 1 or not first < end <= shape[0]:
        raise UsageError(f"--rename: '{cut[0]}' is out of range; feature '{feature}' has shape {list(shape)}")
    spec = ArraySpec(shape=(end - first,), dtype=of["dtype"], names=names[first:end])
    return Piece(feature=feature, spec=spec, first=first, end=end)


def _check_complete(
    offered: Mapping[str, Piece],
    robot: RobotSpec,
    features: Mapping[str, Mapping[str, Any]],
    rename: Mapping[str, str],
) -> None:
    """Raise SpecMismatch with everything that is missing, and with what to rename."""
    wanted = {ACTION: robot.action, **robot.observation}
    missing = {key: spec for key, spec in wanted.items() if key not in offered}
    if not missing:
        return
    unused = {
        piece.feature: piece.spec for key, piece in offered.items() if piece.spec.is_image and key not in wanted
    }
    option, unknown = rename_option(missing, features, rename=rename, unused_cameras=unused)
    lacks = ", ".join(f"'{key}' {spec.describe()}" for key, spec in missing.items())
    todo = [f"Use `{option}`."] if option else []
    if unknown:
        pairs = ",".join(f"FEATURE={key}" for key in unknown)
        todo.append(f"{'Also name' if option else 'Name'} what fits with --rename {pairs}.")
    raise SpecMismatch(f"the dataset lacks {lacks} of robot '{robot.name}'. {_what(offered)} {' '.join(todo)}")


def _checked_piece(key: str, piece: Piece, spec: ArraySpec, *, robot: RobotSpec, ignore_names: bool) -> Piece:
    what = key if key == ACTION else f"observation '{key}'"
    theirs = piece.spec
    same_kind = np.can_cast(theirs.dtype, spec.dtype, "same_kind") and theirs.is_image == spec.is_image
    if theirs.shape != spec.shape or not same_kind:
        raise SpecMismatch(
            f"{what}: the dataset's {piece.feature} is {theirs.describe()}, "
            f"but robot '{robot.name}' has {spec.describe()}{_how_to_fit(key, piece, spec)}"
        )
    names = theirs.names if theirs.names == spec.names else own_names(key, theirs.names)
    if not ignore_names and names and spec.names and names != spec.names:
        pairs = [f"{a} != {b}" for a, b in zip(names, spec.names, strict=True) if a != b]
        raise SpecMismatch(
            f"{what}: names of the dataset and of robot '{robot.name}' differ: {', '.join(pairs[:3])}. "
            "If the order is the same, use --ignore-names."
        )
    return Piece(feature=piece.feature, spec=spec, first=piece.first, end=piece.end)


def _how_to_fit(key: str, piece: Piece, spec: ArraySpec) -> str:
    """What to do about another shape, as the end of a message; empty if nothing helps."""
    theirs = piece.spec
    if theirs.is_image and spec.is_image:
        return f". Set the robot's camera to {theirs.shape[1]}x{theirs.shape[0]} pixels"
    if len(theirs.shape) == len(spec.shape) == 1 and theirs.shape[0] > spec.shape[0] and piece.end is None:
        cut = f"{piece.feature}[0:{spec.shape[0]}]={key}"
        return f". If some of its axes are the robot's, cut them out: --rename '{cut}'"
    return ""


def _as_float32(piece: Piece) -> Piece:
    spec = ArraySpec(shape=piece.spec.shape, names=piece.spec.names)
    return Piece(feature=piece.feature, spec=spec, first=piece.first, end=piece.end)


def _what(offered: Mapping[str, Piece]) -> str:
    return "It has " + (", ".join(f"{key} {p.spec.describe()}" for key, p in offered.items()) or "nothing") + "."
