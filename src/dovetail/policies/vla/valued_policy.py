"""Vision-language-action models with a log-density and a value, so that PPO can improve them (pi_RL, Chen et al., 2025).

While they explore, the path from noise to a chunk is noisy, and PPO's ratios are of paths (`flows.path_sampling`). A
deterministic chunk, and one that continues another, has no noise: evaluation sees the published sampler.

The value is a head on the features of the model: the mean of the text model's tokens, and the state. Its loss trains the
head alone.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.core.types import ActContext, Array
from dovetail.policies.actor_critic import value_mlp
from dovetail.policies.arrays import to_numpy
from dovetail.policies.flows.noisy_path import PathVelocity
from dovetail.policies.flows.path_sampling import NoisyPaths, PathNoise
from dovetail.policies.random_draws import normal, seeded_generator
from dovetail.policies.vla.networks.transformers import masked_mean
from dovetail.policies.vla.pi0_policy import Pi0Policy
from dovetail.policies.vla.pi05_policy import Pi05Policy
from dovetail.policies.vla.policy import VlaPolicy
from dovetail.policies.vla.sampler import Inputs
from dovetail.policies.vla.settings import (
    ValuedPi0Config,
    ValuedPi05Config,
    ValuedSmolVLAConfig,
    ValuedVlaConfig,
)
from dovetail.policies.vla.smolvla_policy import SmolVLAPolicy

__all__ = ["ValuedPi0Policy", "ValuedPi05Policy", "ValuedSmolVLAPolicy", "ValuedVla"]

_CRITIC, _PATH_NOISE = "critic", "path_noise"


class ValuedVla(VlaPolicy):
    """See the Policy and ValuedPolicy contracts. `drawn` is a path in the network's space: see PathSample.

    The network pads its actions with axes that the robot does not have. They have noise, as in training, but do not count
    in densities.
    """

    _config: ValuedVlaConfig

    # ---- networks beside the model

    @cached_property
    def _heads(self) -> dict[str, nn.Module]:
        config, heads = self._config, dict[str, nn.Module]()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            heads[_CRITIC] = value_mlp((self.num_features, *config.value_hidden, 1))
            if config.path_noise.type == "learned":
                heads[_PATH_NOISE] = PathNoise(
                    chunk=self._chunk_shape,
                    num_features=self.num_features,
                    hidden=config.value_hidden[0],
                    std_range=config.path_noise.std_range,
                )
        return {name: head.to(self._device) for name, head in heads.items()}

    @cached_property
    def _paths(self) -> NoisyPaths:
        config, std = self._config, self._heads.get(_PATH_NOISE)
        assert std is None or isinstance(std, PathNoise)
        return NoisyPaths(
            config.path_noise,
            chunk_shape=self._chunk_shape,
            num_steps=config.num_flow_steps or self._setup.checkpoint.sizes.num_flow_steps,
            std=std,
            num_axes=self._setup.action.size,
        )

    @property
    def _chunk_shape(self) -> tuple[int, int]:
        sizes = self._setup.checkpoint.sizes
        return sizes.horizon, sizes.action_size

    @property
    def _added(self) -> dict[str, nn.Module]:
        return {**super()._added, **self._heads}

    # ---- Policy: numpy in, numpy out

    def _draw(self, inputs: Inputs, state: Array, context: ActContext) -> tuple[Tensor, dict[str, Array]]:
        if context.deterministic or context.prefix is not None:
            return super()._draw(inputs, state, context)
        generator = seeded_generator(context.seed)
        with torch.inference_mode(False), torch.no_grad():
            prefix, features = self._read(inputs)
            sample = self._paths.draw(
                self._path_velocity(prefix),
                features,
                randn=lambda shape: normal(shape, generator=generator, device=features.device),
                generator=generator,
            )
            extras = {"drawn": sample.drawn, "log_prob": sample.log_prob, "value": self._value(features)}
        return sample.chunk, {name: to_numpy(values) for name, values in extras.items()}

    # ---- ValuedPolicy: torch

    @property
    def num_drawn(self) -> int:
        return self._paths.num_drawn

    def value(self, features: Any) -> Tensor:
        inputs = self._network_inputs(features)
        with torch.no_grad(), self.network.run_layer.precision(inputs.state.device):
            summary = self.network(self.network.summary, *inputs[:-1])
        return self._value(_head_inputs(summary, inputs.state))

    def evaluate_actions(self, features: Any, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_prob, read = self.network(self._density, self._network_inputs(features), drawn)
        return log_prob, self._paths.entropy(read, drawn), self._value(read)

    def _density(self, inputs: Inputs, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """The log-density of a path, and the inputs of the heads."""
        prefix, read = self._read(inputs)
        return self._paths.density(self._path_velocity(prefix), read, drawn), read

    def _read(self, inputs: Inputs) -> tuple[Any, Tensor]:
        """What the actions attend to, and the inputs of the heads."""
        with self.network.run_layer.precision(inputs.state.device):
            prefix, *embeddings = self.network.prefix_and_embeddings(*inputs[:-1])
        return prefix, _head_inputs(masked_mean(*embeddings), inputs.state)

    def _value(self, features: Tensor) -> Tensor:
        value: Tensor = self._heads[_CRITIC](features)
        return value.squeeze(-1)

    def _path_velocity(self, prefix: Any) -> PathVelocity:
        """Paths count time from noise to actions, and the network the other way."""
        network = self.network

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            with network.run_layer.precision(x.device):
                return -network.velocity(x, network.embed_times(1.0 - t), prefix)

        return velocity


def _head_inputs(summary: Tensor, state: Tensor) -> Tensor:
    """[B, W + S]. The text model's features have any scale, so they are normalized; no gradient flows back."""
    summary = summary.detach().float()
    return torch.cat((functional.layer_norm(summary, summary.shape[1:]), state), dim=1)


class ValuedPi0Policy(ValuedVla, Pi0Policy):
    Config = ValuedPi0Config


class ValuedPi05Policy(ValuedVla, Pi05Policy):
    Config = ValuedPi05Config


class ValuedSmolVLAPolicy(ValuedVla, SmolVLAPolicy):
    Config: ClassVar = ValuedSmolVLAConfig
