"""Which feature of a LeRobot dataset holds which column of a robot, and which columns do not fit.

Stored in `dovetail/dataset.json`: imports read it, and later exports must match it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.core.errors import SpecMismatch, UsageError, shown
from dovetail.core.specs import ArraySpec, RobotSpec, match

__all__ = [
    "ACTION",
    "EXPOSED",
    "FLAGS",
    "INDICES",
    "STATE",
    "Camera",
    "Layout",
    "exact_in_float32",
    "feature_names",
]

SCHEMA = 1
STATE, ACTION = "observation.state", "action"

# Columns that a feature holds exactly. Columns that no feature holds exactly are stored in `dovetail/`.
EXPOSED = {
    "executed": (ACTION, "float32"),
    "proposed": ("complementary_info.proposed", "float32"),
    "policy_version": ("complementary_info.policy_version", "int64"),
    "chunk_id": ("complementary_info.chunk_id", "int64"),
    "chunk_index": ("complementary_info.chunk_index", "int64"),
    "time_ns": ("complementary_info.time_ns", "int64"),
}
# One value per frame: the result of the step, and who took it.
FLAGS = {
    "next.reward": "float32",
    "next.done": "bool",
    "next.truncated": "bool",
    "next.success": "bool",
    "complementary_info.is_intervention": "bool",
    "complementary_info.discount": "float32",
}
# What LeRobot requires of every frame.
INDICES = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
_EXACT = frozenset({"bool", "int8", "uint8", "int16", "uint16", "float16", "float32"})
_MIN_DEPTH_SIDE_PX = 4  # smaller ones cannot be encoded
_MIN_SIDE_PX = 16  # encoders refuse or distort smaller images


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera:
    """A camera and its video. Encoders need even sides and three channels, so images may be padded."""

    key: str
    feature: str
    shape: tuple[int, int, int]  # of the robot's images

    @property
    def padded(self) -> tuple[int, int]:
        height, width = (max(side + side % 2, _MIN_SIDE_PX) for side in self.shape[:2])
        return height, width


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    robot: RobotSpec
    fps: int
    codec: str
    state: tuple[str, ...]  # observation keys, flattened and concatenated into `observation.state`
    cameras: tuple[Camera, ...]
    depths: tuple[str, ...] = ()  # depth images, see _depth.py
    skipped: Mapping[str, str] = field(default_factory=dict)  # observation key -> why it does not fit

    @staticmethod
    def of(robot: RobotSpec, *, fps: int | None, codec: str) -> Layout:
        state: list[str] = []
        cameras: list[Camera] = []
        depths: list[str] = []
        skipped: dict[str, str] = {}
        for key, spec in robot.observation.items():
            if spec.is_image and spec.shape[2] in (1, 3):
                height, width, channels = spec.shape
                name = _free(f"observation.images.{_plain(key)}", {camera.feature for camera in cameras})
                cameras.append(Camera(key=key, feature=name, shape=(height, width, channels)))
            elif spec.is_depth and min(spec.shape[:2]) >= _MIN_DEPTH_SIDE_PX:
                depths.append(key)
            elif len(spec.shape) > 2:
                skipped[key] = f"{spec.describe()} is neither an 8-bit image nor a vector"
            elif np.dtype(spec.dtype).kind not in "biuf":
                skipped[key] = f"{spec.describe()} is not numeric"
            else:
                state.append(key)
        return Layout(
            robot=robot,
            fps=_whole_fps(robot, fps),
            codec=codec,
            state=tuple(state),
            cameras=tuple(cameras),
            depths=tuple(depths),
            skipped=skipped,
        )

    @property
    def depth_names(self) -> dict[str, str]:
        """The name of each depth image in file names."""
        names: dict[str, str] = {}
        for key in self.depths:
            names[key] = _free(_plain(key).strip(".") or "_", set(names.values()))
        return names

    def features(self) -> dict[str, dict[str, Any]]:
        """Return `features` of info.json: dtype, shape and names of every feature."""
        spec = self.robot.action
        names = list(spec.names) or [str(index) for index in range(_size(spec))]
        state = [f"{key}.{name}" for key in self.state for name in _names(self.robot.observation[key])]
        found: dict[str, dict[str, Any]] = {}
        if state:
            found[STATE] = _feature("float32", [len(state)], state)
        found[ACTION] = _feature("float32", [len(names)], names)
        for camera in self.cameras:
            found[camera.feature] = self._video(camera)
        for feature, dtype in EXPOSED.values():
            if feature != ACTION:
                wide = feature.endswith(".proposed")
                found[feature] = _feature(dtype, [len(names)] if wide else [1], names if wide else None)
        for feature, dtype in {**FLAGS, **INDICES}.items():
            found[feature] = _feature(dtype, [1], None)
        return found

    def _video(self, camera: Camera) -> dict[str, Any]:
        height, width = camera.padded
        return {
            **_feature("video", [height, width, 3], ["height", "width", "channels"]),
            "info": {
                "video.height": height,
                "video.width": width,
                "video.codec": self.codec,
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": self.fps,
                "video.channels": 3,
                "has_audio": False,
            },
        }

    def check(self, robot: RobotSpec, *, whose: str) -> None:
        """Raise SpecMismatch if the robot differs from the dataset's in more than its name."""
        match(robot, stored=self.robot)
        if robot.control_hz != self.robot.control_hz:
            raise SpecMismatch(
                f"{whose} was recorded at {robot.control_hz:g} Hz, but the dataset is of robot '{self.robot.name}' "
                f"at {self.robot.control_hz:g} Hz. Export it to another folder."
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "robot": self.robot.to_json(),
            "fps": self.fps,
            "codec": self.codec,
            "state": list(self.state),
            "cameras": {camera.key: camera.feature for camera in self.cameras},
            "skipped": dict(self.skipped),
            **({"depths": list(self.depths)} if self.depths else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Layout:
        robot = RobotSpec.from_json(data["robot"])
        cameras = []
        for key, feature in data["cameras"].items():
            height, width, channels = robot.observation[key].shape
            cameras.append(Camera(key=key, feature=feature, shape=(height, width, channels)))
        state, depths = tuple(data["state"]), tuple(data.get("depths", ()))
        if unknown := [key for key in state if key not in robot.observation]:
            raise ValueError(f"'state' names {shown(unknown)}, which are no observations of the robot")
        if not all(robot.observation[key].is_depth for key in depths):
            raise ValueError("'depths' names an observation that is no depth image")
        return Layout(
            robot=robot,
            fps=data["fps"],
            codec=data["codec"],
            state=state,
            cameras=tuple(cameras),
            depths=depths,
            skipped=data["skipped"],
        )


def exact_in_float32(dtype: np.dtype[Any]) -> bool:
    """Whether `observation.state`, which is float32, can hold every value of a dtype."""
    return dtype.name in _EXACT


def feature_names(names: Any, size: int) -> tuple[str, ...]:
    """Return the names of a feature's entries. Datasets store a list, a mapping to a list, or nothing."""
    if isinstance(names, Mapping):
        names = next(iter(names.values()), None) if len(names) == 1 else list(names)
    if not isinstance(names, list) or len(names) != size or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)


def _whole_fps(robot: RobotSpec, fps: int | None) -> int:
    """Return the integer frame rate that LeRobot requires. Its timestamps are frame_index / fps.

    Rounding would change every timestamp, so the caller must choose if the control rate is not an integer. The exact times
    are in `complementary_info.time_ns`.
    """
    if fps is None:
        if robot.control_hz != round(robot.control_hz) or robot.control_hz < 1:
            raise UsageError(
                f"robot '{robot.name}' runs at {robot.control_hz:g} Hz, but LeRobot needs an integer frame rate. "
                f"Choose one, for example --fps {max(1, round(robot.control_hz))}."
            )
        return round(robot.control_hz)
    if fps < 1:
        raise UsageError(f"fps is {fps}; it must be at least 1")
    return fps


def _feature(dtype: str, shape: list[int], names: list[str] | None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "names": names}


def _size(spec: ArraySpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64))


def _names(spec: ArraySpec) -> list[str]:
    if len(spec.shape) == 1 and spec.names:
        return list(spec.names)
    return [str(index) for index in range(_size(spec))]


def _plain(key: str) -> str:
    """Replace characters, such as slashes, that LeRobot does not allow in feature names."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", key) or "_"


def _free(name: str, taken: set[str]) -> str:
    """Make a name unique: `a/b` and `a_b` are two cameras."""
    number = 2
    fresh = name
    while fresh in taken:
        fresh, number = f"{name}_{number}", number + 1
    return fresh
