"""A published folder without a robot's config: which policy it is, and a robot that has exactly what it needs.

    published = describe(Path("pi0_droid"), keys="droid")
    published.section      # {type: pi0, checkpoint: ..., images: {base_0_rgb: base_0_rgb, ...}, state: [state]}
    published.keys         # openpi's keys of DROID, in the folder's names

A server uses it. The folder does not say units, kinds or limits of actions, so nothing here limits them: the robot does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.image_sizes import Scaling
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.policies.checkpoints.folder_files import clear_errors, read_json
from dovetail.policies.lerobot.folder import open_folder
from dovetail.policies.lerobot.options import POLICIES
from dovetail.policies.openpi.keys import BuiltinKeys, KeyMap
from dovetail.policies.vla.checkpoints.folder import open_checkpoint

__all__ = ["Published", "describe"]

STATE, ENVIRONMENT = "state", "environment_state"
_NO_LIMIT = 1e6
_HZ = 10.0  # a robot needs a rate, and a policy does not use it

_CAMERAS: Mapping[str, Mapping[str, str]] = {  # openpi's key: camera of pi0 and pi05
    "droid": {
        "observation/exterior_image_1_left": "base_0_rgb",
        "observation/wrist_image_left": "left_wrist_0_rgb",
    },
    "aloha": {
        "cam_high": "base_0_rgb",
        "cam_left_wrist": "left_wrist_0_rgb",
        "cam_right_wrist": "right_wrist_0_rgb",
    },
    "libero": {"observation/image": "base_0_rgb", "observation/wrist_image": "left_wrist_0_rgb"},
}
_STATES: Mapping[str, tuple[int, Mapping[str, tuple[str, ...]]]] = {  # size of the state, and its keys
    "droid": (8, {"observation/joint_position": ("state[0:7]",), "observation/gripper_position": ("state[7:8]",)}),
    "aloha": (14, {"state": (STATE,)}),
    "libero": (8, {"observation/state": (STATE,)}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A policy section, the robot it acts on, and the keys of its clients."""

    section: Mapping[str, Any]
    robot: RobotSpec
    keys: KeyMap


def describe(folder: Path, *, keys: BuiltinKeys | KeyMap | None = None) -> Published:
    """Raise UsageError or CheckpointError, in one line, for a folder that is no complete policy, and SpecMismatch for keys
    of another robot. Without keys, the names are those of the folder: its cameras, `state` and `prompt`."""
    with clear_errors(folder):
        return _describe(folder, keys)


def _describe(folder: Path, keys: BuiltinKeys | KeyMap | None) -> Published:
    known = _act_or_diffusion(folder) if _type_of(folder) in POLICIES else _vla(folder)
    used = _keys_for(known, keys)
    cameras = {name: shape for name, shape in known.cameras.items() if name in used.images.values()}
    if not cameras and known.cameras:
        raise SpecMismatch(f"{folder} has the cameras {', '.join(known.cameras)}, of which the keys name none")
    observation = {
        name: ArraySpec(shape=(*shape, 3), dtype="uint8", scaling=known.scaling) for name, shape in cameras.items()
    }
    observation |= {name: ArraySpec(shape=(size,)) for name, size in known.vectors.items() if size}
    limits = (_NO_LIMIT,) * known.num_actions
    robot = RobotSpec(
        name=folder.name,
        embodiment=folder.name,
        observation=observation,
        action=ArraySpec(shape=(known.num_actions,), low=tuple(-x for x in limits), high=limits),
        action_kind="published",
        control_hz=_HZ,
    )
    section = {**known.section, "images": {name: name for name in cameras}}
    return Published(section=section, robot=robot, keys=used)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What a folder says."""

    folder: Path
    section: Mapping[str, Any]
    cameras: Mapping[str, tuple[int, int]]  # height and width of the images
    vectors: Mapping[str, int]  # sizes
    num_actions: int
    is_prompted: bool
    scaling: Scaling = "averaged"  # of larger images


def _type_of(folder: Path) -> Any:
    file = folder / "config.json"
    return read_json(file).get("type") if file.is_file() else None


def _vla(folder: Path) -> _Known:
    found = open_checkpoint(folder)
    if found.state is None or found.action is None:
        raise UsageError(
            f"{folder} has no statistics of one robot, so its actions have no scale. Serve it with --config FILE, where "
            "policy.stats names them"
        )
    size = found.sizes.image_size
    return _Known(
        folder=folder,
        section={"type": found.family.name, "checkpoint": str(folder), "state": [STATE]},
        cameras=dict.fromkeys(found.cameras, (size, size)),
        vectors={STATE: found.state.size},
        num_actions=found.action.size,
        is_prompted=True,
        scaling="averaged" if found.resizes_with_pil else "interpolated",
    )


def _act_or_diffusion(folder: Path) -> _Known:
    found = open_folder(folder)
    vectors = {name: found.size(f"observation.{name}") for name in (STATE, ENVIRONMENT)}
    section: dict[str, Any] = {"type": found.policy, "checkpoint": str(folder)}
    if vectors[STATE]:
        section["state"] = [STATE]
    if vectors[ENVIRONMENT]:
        section["environment"] = [ENVIRONMENT]
    return _Known(
        folder=folder,
        section=section,
        cameras=found.cameras,
        vectors=vectors,
        num_actions=found.size("action"),
        is_prompted=False,
    )


def _keys_for(known: _Known, keys: BuiltinKeys | KeyMap | None) -> KeyMap:
    if isinstance(keys, KeyMap) and keys.like is None:
        return keys
    like = keys.like if isinstance(keys, KeyMap) else keys
    prompt = "prompt" if known.is_prompted else None
    vectors = [name for name, size in known.vectors.items() if size]
    if like is None:
        own = {name: [name] for name in vectors}
        return KeyMap.from_mapping({"images": {one: one for one in known.cameras}, "state": own, "prompt": prompt})
    if like == "lerobot":
        images = {f"observation.images.{name}": name for name in known.cameras}
        state = {f"observation.{name}": [name] for name in vectors}
        made: dict[str, Any] = {"images": images, "state": state, "prompt": prompt and "task"}
    else:
        num, state_keys = _STATES[like]
        if known.vectors.get(STATE) != num:
            raise SpecMismatch(
                f"--keys {like} give a state of {num} values, but {known.folder} has {known.vectors.get(STATE, 0)}. Use "
                "--keys FILE"
            )
        images = {key: name for key, name in _CAMERAS[like].items() if name in known.cameras}
        made = {"images": images, "state": state_keys, "prompt": prompt}
        if like == "aloha":
            made |= {"images_in": "images", "layout": "chw"}
    given = keys.model_dump(exclude_unset=True) if isinstance(keys, KeyMap) else {}
    given.pop("like", None)
    return KeyMap.from_mapping({**made, **given})
