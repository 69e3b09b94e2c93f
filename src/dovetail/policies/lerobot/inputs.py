"""What ACT and Diffusion Policy read of a robot's observations, and the order of the axes. New policies take the robot's
own order; a checkpoint's axes and cameras are matched by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.core.errors import SpecMismatch, did_you_mean
from dovetail.core.specs import PolicySpec, RobotSpec
from dovetail.core.types import Array
from dovetail.policies.checkpoints.axes import ActionAxes, StateAxes, match_cameras
from dovetail.policies.lerobot.folder import Folder, feature_key, same_aspect
from dovetail.policies.lerobot.settings import LeRobotPolicyConfig

__all__ = ["ACTION", "CameraInput", "PolicyInputs", "VectorInput"]

STATE, ENVIRONMENT, ACTION = "state", "environment_state", "action"  # keys of the normalizer


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorInput:
    """Low-dimensional observations in one vector."""

    name: str  # key of the normalizer
    keys: tuple[str, ...]
    order: Array  # the place of each axis in the joined observations

    @property
    def size(self) -> int:
        return len(self.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraInput:
    name: str  # key of the normalizer
    key: str  # of the observation
    size: tuple[int, int]  # height and width that the network sees


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    state: tuple[
        VectorInput, ...
    ]  # together, in this order: one for each key of a new policy, one of a checkpoint
    environment: tuple[VectorInput, ...]
    cameras: tuple[CameraInput, ...]
    action_order: Array  # the robot's place of each axis of the network's actions

    @property
    def vectors(self) -> tuple[VectorInput, ...]:
        return (*self.state, *self.environment)

    @property
    def num_state(self) -> int:
        return sum(vector.size for vector in self.state)

    @property
    def num_environment(self) -> int:
        return sum(vector.size for vector in self.environment)

    def observation_keys(self) -> tuple[str, ...]:
        keys = [key for vector in self.vectors for key in vector.keys]
        return tuple(dict.fromkeys([*keys, *(camera.key for camera in self.cameras)]))

    @staticmethod
    def of_new(spec: PolicySpec) -> PolicyInputs:
        """Of a policy without a checkpoint: all low-dimensional inputs make the state."""
        if depth := [key for key, array in spec.observation.items() if array.is_depth]:
            raise SpecMismatch(
                f"policy '{spec.name}' has depth image '{depth[0]}' among its inputs, but it sees color only. Remove it "
                "from policy.inputs"
            )
        return PolicyInputs(
            state=tuple(
                VectorInput(name=key, keys=(key,), order=np.arange(array.shape[0]))
                for key, array in spec.observation.items()
                if not array.is_picture
            ),
            environment=(),
            cameras=tuple(
                CameraInput(name=f"images.{key}", key=key, size=(array.shape[0], array.shape[1]))
                for key, array in spec.observation.items()
                if array.is_image
            ),
            action_order=np.arange(spec.action.shape[0]),
        )

    @staticmethod
    def of_checkpoint(folder: Folder, config: LeRobotPolicyConfig, robot: RobotSpec) -> PolicyInputs:
        """Raise SpecMismatch if the robot lacks an input, or if sizes differ."""
        num_environment = folder.size(f"observation.{ENVIRONMENT}")
        if num_environment and not config.environment:
            raise SpecMismatch(
                f"{folder.path} reads observation.environment_state ({num_environment} axes). Name the robot's observations "
                "that make it in policy.environment"
            )

        def vectors(name: str, keys: tuple[str, ...], axes: tuple[str, ...] = ()) -> tuple[VectorInput, ...]:
            size = folder.size(f"observation.{name}")
            if not size and keys:
                names = ", ".join(keys)
                raise SpecMismatch(f"{folder.path} reads no observation.{name}, but the config names {names}")
            if not size:
                return ()
            found = StateAxes.of(robot, keys, axes, size=size)
            return (VectorInput(name=name, keys=found.keys, order=found.order),)

        action = ActionAxes.of(robot, config.action_axes, size=folder.size(ACTION), relative=())
        return PolicyInputs(
            state=vectors(STATE, config.state, config.state_axes),
            environment=vectors(ENVIRONMENT, config.environment),
            cameras=_cameras(folder, config, robot),
            action_order=action.order,
        )


def _cameras(folder: Folder, config: LeRobotPolicyConfig, robot: RobotSpec) -> tuple[CameraInput, ...]:
    sizes = folder.cameras
    matched = match_cameras(robot, config.images, cameras=tuple(sizes))
    if missing := [name for name in sizes if name not in matched]:
        ours = [key for key, spec in robot.observation.items() if spec.is_image]
        hint = did_you_mean(missing[0], ours) if ours else " The robot has no camera: set robot.images."
        raise SpecMismatch(
            f"{folder.path} needs camera '{missing[0]}'. Name a camera of robot '{robot.name}' in policy.images.{hint}"
        )
    features = {
        feature.removeprefix("observation.").removeprefix("images."): feature for feature in folder.features
    }
    cameras = []
    for name, key in matched.items():
        height, width = robot.observation[key].shape[:2]
        if not same_aspect((height, width), sizes[name]):
            raise SpecMismatch(
                f"camera '{key}' has {width}x{height} pixels, but {folder.path} was trained with {sizes[name][1]}x"
                f"{sizes[name][0]} of '{name}'. Use a camera of the same aspect ratio"
            )
        cameras.append(CameraInput(name=feature_key(features[name]), key=key, size=sizes[name]))
    return tuple(cameras)
