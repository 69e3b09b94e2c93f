"""The canonical space of several kinds of arms: observations padded to the longest arm, actions scaled to [-1, 1].

    space = CanonicalSpace(embodiments, keys=("joint_pos",))
    arm = space.arm(robot)                     checks the config against the robot's spec
    arm.pad_observation("joint_pos", values)   [..., 6] -> [..., 7], padded with zeros
    arm.pad_actions(actions)                   [..., 6] in the arm's units -> [..., 8] from -1 to 1
    arm.cut_actions(chunk)                     and back

numpy only. The masks `space.observation_masks` and `space.action_masks` tell padding from values.
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

EMBODIMENT = "embodiment"  # the observation that tells which arm a row belongs to, one-hot


class EmbodimentConfig(Config):
    observation: dict[str, int] = Field(min_length=1)
    """Size of each observation key of this arm. Leave out keys that it does not have."""
    rename: dict[str, str] = Field(default_factory=dict)
    """The arm's own name of a key, if it differs."""
    num_actions: int = Field(ge=1)
    """Number of the arm's action axes."""
    axes: tuple[int, ...] = ()
    """The canonical axis of each of its axes, from 0, for example so that all grippers share one. Empty: the first ones."""
    grippers: tuple[int, ...] = ()
    """Which of its own axes, from 0, are grippers. Hi-ORS imitates their commands instead of their positions."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.axes and (len(self.axes) != self.num_actions or len(set(self.axes)) != self.num_actions):
            raise ValueError(f"axes should be {self.num_actions} different numbers, got {list(self.axes)}")
        if min((*self.axes, *self.grippers, 0)) < 0 or max(self.grippers, default=0) >= self.num_actions:
            raise ValueError("axes and grippers count from 0, and grippers should be below num_actions")
        if min(self.observation.values()) < 1:
            raise ValueError("observation sizes should be at least 1")
        return self

    @property
    def canonical_axes(self) -> list[int]:
        return list(self.axes or range(self.num_actions))


class CanonicalSpace:
    """The observations and actions of all embodiments together, with the masks of each."""

    def __init__(self, embodiments: Mapping[str, EmbodimentConfig], *, keys: tuple[str, ...] = ()) -> None:
        all_keys = dict.fromkeys(key for config in embodiments.values() for key in config.observation)
        configs = list(embodiments.values())
        self.embodiments, self.names = dict(embodiments), tuple(embodiments)
        self.sizes = {
            key: max(config.observation.get(key, 0) for config in configs)
            for key in keys or all_keys
            if key in all_keys
        }
        self.num_actions = 1 + max(axis for config in configs for axis in config.canonical_axes)
        self.action_masks = np.zeros((len(embodiments), self.num_actions), np.bool_)  # [E, A]
        self.grippers = np.zeros_like(self.action_masks)
        for row, config in enumerate(configs):
            self.action_masks[row, config.canonical_axes] = True
            self.grippers[row, [config.canonical_axes[axis] for axis in config.grippers]] = True
        self.observation_masks = {  # [E, N] per key
            key: np.array([np.arange(size) < config.observation.get(key, 0) for config in configs])
            for key, size in self.sizes.items()
        }

    def arm(self, robot: RobotSpec) -> CanonicalArm:
        for name in (robot.name, robot.embodiment):  # the name first: two arms of one embodiment may differ
            if name in self.embodiments:
                return CanonicalArm(self, name, robot)
        raise SpecMismatch(
            f"policy.embodiments has neither robot '{robot.name}' nor its embodiment '{robot.embodiment}'."
            + did_you_mean(robot.embodiment, self.names)
        )

    def spec(self, robot: RobotSpec, *, images: tuple[str, ...] = ()) -> RobotSpec:
        """One RobotSpec for all embodiments. The control rate, action kind and cameras are those of `robot`."""
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
    """Conversion between one robot and the canonical space."""

    def __init__(self, space: CanonicalSpace, name: str, robot: RobotSpec) -> None:
        config = space.embodiments[name]
        self.space, self.name, self.index = space, name, space.names.index(name)
        self.canonical_axes = config.canonical_axes
        # canonical key -> the robot's key
        self.keys = {key: config.rename.get(key, key) for key in space.sizes if key in config.observation}
        for key, own_key in self.keys.items():
            spec = robot.observation.get(own_key)
            if spec is None or spec.shape != (config.observation[key],) or spec.dtype != "float32":
                hint = "" if spec else did_you_mean(own_key, robot.observation)
                raise SpecMismatch(
                    f"policy.embodiments.{name} gives '{own_key}' {config.observation[key]} values, but robot "
                    f"'{robot.name}' has {spec.describe() if spec else 'no such observation'}.{hint}"
                )
        if robot.action.shape != (config.num_actions,):
            raise SpecMismatch(
                f"policy.embodiments.{name} has num_actions={config.num_actions}, but robot '{robot.name}' takes "
                f"{robot.action.describe()}"
            )
        low, high = robot.action.bounds
        if not np.isfinite((low, high)).all():
            raise SpecMismatch(f"policy 'shared' needs a bounded action, but robot '{robot.name}' has no limits")
        self.center, self.scale = (low + high) / 2, np.maximum((high - low) / 2, 1e-6)
        self.one_hot = np.eye(len(space.names), dtype=np.float32)[self.index]

    def pad_observation(self, key: str, values: Array) -> Array:
        padded = np.zeros((*values.shape[:-1], self.space.sizes[key]), values.dtype)
        padded[..., : values.shape[-1]] = values
        return padded

    def pad_actions(self, actions: Array) -> Array:
        padded = np.zeros((*actions.shape[:-1], self.space.num_actions), np.float32)
        padded[..., self.canonical_axes] = np.asarray((actions - self.center) / self.scale, np.float32)
        return padded

    def cut_actions(self, padded: Array) -> Array:
        return np.asarray(padded[..., self.canonical_axes] * self.scale + self.center, np.float32)
