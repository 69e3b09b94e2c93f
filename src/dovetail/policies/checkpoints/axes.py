"""How a robot's observations and actions correspond to those of a checkpoint. numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.core.errors import SpecMismatch, did_you_mean
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array

__all__ = ["ActionAxes", "StateAxes", "camera_name", "match_cameras"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAxes:
    """The state [B, S] in the checkpoint's order, from observations."""

    keys: tuple[str, ...]
    order: Array  # the robot's place of each axis

    @staticmethod
    def of(robot: RobotSpec, keys: Sequence[str], names: Sequence[str], *, size: int) -> StateAxes:
        """Raise SpecMismatch unless there are `size` axes, which is how many the checkpoint's statistics have."""
        low_dim = {key: spec for key, spec in robot.observation.items() if _is_low_dim(spec)}
        for key in keys:
            if key not in low_dim:
                raise SpecMismatch(
                    f"policy.state names '{key}', which is no low-dimensional observation of robot '{robot.name}'."
                    + did_you_mean(key, low_dim)
                )
        chosen = tuple(keys) or tuple(low_dim)
        ours = [f"{key}.{name}" for key in chosen for name in _axis_names(low_dim[key])]
        order = _order(ours, names, setting="policy.state_axes", owner=f"state of robot '{robot.name}'")
        if len(order) != size:
            sizes = ", ".join(f"{key} {low_dim[key].shape[0]}" for key in chosen)
            raise SpecMismatch(
                f"the checkpoint has statistics of {size} state axes, but robot '{robot.name}' gives {len(order)} "
                f"({sizes}). Choose observations with policy.state, or statistics of this robot with policy.stats"
            )
        return StateAxes(keys=chosen, order=order)

    def read(self, observations: Mapping[str, Array]) -> Array:
        joined = np.concatenate([observations[key] for key in self.keys], axis=1)
        return np.asarray(joined[:, self.order], np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionAxes:
    """Actions [B, H, A] between the checkpoint's order and the robot's. Relative ones are offsets from the state."""

    order: Array  # the robot's place of each of the checkpoint's axes
    relative: Array  # bool [A], in the checkpoint's order

    @staticmethod
    def of(robot: RobotSpec, names: Sequence[str], *, size: int, relative: Sequence[str]) -> ActionAxes:
        ours = list(robot.action.names) or [f"axis{i}" for i in range(robot.action.shape[0])]
        order = _order(ours, names, setting="policy.action_axes", owner=f"action of robot '{robot.name}'")
        if len(order) != size or len(order) != len(ours):
            raise SpecMismatch(
                f"the checkpoint has statistics of {size} action axes, but robot '{robot.name}' has {len(ours)} "
                f"({', '.join(ours[:8])}). Use statistics of this robot (policy.stats) or another robot"
            )
        for name in relative:
            if name not in ours:
                hint = did_you_mean(name, ours)
                raise SpecMismatch(f"policy.relative_axes names '{name}', which robot '{robot.name}' lacks.{hint}")
        return ActionAxes(order=order, relative=np.array([ours[place] in relative for place in order], np.bool_))

    def to_robot(self, actions: Array, state: Array) -> Array:
        """Actions of the checkpoint, [B, H, A], at this state [B, S]."""
        found = np.empty_like(actions)
        found[..., self.order] = actions + self._offset(state)
        return found

    def to_checkpoint(self, actions: Array, state: Array) -> Array:
        return np.asarray(actions[..., self.order] - self._offset(state), np.float32)

    def _offset(self, state: Array) -> Array:
        size = len(self.order)
        padded = np.zeros((len(state), size), np.float32)
        num = min(size, state.shape[1])
        padded[:, :num] = state[:, :num]
        return np.asarray(np.where(self.relative, padded, 0.0)[:, None], np.float32)


def camera_name(feature: str) -> str:
    """The name of a camera from LeRobot's name of the feature: observation.images.top, or observation.image2."""
    return feature.removeprefix("observation.").removeprefix("images.")


def match_cameras(
    robot: RobotSpec, images: Mapping[str, str], *, cameras: Sequence[str], max_absent: int | None = None
) -> dict[str, str]:
    """Camera of the checkpoint: camera of the robot, in the checkpoint's order. Raise SpecMismatch for unknown ones, and
    if more than `max_absent` cameras of the checkpoint are not named."""
    wanted = {camera_name(name): ours for name, ours in images.items()}
    ours = [key for key, spec in robot.observation.items() if spec.is_image]
    for name, key in wanted.items():
        if name not in cameras:
            raise SpecMismatch(
                f"policy.images names '{name}', which the checkpoint does not have.{did_you_mean(name, cameras)}"
            )
        if key in robot.observation and robot.observation[key].is_depth:
            raise SpecMismatch(
                f"policy.images maps '{name}' to the depth image '{key}', but the model sees color only. Name a color camera"
            )
        if key not in ours:
            hint = did_you_mean(key, ours) or " It has no camera: set robot.images."
            raise SpecMismatch(
                f"policy.images maps '{name}' to '{key}', but robot '{robot.name}' has no such camera.{hint}"
            )
    absent = [name for name in cameras if name not in wanted]
    if max_absent is not None and len(absent) > max_absent:
        raise SpecMismatch(
            f"policy.images lacks {', '.join(absent)}, but the checkpoint was trained with at most {max_absent} absent "
            "cameras (empty_cameras). Name a camera of the robot for each"
        )
    return {name: wanted[name] for name in cameras if name in wanted}


def _order(ours: Sequence[str], names: Sequence[str], *, setting: str, owner: str) -> Array:
    """The place of each name. Without names, the order is the same."""
    if not names:
        return np.arange(len(ours))
    if len(set(names)) != len(names):
        raise SpecMismatch(f"{setting} names an axis twice: {', '.join(names)}")
    order = []
    for name in names:
        places = [place for place, own in enumerate(ours) if name in (own, own.partition(".")[2])]
        if len(places) != 1:
            what = "is the name of several axes" if places else "is not an axis"
            raise SpecMismatch(f"{setting} names '{name}', which {what} of the {owner}.{did_you_mean(name, ours)}")
        order += places
    return np.array(order)


def _axis_names(spec: ArraySpec) -> tuple[str, ...]:
    return spec.names or tuple(map(str, range(spec.shape[0])))


def _is_low_dim(spec: ArraySpec) -> bool:
    return spec.dtype == "float32" and len(spec.shape) == 1
