"""A tanh-squashed Gaussian over single actions, from low-dimensional observations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from dovetail.config.model import Config
from dovetail.core.errors import SpecMismatch, StoreError, did_you_mean
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.policies.networks import masked_mse, mlp
from dovetail.policies.normalizer import Normalizer

__all__ = ["GaussianMLP", "GaussianMLPConfig"]

LOG_STD_MIN, LOG_STD_MAX = -5.0, 1.0


class GaussianMLPConfig(Config):
    inputs: tuple[str, ...] = ()
    """Observation keys to look at; none: every low-dimensional one the robot gives."""
    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    history: dict[str, int] = Field(default_factory=dict)
    """Control ticks of history per key; a key not named is seen once."""


class GaussianMLP:
    """See the Policy and TrainablePolicy contracts."""

    Config: ClassVar[type[GaussianMLPConfig]] = GaussianMLPConfig

    def __init__(self, config: GaussianMLPConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        keys = config.inputs or tuple(k for k, s in robot.observation.items() if _is_low_dim(s))
        for key in (*keys, *config.history):
            if key not in robot.observation or not _is_low_dim(robot.observation[key]):
                low_dim = [k for k, s in robot.observation.items() if _is_low_dim(s)]
                raise SpecMismatch(
                    f"policy 'gaussian_mlp' wants input '{key}', but robot '{robot.name}' gives no such "
                    f"low-dimensional observation." + did_you_mean(key, low_dim)
                )
        if not robot.action.low or not all(np.isfinite((*robot.action.low, *robot.action.high))):
            raise SpecMismatch(
                f"policy 'gaussian_mlp' needs a bounded action, but robot '{robot.name}' gives no limits"
            )
        self._spec = PolicySpec(
            name="gaussian_mlp",
            observation={key: robot.observation[key] for key in keys},
            action=robot.action,
            action_kind=robot.action_kind,
            history={key: num for key, num in config.history.items() if num > 1},
        )
        low, high = robot.action.bounds
        self._center, self._scale = (low + high) / 2, np.maximum((high - low) / 2, 1e-6)
        self._normalizer = Normalizer({key: robot.observation[key].shape[0] for key in keys})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._actor = mlp((self.num_features, *config.hidden, 2 * robot.action.shape[0]))
        self._version = 0

    # ---- Policy: numpy in, numpy out

    @property
    def spec(self) -> PolicySpec:
        return self._spec

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with torch.no_grad():
            inputs = {
                key: torch.tensor(value) for key, value in observations.items()
            }  # a copy: views are read-only
            mean, log_std = self._distribution(self.features(inputs))
            if not context.deterministic:
                generator = None
                if context.seed is not None:
                    generator = torch.Generator().manual_seed(context.seed)
                mean = mean + log_std.exp() * torch.randn(mean.shape, generator=generator)
            normalized = torch.tanh(mean).numpy()
        actions = (normalized * self._scale + self._center).astype(np.float32)
        return ActionChunk(actions=actions[:, None, :], observed_ns=0, policy_version=self._version)

    def warmup(self) -> None:
        batch: dict[str, Array] = {}
        for key, spec in self._spec.observation.items():
            num = self._spec.history.get(key)
            batch[key] = np.zeros((1, *((num,) if num else ()), *spec.shape), np.float32)
            if num:
                batch[f"{key}/mask"] = np.ones((1, num), np.bool_)
        self.act(batch, ActContext(deterministic=True))

    def load(self, snapshot: WeightSnapshot) -> None:
        state = {k: torch.from_numpy(np.array(v)) for k, v in snapshot.components["actor"].items()}
        if not all(bool(torch.isfinite(v).all()) for v in state.values()):
            raise StoreError(f"weights version {snapshot.version} hold non-finite numbers; not loaded")
        try:
            self._actor.load_state_dict(state)
        except RuntimeError as error:
            raise StoreError(
                f"weights version {snapshot.version} do not fit policy 'gaussian_mlp': "
                + str(error).replace("\n", " ").replace("\t", " ")
            ) from error
        self._normalizer.load_arrays(snapshot.components["normalizer"])
        self._version = snapshot.version

    def reset(self) -> None:
        """Nothing is remembered between episodes."""

    # ---- TrainablePolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"actor": self._actor}

    def fit_normalizer(self, columns: Mapping[str, Array]) -> None:
        self._normalizer.fit(columns)

    @property
    def num_features(self) -> int:
        history = self._spec.history
        return sum(spec.shape[0] * history.get(key, 1) for key, spec in self._spec.observation.items())

    def features(self, observations: Mapping[str, Tensor]) -> Tensor:
        parts: list[Tensor] = []
        for key in self._spec.observation:
            values = self._normalizer(key, observations[key])
            if key in self._spec.history:
                values = values * observations[f"{key}/mask"][..., None]  # padding is nothing, not a zero reading
            parts.append(values.flatten(1))
        return torch.cat(parts, dim=1)

    def sample(self, features: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        mean, log_std = self._distribution(features)
        noise = torch.randn(mean.shape, generator=generator)
        raw = mean + log_std.exp() * noise
        # log N(raw) - log |d tanh / d raw|, the second term in its stable form
        log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_prob - 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))
        return torch.tanh(raw), log_prob.sum(-1)

    def imitation_loss(
        self,
        features: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        mean, _ = self._distribution(features)
        return masked_mse(torch.tanh(mean), actions.view_as(mean), None if mask is None else mask.view(-1))

    def normalize_actions(self, actions: Tensor) -> Tensor:
        center, scale = torch.from_numpy(self._center), torch.from_numpy(self._scale)
        return ((actions - center) / scale).clamp(-1.0, 1.0)

    def weights(self, components: Mapping[str, nn.Module] | None = None) -> Mapping[str, Mapping[str, Array]]:
        actor = (components or self.components)["actor"]
        arrays = {k: v.detach().numpy().copy() for k, v in actor.state_dict().items()}
        return {"actor": arrays, "normalizer": self._normalizer.to_arrays()}

    def _distribution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self._actor(features).chunk(2, dim=-1)
        # smooth limits: a hard clamp has no gradient to come back by
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (torch.tanh(log_std) + 1.0)
        return mean, log_std


def _is_low_dim(spec: ArraySpec) -> bool:
    return spec.dtype == "float32" and len(spec.shape) == 1
