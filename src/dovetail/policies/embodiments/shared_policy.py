"""One policy for arms of different sizes: a policy wrapped in a policy, with masks where an arm has nothing.

policy:
  type: shared
  policy: {type: flow, horizon: 8}
  embodiments:
    franka_panda: {observation: {joint_pos: 7}, num_actions: 8, axes: [0, 1, 2, 3, 4, 5, 6, 7]}
    arx_x5: {observation: {joint_pos: 6}, num_actions: 7, axes: [0, 1, 2, 3, 4, 5, 7]}

`SharedPolicy` is what one arm sees of it: its own observations in, its own actions out. `CanonicalPolicy` is what a learner sees that
trains on all arms at once (learn/mixing.py). Both have the same networks, and so the same weights.

The networks are told whose row it is, what was seen, standardised by that arm's own statistics, and which of it is real.
What is not real is 0 on the way in, and on the way out counts for nothing: not in a loss, not in a log-density.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema, to_json
from torch import Tensor, nn

from dovetail.config.model import Config
from dovetail.core.errors import SpecMismatch, did_you_mean
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.embodiments.canonical_space import EMBODIMENT, CanonicalArm, CanonicalSpace, EmbodimentConfig
from dovetail.policies.flows.flow import Flow
from dovetail.policies.flows.flow_actor import FlowActor
from dovetail.policies.gaussian_mlp import GaussianMLP
from dovetail.policies.normalizer import CLIP, MIN_STD, Normalizer
from dovetail.policies.components import ComponentConfig

__all__ = ["CanonicalPolicy", "Inner", "SharedPolicy", "SharedConfig"]

_INNER: dict[str, type[Any]] = {"gaussian_mlp": GaussianMLP, "flow": Flow, "flow_actor": FlowActor}


@dataclass(frozen=True, slots=True)
class Inner:
    """The policy inside, by name, with its validated config."""

    name: str
    config: Any

    @staticmethod
    def parse(data: Any) -> Inner:
        if isinstance(data, Inner):
            return data
        rest = {"type": data} if isinstance(data, str) else dict(data) if isinstance(data, Mapping) else {}
        name = str(rest.pop("type", "")).replace("-", "_")
        if name not in _INNER:
            hint = did_you_mean(name, _INNER).strip()
            raise PydanticCustomError(
                "inner", "should have the type of a policy that arms can share. {hint}", {"hint": hint}
            )
        return Inner(name, _INNER[name].Config.model_validate_json(to_json(rest), strict=True))

    @staticmethod
    def model_of(data: Any) -> type[Config] | None:
        """The model that reads it, for saying what it would have accepted."""
        inner = _INNER.get(data.get("type", "")) if isinstance(data, Mapping) else None
        return inner.Config if inner else None

    def to_plain(self) -> dict[str, Any]:
        return {"type": self.name, **self.config.model_dump(mode="json")}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(cls.to_plain)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "object", "properties": {"type": {"enum": list(_INNER)}}, "required": ["type"]}


class SharedConfig(Config):
    policy: Inner
    """The policy that they share: a type, and its settings. Inputs and history go by the names below."""
    embodiments: dict[str, EmbodimentConfig] = Field(default_factory=dict)
    """The arms, by the robot's name or embodiment; those to come may be among them, for the sizes follow from all. None: the
    run's own."""


class CanonicalPolicy(NetworkPolicy):
    """See the TrainablePolicy contract. Rows of any arm, padded; observation `embodiment` says whose they are."""

    def __init__(self, config: SharedConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        if not config.embodiments:
            raise SpecMismatch("policy 'shared' should know its arms: name them in policy.embodiments")
        inner = config.policy
        wanted = tuple(inner.config.inputs)
        images = tuple(key for key in wanted if key in robot.observation and robot.observation[key].is_image)
        self.canonical_space = CanonicalSpace(config.embodiments, keys=tuple(key for key in wanted if key not in images))
        self.robot = self.canonical_space.spec(robot, images=images)
        real = {_real(key): ArraySpec(shape=(size,)) for key, size in self.canonical_space.sizes.items()}
        body = replace(self.robot, observation={**self.robot.observation, **real})
        inputs = (EMBODIMENT, *self.canonical_space.sizes, *real, *(key for key in wanted if key not in self.canonical_space.sizes))
        self._inner = _INNER[inner.name](inner.config.model_copy(update={"inputs": inputs}), robot=body, seed=seed)
        self._inner.axes = _Axes(self.canonical_space)
        made: PolicySpec = self._inner.spec
        spec = policy_spec("shared", self.robot, inputs=tuple(self.robot.observation), history={}, images=True)
        super().__init__(
            replace(
                spec, horizon=made.horizon, history=made.history, guidable=made.guidable, prompted=made.prompted
            ),
            inner.config.components,
        )
        self._normalizer: _ArmStatistics = _ArmStatistics(self.canonical_space)

    @property
    def components(self) -> Mapping[str, nn.Module]:
        modules: Mapping[str, nn.Module] = self._inner.components
        return modules

    @property
    def num_features(self) -> int:
        return int(self._inner.num_features)

    @property
    def version(self) -> int:
        return self._version

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        seen = self._told({key: torch.tensor(value) for key, value in observations.items()})
        chunk: ActionChunk = self._inner.act({key: value.numpy() for key, value in seen.items()}, context)
        return replace(chunk, policy_version=self._version)

    @property
    def encoder(self) -> nn.ModuleDict:
        encoder: nn.ModuleDict = self._inner.encoder
        return encoder

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        features: Tensor = self._inner.features(self._told(observations), encoder=encoder)
        return features

    def sample(self, features: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        sample: tuple[Tensor, Tensor] = self._inner.sample(features, generator=generator)
        return sample

    def imitation_loss(
        self,
        features: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        loss: Tensor = self._inner.imitation_loss(features, actions, mask, generator=generator)
        return loss

    def _told(self, observations: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the policy inside sees."""
        rows = observations[EMBODIMENT].argmax(-1)
        told = dict(observations)
        for key, real in self.canonical_space.real.items():
            there = torch.from_numpy(real)[rows]
            told[_real(key)] = there.float()
            values = self._normalizer.of_rows(key, observations[key], rows)
            told[key] = torch.where(_beside(there, values), values, 0.0)
        return told


class SharedPolicy:
    """See the Policy and TrainablePolicy contracts: one arm's side of a CanonicalPolicy policy."""

    Config: ClassVar[type[SharedConfig]] = SharedConfig

    def __init__(self, config: SharedConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        self.canonical = CanonicalPolicy(config, robot=robot, seed=seed)
        self.arm: CanonicalArm = self.canonical.canonical_space.arm(robot)
        whole, own = self.canonical.spec, dict(self.arm.keys)
        own |= {key: key for key, spec in whole.observation.items() if spec.is_image}
        self._own = own
        self._places = torch.tensor(self.arm.places)
        low, high = robot.action.bounds
        self._center = torch.from_numpy((low + high) / 2)
        self._scale = torch.from_numpy(np.maximum((high - low) / 2, 1e-6))
        self._spec = replace(
            whole,
            observation={name: robot.observation[name] for name in own.values()},
            action=robot.action,
            history={own[key]: num for key, num in whole.history.items() if key in own},
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

    def reset(self) -> None:
        self.canonical.reset()

    def load(self, snapshot: WeightSnapshot) -> None:
        self.canonical.load(snapshot)

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

    def fit_normalizer(self, columns: Mapping[str, Array]) -> None:
        wide = {key: self.arm.wide(key, np.asarray(columns[own])) for key, own in self.arm.keys.items()}
        num_rows = len(next(iter(wide.values())))
        self.canonical.fit_normalizer({**wide, EMBODIMENT: np.tile(self.arm.one_hot, (num_rows, 1))})

    @property
    def num_features(self) -> int:
        return self.canonical.num_features

    @property
    def encoder(self) -> nn.ModuleDict:
        return self.canonical.encoder

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        return self.canonical.features(self._pad(observations), encoder=encoder)

    def sample(self, features: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        actions, log_prob = self.canonical.sample(features, generator=generator)
        chunks = actions.view(len(actions), self._spec.horizon, -1)
        return chunks[..., self._places].flatten(1), log_prob

    def imitation_loss(
        self,
        features: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        padded = actions.new_zeros((*actions.shape[:-1], self.canonical.canonical_space.num_actions))
        padded[..., self._places] = actions
        return self.canonical.imitation_loss(features, padded, mask, generator=generator)

    def normalize_actions(self, actions: Tensor) -> Tensor:
        return ((actions - self._center) / self._scale).clamp(-1.0, 1.0)

    def _pad(self, observations: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One arm's observations as those of any."""
        num_rows = len(next(iter(observations.values())))
        padded = {EMBODIMENT: torch.from_numpy(self.arm.one_hot).expand(num_rows, -1)}
        for key, spec in self.canonical.spec.observation.items():
            if key == EMBODIMENT:
                continue
            ticks, own = self.canonical.spec.history.get(key), self._own.get(key)
            if own is None:  # it has no such thing
                padded[key] = torch.zeros((num_rows, *((ticks,) if ticks else ()), *spec.shape))
                if ticks:
                    padded[f"{key}/mask"] = torch.zeros((num_rows, ticks), dtype=torch.bool)
                continue
            values = observations[own]
            missing = 0 if spec.is_image else spec.shape[0] - values.shape[-1]
            padded[key] = nn.functional.pad(values, (0, missing)) if missing else values
            if ticks:
                padded[f"{key}/mask"] = observations[f"{own}/mask"]
        if "prompt" in observations:
            padded["prompt"] = observations["prompt"]
        return padded


class _Axes:
    """Which axes of the common action are real: the features of a row begin with whose it is."""

    def __init__(self, canonical_space: CanonicalSpace) -> None:
        self._masks = torch.from_numpy(canonical_space.action_masks)

    def rows(self, features: Tensor) -> Tensor:
        return features[:, : len(self._masks)].argmax(-1)

    def real(self, features: Tensor) -> Tensor:
        return self._masks[self.rows(features)]

    def randn(self, features: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Noise in which an arm's own share does not depend on how many axes others have, where all rows are its own."""
        rows = self.rows(features)
        if bool((rows != rows[0]).any()):
            return torch.randn(shape, generator=generator)
        places = self._masks[rows[0]].nonzero()[:, 0]
        noise = torch.zeros(shape)
        noise[..., places] = torch.randn((*shape[:-1], len(places)), generator=generator)
        return noise


class _ArmStatistics(Normalizer):
    """With statistics of each arm's own, [E, N] of each key."""

    def __init__(self, canonical_space: CanonicalSpace) -> None:
        super().__init__(canonical_space.sizes)
        self._canonical_space, num_arms = canonical_space, len(canonical_space.names)
        self.mean = {k: np.zeros((num_arms, n), np.float32) for k, n in canonical_space.sizes.items()}
        self.std = {k: np.ones((num_arms, n), np.float32) for k, n in canonical_space.sizes.items()}

    def fit(self, columns: Mapping[str, Array]) -> None:
        """From rows of any arms; of those that have none, nothing changes."""
        whose = np.asarray(columns[EMBODIMENT]).argmax(-1)
        for key in self.mean:
            if key not in columns:
                continue
            for row in np.unique(whose):
                there = self._canonical_space.real[key][row]
                values = np.asarray(columns[key], np.float64)[whose == row].reshape(-1, len(there))[:, there]
                self.mean[key], self.std[key] = (
                    self.mean[key].copy(),
                    self.std[key].copy(),
                )  # somebody may hold them
                self.mean[key][row, there] = values.mean(0)
                self.std[key][row, there] = np.maximum(values.std(0), MIN_STD)

    def of_rows(self, key: str, values: Tensor, rows: Tensor) -> Tensor:
        mean, std = (torch.from_numpy(of[key])[rows] for of in (self.mean, self.std))
        return ((values - _beside(mean, values)) / _beside(std, values)).clamp(-CLIP, CLIP)


def _real(key: str) -> str:
    return f"{key}.real"


def _beside(of_rows: Tensor, values: Tensor) -> Tensor:
    """[B, N] beside [B, N] or [B, h, N]."""
    return of_rows if values.ndim == 2 else of_rows[:, None]
