"""Arms of different sizes in one form: each key as long as the longest, each action axis from -1 to 1 of its own limits.

    canonical_space = CanonicalSpace(embodiments, keys=("joint_pos",))
    arm = canonical_space.arm(robot)                 one of them, checked against what it says of itself
    arm.wide("joint_pos", values)          [..., 6] -> [..., 7], zeros behind
    arm.pad_actions(actions)               [..., 6] in its own units -> [..., 8] from -1 to 1
    arm.cut_actions(chunk)                 and back

numpy only. What is padded is told apart by masks, `canonical_space.real` and `canonical_space.action_masks`: a zero there is no reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from dovetail.config.model import Config
from dovetail.core.errors import SpecMismatch, did_you_mean
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array

__all__ = ["EMBODIMENT", "CanonicalArm", "CanonicalSpace", "EmbodimentConfig"]

EMBODIMENT = "embodiment"  # the observation that says whose row it is, one number for each arm


class EmbodimentConfig(Config):
    observation: dict[str, int] = Field(min_length=1)
    """How many numbers this arm gives of each key; a key that others have and it has not is left out."""
    rename: dict[str, str] = Field(default_factory=dict)
    """What the arm itself calls a key, where that is another name."""
    num_actions: int = Field(ge=1)
    axes: tuple[int, ...] = ()
    """Which axis of the common action each of its own is, from 0: grippers of all arms may share one, say. None: the
    first ones."""
    grippers: tuple[int, ...] = ()
    """Which of its own numbers, from 0, are grippers: Hi-ORS imitates what these were told, not where they came."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.axes and (len(self.axes) != self.num_actions or len(set(self.axes)) != self.num_actions):
            raise ValueError(f"axes should be {self.num_actions} different numbers, got {list(self.axes)}")
        if min((*self.axes, *self.grippers, 0)) < 0 or max(self.grippers, default=0) >= self.num_actions:
            raise ValueError("axes and grippers count from 0, and grippers are among its own")
        if min(self.observation.values()) < 1:
            raise ValueError("observation counts numbers, at least 1 of each key")
        return self

    @property
    def places(self) -> list[int]:
        return list(self.axes or range(self.num_actions))


class CanonicalSpace:
    """What arms have in common, and what each of them has not."""

    def __init__(self, embodiments: Mapping[str, EmbodimentConfig], *, keys: tuple[str, ...] = ()) -> None:
        known = dict.fromkeys(key for of in embodiments.values() for key in of.observation)
        self.embodiments, self.names = dict(embodiments), tuple(embodiments)
        self.sizes = {
            key: max(of.observation.get(key, 0) for of in embodiments.values())
            for key in keys or known
            if key in known
        }
        self.num_actions = 1 + max(place for of in embodiments.values() for place in of.places)
        self.action_masks = np.zeros((len(embodiments), self.num_actions), np.bool_)  # [E, A]
        self.grippers = np.zeros_like(self.action_masks)
        for row, of in enumerate(embodiments.values()):
            self.action_masks[row, of.places] = True
            self.grippers[row, [of.places[axis] for axis in of.grippers]] = True
        self.real = {  # [E, N] of each key
            key: np.array([np.arange(size) < of.observation.get(key, 0) for of in embodiments.values()])
            for key, size in self.sizes.items()
        }

    def arm(self, robot: RobotSpec) -> CanonicalArm:
        for name in (robot.name, robot.embodiment):  # two of one make may do different things
            if name in self.embodiments:
                return CanonicalArm(self, name, robot)
        raise SpecMismatch(
            f"policy.embodiments does not know robot '{robot.name}', a {robot.embodiment}."
            + did_you_mean(robot.embodiment, self.names)
        )

    def spec(self, robot: RobotSpec, *, images: tuple[str, ...] = ()) -> RobotSpec:
        """All of them as if they were one robot. `robot` is any of them: for how often it acts, and its cameras."""
        observation = {EMBODIMENT: ArraySpec(shape=(len(self.names),), names=self.names)}
        observation |= {key: ArraySpec(shape=(size,)) for key, size in self.sizes.items()}
        observation |= {key: robot.observation[key] for key in images}
        ones = (1.0,) * self.num_actions
        return RobotSpec(
            name="+".join(self.names),
            embodiment="shared",
            observation=observation,
            action=ArraySpec(shape=(self.num_actions,), low=tuple(-one for one in ones), high=ones),
            action_kind=robot.action_kind,
            control_hz=robot.control_hz,
        )


class CanonicalArm:
    """One robot among the others."""

    def __init__(self, canonical_space: CanonicalSpace, name: str, robot: RobotSpec) -> None:
        of = canonical_space.embodiments[name]
        self.canonical_space, self.name, self.index, self.places = canonical_space, name, canonical_space.names.index(name), of.places
        self.keys = {key: of.rename.get(key, key) for key in canonical_space.sizes if key in of.observation}  # to its own
        here = f"robot '{robot.name}'"
        for key, own in self.keys.items():
            spec = robot.observation.get(own)
            if spec is None or spec.shape != (of.observation[key],) or spec.dtype != "float32":
                got = f"gives {spec.describe()}" if spec else "gives no such thing"
                hint = "" if spec else did_you_mean(own, robot.observation)
                raise SpecMismatch(
                    f"policy.embodiments.{name} says '{own}' has {of.observation[key]} numbers, but {here} {got}.{hint}"
                )
        if robot.action.shape != (of.num_actions,):
            raise SpecMismatch(
                f"policy.embodiments.{name} says {of.num_actions} actions, but {here} takes {robot.action.describe()}"
            )
        low, high = robot.action.bounds
        if not np.isfinite((low, high)).all():
            raise SpecMismatch(f"policy 'shared' needs a bounded action, but {here} gives no limits")
        self._center, self._scale = (low + high) / 2, np.maximum((high - low) / 2, 1e-6)
        self.one_hot = np.eye(len(canonical_space.names), dtype=np.float32)[self.index]

    def wide(self, key: str, values: Array) -> Array:
        padded = np.zeros((*values.shape[:-1], self.canonical_space.sizes[key]), values.dtype)
        padded[..., : values.shape[-1]] = values
        return padded

    def unit(self, actions: Array) -> Array:
        """Its own actions [..., a], from -1 to 1 within its limits."""
        return np.asarray((actions - self._center) / self._scale, np.float32)

    def pad_actions(self, actions: Array) -> Array:
        padded = np.zeros((*actions.shape[:-1], self.canonical_space.num_actions), np.float32)
        padded[..., self.places] = self.unit(actions)
        return padded

    def cut_actions(self, padded: Array) -> Array:
        return np.asarray(padded[..., self.places] * self._scale + self._center, np.float32)
