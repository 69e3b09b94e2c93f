"""A flow over action chunks with a log-density and a value function, so that PPO can improve a cloned flow (pi_RL, Chen et
al., 2025).

While it explores, the path from noise to a chunk is noisy, and PPO's ratios are of paths. Two kinds of noise: Flow-SDE has
the same distribution of chunks as the cloned flow; Flow-Noise learns how much noise each observation needs. A deterministic
chunk has none of it: evaluation sees the plain flow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.actor_critic import value_mlp
from dovetail.policies.flows.flow import Flow, FlowConfig
from dovetail.policies.flows.noisy_path import (
    PathVelocity,
    StepNoise,
    flow_sde_sigma,
    noisy_path,
    one_noisy_step,
    path_density,
    sde_steps,
    step_density,
    velocity_plus_noise,
)
from dovetail.policies.networks import NUM_TIME_FREQUENCIES, mlp, time_embedding
from dovetail.policies.random_draws import integers, seeded_generator
from dovetail.policies.settings import ValuedFlowConfig
from dovetail.policies.tanh_gaussian import soft_clamp

__all__ = ["PathNoise", "ValuedFlow", "ValuedFlowConfig"]

_NORMAL_ENTROPY = 0.5 + 0.5 * math.log(2.0 * math.pi)  # of N(0, 1)


class PathNoise(nn.Module):
    """The learned standard deviation of a step, x [B, H, A] -> [B, H, A], within a range."""

    def __init__(
        self, *, chunk: tuple[int, int], num_features: int, hidden: int, std_range: tuple[float, float]
    ) -> None:
        super().__init__()
        size = math.prod(chunk)
        self.net = mlp((size + num_features + 2 * NUM_TIME_FREQUENCIES, hidden, size))
        self._log_range = math.log(std_range[0]), math.log(std_range[1])
        for parameter in self.net[-1].parameters():
            nn.init.zeros_(parameter)  # starts in the middle of its range

    def forward(self, x: Tensor, features: Tensor, t: Tensor) -> Tensor:
        inputs = torch.cat((x.flatten(1), features, time_embedding(t)), dim=1)
        return soft_clamp(self.net(inputs), *self._log_range).exp().view_as(x)


class ValuedFlow(Flow):
    """See the Policy, TrainablePolicy and ValuedPolicy contracts.

    `drawn` is a whole path, [B, (K + 1) H A]; with `path_noise.one_step`, only the noisy step: the point before it, the
    point after it and its number, [B, 2 H A + 1]. Points and densities are fp32 for networks of any
    precision.
    """

    Config: ClassVar[type[FlowConfig]] = ValuedFlowConfig
    name: ClassVar[str] = "valued_flow"

    def __init__(self, config: ValuedFlowConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(config, robot=robot, seed=seed)
        self._path_noise, self._value_trains_encoder = config.path_noise, config.value_trains_encoder
        self._num_flow_steps = config.num_flow_steps
        self._noise_std: PathNoise | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._critic = value_mlp((self.num_features, *config.value_hidden, 1))
            if config.path_noise.type == "learned":
                self._noise_std = PathNoise(
                    chunk=self._chunk_shape,
                    num_features=self.num_features,
                    hidden=config.hidden,
                    std_range=config.path_noise.std_range,
                )

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        if context.deterministic or context.prefix is not None:
            return super().act(observations, context)
        with torch.no_grad():
            inputs = self._tensors(observations)
            features = self.features(inputs)
            drawn, log_prob, normalized = self._draw(features, context)
            value = self.value(features)
        return self._chunk(normalized.clamp(-1.0, 1.0), inputs, drawn=drawn, log_prob=log_prob, value=value)

    def _draw(self, features: Tensor, context: ActContext) -> tuple[Tensor, Tensor, Tensor]:
        """A sample, its log-density and the chunk."""
        generator, num_rows, num_steps = seeded_generator(context.seed), len(features), self._num_flow_steps
        start = self._randn(features, (num_rows, *self._chunk_shape), generator)
        velocity, steps = self._path_velocity(features), self._steps(features)
        if not self._path_noise.one_step:
            noise = self._randn(features, (num_rows, num_steps, *self._chunk_shape), generator)
            path, log_prob = noisy_path(velocity, steps, start, noise.transpose(0, 1))
            return torch.stack(path, dim=1).flatten(1), log_prob, path[-1]
        noise = self._randn(features, (num_rows, *self._chunk_shape), generator)
        chosen = integers(0, num_steps, (num_rows,), generator=generator, device=start.device)
        before, after, end = one_noisy_step(velocity, steps, start, noise, chosen=chosen, num_steps=num_steps)
        drawn = torch.cat((before.flatten(1), after.flatten(1), chosen[:, None].to(start.dtype)), dim=1)
        return drawn, self._density(features, drawn), end

    # ---- ValuedPolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        noise = {} if self._noise_std is None else {"path_noise": self._noise_std}
        return {**super().components, **noise, "critic": self._critic}

    @property
    def num_drawn(self) -> int:
        size = math.prod(self._chunk_shape)
        return 2 * size + 1 if self._path_noise.one_step else (self._num_flow_steps + 1) * size

    def value(self, features: Tensor) -> Tensor:
        value: Tensor = self._critic(features if self._value_trains_encoder else features.detach())
        return value.squeeze(-1)

    def evaluate_actions(self, features: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_prob = self._density(features, drawn)
        return log_prob, self._entropy(features, drawn), self.value(features)

    def _density(self, features: Tensor, drawn: Tensor) -> Tensor:
        """The log-density of each action of a chunk, [B, H]."""
        velocity, steps = self._path_velocity(features), self._steps(features)
        if self._path_noise.one_step:
            before, after, t = self._one_step_of(drawn)
            return step_density(velocity, steps, before, after, t)
        return path_density(velocity, steps, self._path_of(drawn))

    def _entropy(self, features: Tensor, drawn: Tensor) -> Tensor:
        """The entropy of the steps of this path, [B, H]: exact for Flow-SDE, whose noise does not depend on the path."""
        num_steps, steps = self._num_flow_steps, self._steps(features)
        if self._path_noise.one_step:
            before, _, t = self._one_step_of(drawn)
            points = [(before, t)]
        else:
            path = self._path_of(drawn)
            points = [(x, x.new_full((len(x),), number / num_steps)) for number, x in enumerate(path[:-1])]
        entropy = torch.zeros(())
        for x, t in points:
            _, std = steps(x, torch.zeros_like(x), t[:, None, None])
            entropy = entropy + (std.log().expand_as(x) + _NORMAL_ENTROPY).sum(-1)
        return entropy

    def _path_of(self, drawn: Tensor) -> tuple[Tensor, ...]:
        return drawn.view(len(drawn), -1, *self._chunk_shape).unbind(1)

    def _one_step_of(self, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The points before and after the noisy step, and its time."""
        before, after = drawn[:, :-1].view(len(drawn), 2, *self._chunk_shape).unbind(1)
        return before, after, drawn[:, -1] / self._num_flow_steps

    def _path_velocity(self, features: Tensor) -> PathVelocity:
        return lambda x, t: self._velocity(x, features, t)

    def _steps(self, features: Tensor) -> StepNoise:
        dt, noise = 1.0 / self._num_flow_steps, self._noise_std
        if noise is None:
            return sde_steps(flow_sde_sigma(self._path_noise.level, dt=dt), dt=dt)
        return velocity_plus_noise(lambda x, t: noise(x, features, t.flatten()).to(x.dtype), dt=dt)
