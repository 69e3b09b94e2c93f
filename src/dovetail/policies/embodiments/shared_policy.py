"""One policy for several kinds of arms: a policy in the canonical space, with masks for what an arm does not have.

policy:
  type: shared
  policy: {type: flow, horizon: 8}
  embodiments:
    franka_panda: {observation: {joint_pos: 7}, num_actions: 8, axes: [0, 1, 2, 3, 4, 5, 6, 7]}
    arx_x5: {observation: {joint_pos: 6}, num_actions: 7, axes: [0, 1, 2, 3, 4, 5, 7]}

`SharedPolicy` is for one arm: its own observations in, its own actions out. `CanonicalPolicy` is for a learner that
trains on all arms at once (learn/mixed_replay.py). Both have the same networks and the same weights.

The inner policy gets the embodiment (one-hot), the observations normalized by that embodiment's statistics, and their
masks. Padding is 0 in the inputs. In the outputs it does not count in losses and log-densities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Generator, Tensor, nn

from dovetail.core.errors import SpecMismatch
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.components import ComponentConfig
from dovetail.policies.embodiments.canonical_space import (
    EMBODIMENT,
    CanonicalArm,
    CanonicalSpace,
)
from dovetail.policies.flows.flow import Flow
from dovetail.policies.flows.flow_actor import FlowActor
from dovetail.policies.gaussian_mlp import GaussianMLP
from dovetail.policies.normalizer import CLIP, MIN_STD, Normalizer
from dovetail.policies.random_draws import normal
from dovetail.policies.settings import InnerPolicy, SharedConfig

__all__ = ["CanonicalPolicy", "InnerPolicy", "SharedConfig", "SharedPolicy"]

_INNER: dict[str, type[Any]] = {"gaussian_mlp": GaussianMLP, "flow": Flow, "flow_actor": FlowActor}


class CanonicalPolicy(NetworkPolicy):
    """See the TrainablePolicy contract. Takes padded rows of all arms; observation `embodiment` tells the arm of a row."""

    def __init__(self, config: SharedConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        if not config.embodiments:
            raise SpecMismatch("policy 'shared' has no arms. Name them in policy.embodiments")
        inner = config.policy
        inputs = tuple(inner.config.inputs)
        images = tuple(key for key in inputs if key in robot.observation and robot.observation[key].is_picture)
        space = CanonicalSpace(config.embodiments, keys=tuple(key for key in inputs if key not in images))
        self.canonical_space, self.robot = space, space.spec(robot, images=images)
        masks = {_mask_key(key): ArraySpec(shape=(size,)) for key, size in space.sizes.items()}
        inner_robot = replace(self.robot, observation={**self.robot.observation, **masks})
        inner_inputs = (EMBODIMENT, *space.sizes, *masks, *(key for key in inputs if key not in space.sizes))
        inner_config = inner.config.model_copy(update={"inputs": inner_inputs})
        self._inner: GaussianMLP | Flow | FlowActor = _INNER[inner.name](
            inner_config, robot=inner_robot, seed=seed
        )
        self._inner.axis_masks = _AxisMasks(space)
        inner_spec = self._inner.spec
        spec = policy_spec("shared", self.robot, inputs=tuple(self.robot.observation), history={}, images=True)
        super().__init__(
            replace(
                spec,
                horizon=inner_spec.horizon,
                history=inner_spec.history,
                guidable=inner_spec.guidable,
                prompted=inner_spec.prompted,
            ),
            inner.config.components,
        )
        self._normalizer: _EmbodimentNormalizer = _EmbodimentNormalizer(space)

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return self._inner.components

    def to(self, device: torch.device) -> Self:
        self._inner.to(device)
        return super().to(device)

    @property
    def num_features(self) -> int:
        return self._inner.num_features

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        inputs = self._inner_inputs({key: torch.tensor(value) for key, value in observations.items()})
        chunk = self._inner.act({key: value.numpy() for key, value in inputs.items()}, context)
        return replace(chunk, policy_version=self._version)

    @property
    def encoder(self) -> nn.ModuleDict:
        return self._inner.encoder

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        return self._inner.features(self._inner_inputs(observations), encoder=encoder)

    def sample(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        return self._inner.sample(features, generator=generator)

    def imitation_loss(
        self, features: Tensor, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        return self._inner.imitation_loss(features, actions, mask, generator=generator)

    def _inner_inputs(self, observations: Mapping[str, Tensor]) -> dict[str, Tensor]:
        rows = observations[EMBODIMENT].argmax(-1)
        inputs = dict(observations)
        for key, masks in self.canonical_space.observation_masks.items():
            mask = torch.from_numpy(masks).to(rows.device)[rows]
            inputs[_mask_key(key)] = mask.float()
            values = self._normalizer.normalize(key, observations[key], rows)
            inputs[key] = torch.where(_like(mask, values), values, 0.0)
        return inputs


class SharedPolicy:
    """See the Policy and TrainablePolicy contracts. A CanonicalPolicy for one arm."""

    Config: ClassVar[type[SharedConfig]] = SharedConfig

    def __init__(self, config: SharedConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        self.canonical = CanonicalPolicy(config, robot=robot, seed=seed)
        self.arm: CanonicalArm = self.canonical.canonical_space.arm(robot)
        spec = self.canonical.spec
        # canonical key -> the robot's key
        self._keys = self.arm.keys | {key: key for key, array in spec.observation.items() if array.is_picture}
        self._axes = torch.tensor(self.arm.canonical_axes)
        self._center, self._scale = torch.from_numpy(self.arm.center), torch.from_numpy(self.arm.scale)
        self._spec = replace(
            spec,
            observation={key: robot.observation[key] for key in self._keys.values()},
            action=robot.action,
            history={self._keys[key]: num for key, num in spec.history.items() if key in self._keys},
        )

    # ---- Policy: numpy in, numpy out

    @property
    def spec(self) -> PolicySpec:
        return self._spec

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        padded = self._pad({key: torch.tensor(value) for key, value in observations.items()})
        if context.prefix is not None:
            context = replace(context, prefix=self.arm.pad_actions(context.prefix))
        chunk = self.canonical.act({key: value.numpy() for key, value in padded.items()}, context)
        return replace(chunk, actions=self.arm.cut_actions(chunk.actions))

    def warmup(self) -> None:
        NetworkPolicy.warmup(self)  # type: ignore[arg-type]

    def to(self, device: torch.device) -> Self:
        self.canonical.to(device)
        return self

    def reset(self) -> None:
        self.canonical.reset()

    def load(self, snapshot: WeightSnapshot) -> None:
        self.canonical.load(snapshot)

    def stage(self, snapshot: WeightSnapshot) -> Callable[[], None]:
        return self.canonical.stage(snapshot)

    # ---- TrainablePolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return self.canonical.components

    @property
    def component_configs(self) -> Mapping[str, ComponentConfig]:
        return self.canonical.component_configs

    def load_components(self, read: Callable[[str, str], Mapping[str, Array]]) -> None:
        self.canonical.load_components(read)

    def weights(self, components: Mapping[str, nn.Module] | None = None) -> Mapping[str, Mapping[str, Array]]:
        return self.canonical.weights(components)

    def component_arrays(self, name: str) -> Mapping[str, Array]:
        return self.canonical.component_arrays(name)

    def fit_normalizer(self, columns: Mapping[str, Array]) -> None:
        padded = {
            key: self.arm.pad_observation(key, np.asarray(columns[own])) for key, own in self.arm.keys.items()
        }
        num_rows = len(next(iter(padded.values())))
        self.canonical.fit_normalizer({**padded, EMBODIMENT: np.tile(self.arm.one_hot, (num_rows, 1))})

    @property
    def num_features(self) -> int:
        return self.canonical.num_features

    @property
    def encoder(self) -> nn.ModuleDict:
        return self.canonical.encoder

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        return self.canonical.features(self._pad(observations), encoder=encoder)

    def sample(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        actions, log_prob = self.canonical.sample(features, generator=generator)
        chunks = actions.view(len(actions), self._spec.horizon, -1)
        return chunks[..., self._axes].flatten(1), log_prob

    def imitation_loss(
        self, features: Tensor, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        padded = actions.new_zeros((*actions.shape[:-1], self.canonical.canonical_space.num_actions))
        padded[..., self._axes] = actions
        if mask is not None and mask.shape == actions.shape:
            padded_mask = torch.zeros_like(padded, dtype=torch.bool)
            padded_mask[..., self._axes] = mask
            mask = padded_mask
        return self.canonical.imitation_loss(features, padded, mask, generator=generator)

    def normalize_actions(self, actions: Tensor, observations: Mapping[str, Tensor] | None = None) -> Tensor:
        center, scale = self._center.to(actions.device), self._scale.to(actions.device)
        return ((actions - center) / scale).clamp(-1.0, 1.0)

    def _pad(self, observations: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The arm's observations in the canonical space."""
        some = next(iter(observations.values()))
        num_rows, device = len(some), some.device
        padded = {EMBODIMENT: torch.from_numpy(self.arm.one_hot).to(device).expand(num_rows, -1)}
        for key, spec in self.canonical.spec.observation.items():
            if key == EMBODIMENT:
                continue
            num_ticks, own_key = self.canonical.spec.history.get(key), self._keys.get(key)
            if own_key is None:  # this arm has no such observation
                shape = (num_rows, *((num_ticks,) if num_ticks else ()), *spec.shape)
                padded[key] = torch.zeros(shape, device=device)
                if num_ticks:
                    padded[f"{key}/mask"] = torch.zeros((num_rows, num_ticks), dtype=torch.bool, device=device)
                continue
            values = observations[own_key]
            missing = 0 if spec.is_picture else spec.shape[0] - values.shape[-1]
            padded[key] = nn.functional.pad(values, (0, missing)) if missing else values
            if num_ticks:
                padded[f"{key}/mask"] = observations[f"{own_key}/mask"]
        if "prompt" in observations:
            padded["prompt"] = observations["prompt"]
        return padded


class _AxisMasks:
    """See AxisMasks in policies/base.py. The features of a row begin with its embodiment."""

    def __init__(self, space: CanonicalSpace) -> None:
        self._masks = torch.from_numpy(space.action_masks)

    def rows(self, features: Tensor) -> Tensor:
        return features[:, : len(self._masks)].argmax(-1)

    def masks(self, features: Tensor) -> Tensor:
        return self._masks.to(features.device)[self.rows(features)]

    def randn(self, features: Tensor, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
        """Noise [..., A]. If all rows are of one arm, its noise does not depend on the number of canonical axes."""
        rows = self.rows(features)
        if bool((rows != rows[0]).any()):
            return normal(shape, generator=generator, device=features.device)
        axes = self._masks[int(rows[0])].nonzero()[:, 0].to(features.device)
        noise = torch.zeros(shape, device=features.device)
        noise[..., axes] = normal((*shape[:-1], len(axes)), generator=generator, device=features.device)
        return noise


class _EmbodimentNormalizer(Normalizer):
    """Separate statistics for each embodiment, [E, N] per key."""

    def __init__(self, space: CanonicalSpace) -> None:
        super().__init__(space.sizes)
        self._space, num_arms = space, len(space.names)
        self.mean = {k: np.zeros((num_arms, n), np.float32) for k, n in space.sizes.items()}
        self.std = {k: np.ones((num_arms, n), np.float32) for k, n in space.sizes.items()}

    def fit(self, columns: Mapping[str, Array]) -> None:
        """Fit the embodiments that occur in the rows; the others do not change."""
        embodiments = np.asarray(columns[EMBODIMENT]).argmax(-1)
        for key in self.mean:
            if key not in columns:
                continue
            mean, std = self.mean[key].copy(), self.std[key].copy()  # callers may hold the old arrays
            for row in np.unique(embodiments):
                mask = self._space.observation_masks[key][row]
                values = np.asarray(columns[key], np.float64)[embodiments == row].reshape(-1, len(mask))[:, mask]
                mean[row, mask] = values.mean(0)
                std[row, mask] = np.maximum(values.std(0), MIN_STD)
            self.mean[key], self.std[key] = mean, std

    def normalize(self, key: str, values: Tensor, rows: Tensor) -> Tensor:
        """`rows` [B] is the embodiment of each row."""
        mean, std = (torch.from_numpy(each[key]).to(rows.device)[rows] for each in (self.mean, self.std))
        return ((values - _like(mean, values)) / _like(std, values)).clamp(-CLIP, CLIP)


def _mask_key(key: str) -> str:
    return f"{key}.real"


def _like(by_row: Tensor, values: Tensor) -> Tensor:
    """Broadcast [B, N] to values [B, N] or [B, h, N]."""
    return by_row if values.ndim == 2 else by_row[:, None]
