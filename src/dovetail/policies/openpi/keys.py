"""Observation keys of openpi's protocol, and how they correspond to a robot's. Client and server use the same map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator

from dovetail.config.model import Config
from dovetail.core.errors import SpecMismatch, UsageError, did_you_mean
from dovetail.core.image_sizes import is_fitted
from dovetail.core.images import resize_images, resize_with_pad
from dovetail.core.prompts import decode_prompt, encode_prompt
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.types import Array

__all__ = ["BUILTIN_KEYS", "KeyMap", "Keys", "key_map", "own_keys"]

_ENTRIES = re.compile(r"([^\[\]]+)(?:\[(\d+):(\d+)\])?")
Layout = Literal["hwc", "chw"]
BuiltinKeys = Literal["droid", "aloha", "libero", "lerobot"]


class KeyMap(Config):
    """Key of the protocol: what it holds of the robot's observations."""

    like: BuiltinKeys | None = None
    """Start from these built-in keys. `images` and `state` given here replace those of the built-in keys."""
    images: dict[str, str] = Field(default_factory=dict)
    """Key of the server: camera of the robot."""
    images_in: str | None = None
    """The images are in a map with this key. Null: they are beside the other keys."""
    layout: Layout = "hwc"
    """Axes of the images that are sent: height, width, channels, or channels first. Both are understood when received."""
    image_size: int = Field(default=224, ge=8, le=4096)
    """Side of the square images that are sent, in pixels: fitted and centered on black, as openpi's client does."""
    state: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Key of the server: the robot's observations that make this vector, whole (joint_pos) or in part (gripper[0:1])."""
    prompt: str | None = "prompt"
    """Key of the task's text. Null: no text is sent."""
    constants: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Further keys that are sent with every observation, such as enable_prefix_cache of SGLang."""

    @model_validator(mode="after")
    def _check_entries(self) -> Self:
        for key, entries in self.state.items():
            for entry in entries:
                found = _ENTRIES.fullmatch(entry)
                if not found or (found[2] and int(found[2]) >= int(found[3])):
                    raise ValueError(f"state.{key}: '{entry}' should be like joint_pos or gripper[0:1]")
        if not (self.like or self.images or self.state):
            raise ValueError("name images, state or both, or start from built-in keys: like: droid")
        return self

    def observed(self) -> tuple[str, ...]:
        """The robot's observations that are sent, each once."""
        entries = (entry.partition("[")[0] for entries in self.state.values() for entry in entries)
        return tuple(dict.fromkeys((*entries, *self.images.values())))

    # ---- the client: from the robot to the wire

    def check(self, observation: Mapping[str, ArraySpec], *, owner: str) -> None:
        """Raise SpecMismatch unless these observations have everything that is sent."""
        for ours in self.observed():
            if ours not in observation:
                key = next(iter([*self._keys_of(ours), "?"]))
                raise SpecMismatch(
                    f"keys: '{key}' is made of '{ours}', which {owner} does not have.{did_you_mean(ours, observation)}"
                    f" Name another observation in policy.keys"
                )
        self._check_forms(observation)

    def _check_forms(self, observation: Mapping[str, ArraySpec]) -> None:
        for key, ours in self.images.items():
            spec = observation.get(ours)
            if spec is not None and not (spec.is_image and spec.shape[2] == 3):
                raise SpecMismatch(f"keys: '{key}' should be a color image, but '{ours}' is {spec.describe()}")
        for key, ours, part in self._parts():
            spec = observation.get(ours)
            if spec is None:
                continue
            if spec.dtype != "float32" or len(spec.shape) != 1 or (part.stop or 0) > spec.shape[0]:
                wanted = ours if part.stop is None else f"{ours}[{part.start}:{part.stop}]"
                raise SpecMismatch(f"keys: '{key}' needs the numbers {wanted}, but '{ours}' is {spec.describe()}")

    def to_wire(self, inputs: Mapping[str, Array], *, row: int) -> dict[str, Any]:
        """One row of a policy's inputs as an observation of the protocol."""
        wire: dict[str, Any] = dict(self.constants)
        for key, entries in self.state.items():
            parts = [inputs[ours][row][part] for ours, part in map(_entry, entries)]
            wire[key] = np.concatenate(parts).astype(np.float32)
        images = {}
        for key, ours in self.images.items():
            image = resize_with_pad(inputs[ours][row], size=self.image_size)
            images[key] = image if self.layout == "hwc" else np.ascontiguousarray(image.transpose(2, 0, 1))
        wire |= {self.images_in: images} if self.images_in else images
        if self.prompt is not None:
            wire[self.prompt] = decode_prompt(inputs["prompt"][row])
        return wire

    # ---- the server: from the wire to a policy's inputs

    def check_covers(self, spec: PolicySpec) -> None:
        """Raise SpecMismatch unless an observation of the protocol gives all inputs of a policy."""
        self._check_forms(spec.observation)
        covered = {key: np.zeros(array.shape[0], np.bool_) for key, array in spec.observation.items()}
        for _, ours, part in self._parts():
            if ours in covered:
                covered[ours][part] = True
        for ours in set(self.images.values()) & set(covered):
            covered[ours][:] = True
        if missing := [key for key, entries in covered.items() if not entries.all()]:
            raise SpecMismatch(
                f"policy '{spec.name}' needs observation '{missing[0]}', which the keys do not give. Use --keys FILE"
            )

    def from_wire(self, wire: Mapping[str, Any], spec: PolicySpec) -> dict[str, Array]:
        """A policy's inputs without batch axis. Raise UsageError if a value is missing or has another form."""
        inputs = {
            key: np.zeros(array.shape, array.dtype)
            for key, array in spec.observation.items()
            if len(array.shape) == 1
        }
        for key, entries in self.state.items():
            if any(ours in inputs for ours, _ in map(_entry, entries)):
                self._read_vector(key, entries, wire, inputs, spec)
        source = wire if self.images_in is None else _get(wire, self.images_in)
        if not isinstance(source, Mapping):
            raise UsageError(f"'{self.images_in}' should be a map with images")
        for key, ours in self.images.items():
            if ours in spec.observation:
                inputs[ours] = _image(_get(source, key), spec.observation[ours], key=key)
        if spec.prompted:
            text = _get(wire, self.prompt or "prompt")
            if not isinstance(text, str):
                raise UsageError(f"'{self.prompt}' should be a text, got {type(text).__name__}")
            inputs["prompt"] = encode_prompt(text)
        return inputs

    def _read_vector(
        self,
        key: str,
        entries: tuple[str, ...],
        wire: Mapping[str, Any],
        inputs: Mapping[str, Array],
        spec: PolicySpec,
    ) -> None:
        values = _numbers(_get(wire, key), key=key)
        first = 0
        for ours, part in map(_entry, entries):
            if part.stop is None and ours not in inputs:
                raise UsageError(f"the size of '{ours}' in '{key}' is unknown: write {ours}[0:N] in the keys")
            size = len(inputs[ours]) if part.stop is None else part.stop - part.start
            if ours in inputs and first + size <= len(values):
                inputs[ours][part] = values[first : first + size]
            first += size
        if first != len(values):
            raise UsageError(f"'{key}' should have {first} numbers, got {len(values)}")

    def _parts(self) -> Iterator[tuple[str, str, slice]]:
        for key, entries in self.state.items():
            for entry in entries:
                yield key, *_entry(entry)

    def _keys_of(self, ours: str) -> list[str]:
        return [key for key, name, _ in self._parts() if name == ours] + [
            key for key, name in self.images.items() if name == ours
        ]


Keys = Annotated[  # by form, so that an error is about the form that was meant
    Annotated[BuiltinKeys, Tag("name")] | Annotated[KeyMap, Tag("map")],
    Discriminator(lambda value: "name" if isinstance(value, str) else "map"),
]

BUILTIN_KEYS: Mapping[str, Mapping[str, Any]] = {
    "droid": {
        "images": {"observation/exterior_image_1_left": "front", "observation/wrist_image_left": "wrist"},
        "state": {
            "observation/joint_position": ["joint_pos"],
            "observation/gripper_position": ["gripper[0:1]"],
        },
    },
    "aloha": {
        "images": {name: name for name in ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist")},
        "images_in": "images",
        "layout": "chw",
        "state": {"state": ["joint_pos"]},
    },
    "libero": {
        "images": {"observation/image": "front", "observation/wrist_image": "wrist"},
        "state": {"observation/state": ["state"]},
    },
    "lerobot": {
        "images": {"observation.images.front": "front", "observation.images.wrist": "wrist"},
        "state": {"observation.state": ["joint_pos"]},
        "prompt": "task",
    },
}


def key_map(keys: BuiltinKeys | KeyMap) -> KeyMap:
    """The complete map that a setting stands for."""
    given = {"like": keys} if isinstance(keys, str) else keys.model_dump(exclude_unset=True)
    like = given.pop("like", None)
    return KeyMap.from_mapping({**(BUILTIN_KEYS[like] if like else {}), **given})


def own_keys(spec: PolicySpec) -> KeyMap:
    """The policy's own keys, in its own sizes: for clients that were written for it."""
    images = [key for key, array in spec.observation.items() if array.is_image]
    state = {key: (key,) for key in spec.observation if key not in images}
    return KeyMap(images={key: key for key in images}, state=state)


def _entry(entry: str) -> tuple[str, slice]:
    found = _ENTRIES.fullmatch(entry)
    assert found is not None, "checked by KeyMap"
    return found[1], slice(int(found[2]), int(found[3])) if found[2] else slice(None)


def _get(wire: Mapping[str, Any], key: str) -> Any:
    if key not in wire:
        names = [name for name in wire if isinstance(name, str)]
        shown = ", ".join(f"'{name[:60]}'" for name in names[:8]) or "nothing"
        raise UsageError(f"the observation has no '{key}'. It has {shown}. Check the keys of client and server")
    return wire[key]


def _numbers(value: Any, *, key: str) -> Array:
    """A vector of finite numbers from an array, a list or one number."""
    if not isinstance(value, np.ndarray | np.generic | list | int | float):
        raise UsageError(f"'{key}' should be a vector of numbers, got {type(value).__name__}")
    try:
        found = np.atleast_1d(np.asarray(value, np.float32))
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"'{key}' should be a vector of numbers") from error
    if found.ndim != 1 or not np.isfinite(found).all():
        raise UsageError(f"'{key}' should be a vector of finite numbers, got shape {list(found.shape)}")
    return found


def _image(value: Any, spec: ArraySpec, *, key: str) -> Array:
    """uint8 [H, W, 3] in the size of the spec, from HWC or CHW, uint8 or floats from 0 to 1."""
    if not isinstance(value, np.ndarray) or value.ndim != 3 or 3 not in (value.shape[0], value.shape[2]):
        found = list(value.shape) if isinstance(value, np.ndarray) else type(value).__name__
        raise UsageError(f"'{key}' should be a color image [H, W, 3] or [3, H, W], got {found}")
    if value.shape[2] != 3:
        value = value.transpose(1, 2, 0)
    if value.dtype.kind == "f":
        if not np.isfinite(value).all() or value.min(initial=0.0) < 0.0 or value.max(initial=0.0) > 1.0:
            raise UsageError(f"'{key}' has floats outside 0 to 1")
        value = (255 * value).astype(np.uint8)  # truncated, as openpi does
    if value.dtype != np.uint8:
        raise UsageError(f"'{key}' should be uint8, or floats from 0 to 1, got {value.dtype}")
    image: Array = value
    if image.shape == spec.shape:
        return image
    if is_fitted(spec.shape, value.shape):
        return resize_images(value, spec)
    if (inside := _without_border(value, spec.shape)) is not None:
        return inside
    raise UsageError(
        f"'{key}' has {value.shape[1]}x{value.shape[0]} pixels, but the policy looks at {spec.shape[1]}x{spec.shape[0]}. "
        "Send this size, or a larger one of the same aspect ratio"
    )


def _without_border(image: Array, shape: tuple[int, ...]) -> Array | None:
    """What openpi's client has centered on a black square; None if the image is no such square."""
    height, width = shape[:2]
    if image.shape[:2] != (max(height, width),) * 2:
        return None
    top, left = int((image.shape[0] - height) / 2), int((image.shape[1] - width) / 2)
    inside = image[top : top + height, left : left + width]
    return inside if np.count_nonzero(image) == np.count_nonzero(inside) else None
