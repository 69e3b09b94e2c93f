"""Base class of ACT and Diffusion Policy: observations and actions between a robot and a network with LeRobot's layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import torch
from pydantic import ValidationError
from torch import Generator, Tensor
from torch.nn import functional

from dovetail.core.errors import CheckpointError, UsageError
from dovetail.core.specs import PolicySpec, RobotSpec
from dovetail.core.types import ActionChunk, Array, WeightSnapshot
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.components import NORMALIZER, ComponentConfig, ObservationStatistics
from dovetail.policies.lerobot.folder import Folder, open_folder
from dovetail.policies.lerobot.inputs import ACTION, CameraInput, PolicyInputs, VectorInput
from dovetail.policies.lerobot.settings import LeRobotPolicyConfig
from dovetail.policies.normalizer import CLIP, Normalizer

__all__ = ["LeRobotPolicy", "network_config"]

_IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of pixels from 0 to 1
_IMAGENET_STD = (0.229, 0.224, 0.225)
_Config = TypeVar("_Config", bound=LeRobotPolicyConfig)


class LeRobotPolicy(NetworkPolicy):
    """The normalizer also has statistics of `images.NAME` (channels from 0 to 1) and of `action`. That of a checkpoint has
    `state` and `environment_state`, in the checkpoint's order, instead of the robot's observations.

    The actions of a new policy are normalized by the robot's limits, as everywhere. Those of a checkpoint are normalized by
    its statistics, without limits.
    """

    name: ClassVar[str]

    def __init__(
        self,
        config: LeRobotPolicyConfig,
        folder: Folder | None,
        *,
        robot: RobotSpec,
        horizon: int,
        num_observations: int = 1,
        guidable: bool = False,
    ) -> None:
        self._folder, self._given = folder, config

        def make_spec(keys: tuple[str, ...]) -> PolicySpec:
            spec = policy_spec(self.name, robot, inputs=keys, history={}, images=True, horizon=horizon)
            history = dict.fromkeys(spec.observation, num_observations)
            return policy_spec(
                self.name,
                robot,
                inputs=tuple(spec.observation),
                history=history,
                images=True,
                horizon=horizon,
                guidable=guidable,
            )

        if folder is None:
            spec = make_spec(config.inputs)
            self._inputs = PolicyInputs.of_new(spec)
        else:
            self._inputs = PolicyInputs.of_checkpoint(folder, config, robot)
            spec = make_spec(self._inputs.observation_keys())
        super().__init__(spec, config.components)
        self._has_weights = folder is None
        self._normalizer = self._make_normalizer()
        self._orders: dict[torch.device, Tensor] = {}

    def _make_normalizer(self) -> Normalizer:
        inputs = self._inputs
        sizes = {vector.name: vector.size for vector in inputs.vectors}
        cameras = [camera.name for camera in inputs.cameras]
        normalizer = Normalizer(
            {**sizes, **dict.fromkeys(cameras, 3), ACTION: len(inputs.action_order)},
            fixed=(*cameras, ACTION),
            clip=CLIP if self._folder is None else float("inf"),
        )
        for camera in cameras:
            normalizer.set(camera, mean=_IMAGENET_MEAN, std=_IMAGENET_STD)
        normalizer.mean[ACTION], normalizer.std[ACTION] = self._center.copy(), self._scale.copy()
        return normalizer

    # ---- weights

    def _start_from_checkpoint(self) -> None:
        """Let every component start from the folder. Call it when the components exist."""
        folder, given = self._folder, self._given.components
        if folder is None:
            return
        source = {name: ComponentConfig(checkpoint=str(folder.path)) for name in (*self.components, NORMALIZER)}
        for name, config in given.items():
            base = source.get(name, config)
            source[name] = config if config.checkpoint else base.model_copy(update={"frozen": config.frozen})
        self._component_configs = source

    def load_components(self, read: Callable[[str, str], Mapping[str, Array]]) -> None:
        super().load_components(read)
        self._has_weights = True

    def load(self, snapshot: WeightSnapshot) -> None:
        super().load(snapshot)
        self._has_weights = True

    def fit_normalizer(self, columns: Mapping[str, Array]) -> None:
        if not self._is_frozen(NORMALIZER):
            self._normalizer.fit(
                {
                    vector.name: np.concatenate([columns[key] for key in vector.keys], axis=1)[:, vector.order]
                    for vector in self._inputs.vectors
                }
            )

    def set_normalization(self, statistics: Mapping[str, ObservationStatistics]) -> None:
        if self._folder is not None:
            raise UsageError("policy.normalization is for new policies; the checkpoint has its own. Remove it")
        super().set_normalization(statistics)

    # ---- observations

    def _vector(self, vector: VectorInput, observations: Mapping[str, Tensor]) -> Tensor:
        """A normalized vector, [B, S] or [B, n, S] with history."""
        joined = torch.cat([self._filled(observations, key) for key in vector.keys], dim=-1)
        return self._normalizer(vector.name, joined[..., torch.as_tensor(vector.order, device=joined.device)])

    def _pixels(self, camera: CameraInput, observations: Mapping[str, Tensor]) -> Tensor:
        """Normalized images [N, 3, H, W] of one camera; N counts the history too."""
        frames = self._filled(observations, camera.key).flatten(0, -4)
        images = self._normalizer(camera.name, frames.float() / 255.0).permute(0, 3, 1, 2)
        if images.shape[-2:] != camera.size:
            images = functional.interpolate(images, size=camera.size, mode="bilinear", antialias=True)
        return images

    def _filled(self, observations: Mapping[str, Tensor], key: str) -> Tensor:
        """Values whose missing history repeats the first known one, as LeRobot does."""
        assert self._has_weights, "a policy with a checkpoint needs load_components"
        values = observations[key]
        if key not in self._spec.history:
            return values
        mask = observations[f"{key}/mask"]
        steps = torch.arange(mask.shape[1], device=mask.device)
        chosen = torch.maximum(steps, mask.int().argmax(dim=1)[:, None])
        return values[torch.arange(len(values), device=values.device)[:, None], chosen]

    # ---- actions

    def normalize_actions(self, actions: Tensor, observations: Mapping[str, Tensor] | None = None) -> Tensor:
        normalized = self._normalizer(ACTION, actions[..., self._order(actions.device)])
        return normalized.clamp(-1.0, 1.0) if self._folder is None else normalized

    def _chunk(
        self, normalized: Tensor, inputs: Mapping[str, Tensor] | None = None, **extras: Tensor
    ) -> ActionChunk:
        """Convert normalized actions [B, H, A] of the network to the robot's units, order and limits."""
        found = self._normalizer.revert(ACTION, normalized).cpu().numpy()
        actions = np.empty_like(found)
        actions[..., self._inputs.action_order] = found
        low, high = self._spec.action.bounds
        return ActionChunk(
            actions=np.clip(actions, low, high).astype(np.float32),
            observed_ns=0,
            policy_version=self._version,
            extras={name: value.cpu().numpy() for name, value in extras.items()},
        )

    def _order(self, device: torch.device) -> Tensor:
        if device not in self._orders:
            self._orders[device] = torch.as_tensor(self._inputs.action_order, device=device)
        return self._orders[device]

    def sample(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        raise UsageError(
            f"policy '{self.name}' cannot compute the density of its actions, which this algorithm needs. Train it with "
            "algorithm 'imitation', 'hg_dagger' or 'hi_ors'"
        )


def network_config(config: _Config, *, policy: str) -> tuple[_Config, Folder | None]:
    """The settings of the network, and the folder that they come from if there is one."""
    if config.checkpoint is None:
        return config, None
    folder = open_folder(Path(config.checkpoint).expanduser(), policy=policy)
    chosen = {}
    for name in type(config).model_fields:  # scheduler and steps may be chosen; what is null comes from the folder
        if name in folder.settings and (name in config.NETWORK or getattr(config, name) is None):
            chosen[name] = folder.settings[name]
        elif name not in ("checkpoint", "images", "state", "environment", "state_axes", "action_axes"):
            chosen[name] = getattr(config, name)
    try:
        return type(config).model_validate(chosen), folder
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise CheckpointError(
            f"{folder.path}/config.json has an option that is unknown here: {where or 'network'} {problem['msg']}"
        ) from error
