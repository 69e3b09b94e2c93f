"""Chunks that a flow draws along noisy paths, with the log-density that PPO compares (pi_RL, Chen et al., 2025).

    paths = NoisyPaths(config.path_noise, chunk_shape=(8, 6), num_steps=5)
    sample = paths.draw(velocity, features, randn=randn, generator=generator)
    log_prob = paths.density(velocity, features, sample.drawn)       # equal to sample.log_prob

Two kinds of noise: Flow-SDE keeps the distribution of the flow's chunks; Flow-Noise learns how much noise each observation
needs. Points and densities are fp32 for networks of any precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

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
from dovetail.policies.random_draws import integers
from dovetail.policies.settings import PathNoiseConfig
from dovetail.policies.tanh_gaussian import soft_clamp

__all__ = ["NoisyPaths", "PathNoise", "PathSample"]

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


class PathSample(NamedTuple):
    """`drawn` is a whole path, [B, (K + 1) H A]; with `path_noise.one_step`, only the noisy step: the point before it, the
    point after it and its number, [B, 2 H A + 1]."""

    drawn: Tensor
    log_prob: Tensor  # of each action, [B, H]; [B] of single actions
    chunk: Tensor  # the end of the path, [B, H, A]


class NoisyPaths:
    """Draws paths of K steps to chunks [H, A], and evaluates them."""

    def __init__(
        self,
        config: PathNoiseConfig,
        *,
        chunk_shape: tuple[int, int],
        num_steps: int,
        std: PathNoise | None = None,
        num_axes: int | None = None,
    ) -> None:
        """`std` is the network of Flow-Noise. Only the first `num_axes` axes count in densities, for networks that pad
        their actions. None: all axes."""
        self._one_step, self._level, self._std = config.one_step, config.level, std
        self._chunk_shape, self._num_steps, self._num_axes = chunk_shape, num_steps, num_axes

    @property
    def num_drawn(self) -> int:
        size = math.prod(self._chunk_shape)
        return 2 * size + 1 if self._one_step else (self._num_steps + 1) * size

    def draw(
        self,
        velocity: PathVelocity,
        features: Tensor,
        *,
        randn: Callable[[tuple[int, ...]], Tensor],
        generator: Generator | None,
    ) -> PathSample:
        """`features` [B, F] are read by the network of Flow-Noise only. `randn` draws N(0, I) of a shape."""
        num_rows, num_steps, steps = len(features), self._num_steps, self._steps(features)
        start = randn((num_rows, *self._chunk_shape))
        if not self._one_step:
            noise = randn((num_rows, num_steps, *self._chunk_shape)).transpose(0, 1)
            path, log_prob = noisy_path(velocity, steps, start, noise, counted=self._counted(start))
            return PathSample(torch.stack(path, dim=1).flatten(1), self._of_actions(log_prob), path[-1])
        noise = randn((num_rows, *self._chunk_shape))
        chosen = integers(0, num_steps, (num_rows,), generator=generator, device=start.device)
        before, after, end = one_noisy_step(velocity, steps, start, noise, chosen=chosen, num_steps=num_steps)
        drawn = torch.cat((before.flatten(1), after.flatten(1), chosen[:, None].to(start.dtype)), dim=1)
        return PathSample(drawn, self.density(velocity, features, drawn), end)

    def density(self, velocity: PathVelocity, features: Tensor, drawn: Tensor) -> Tensor:
        """The log-density of each action of a chunk, [B, H]; [B] of single actions."""
        steps, counted = self._steps(features), self._counted(drawn)
        if self._one_step:
            before, after, t = self._one_step_of(drawn)
            return self._of_actions(step_density(velocity, steps, before, after, t, counted=counted))
        return self._of_actions(path_density(velocity, steps, self._path_of(drawn), counted=counted))

    def entropy(self, features: Tensor, drawn: Tensor) -> Tensor:
        """The entropy of the steps of this path, as `density`: exact for Flow-SDE, whose noise is independent of it."""
        num_steps, steps = self._num_steps, self._steps(features)
        if self._one_step:
            before, _, t = self._one_step_of(drawn)
            points = [(before, t)]
        else:
            path = self._path_of(drawn)
            points = [(x, x.new_full((len(x),), number / num_steps)) for number, x in enumerate(path[:-1])]
        entropy = torch.zeros(())
        for x, t in points:
            _, std = steps(x, torch.zeros_like(x), t[:, None, None])
            each = std.log().expand_as(x) + _NORMAL_ENTROPY
            entropy = entropy + each[..., : self._num_axes].sum(-1)
        return self._of_actions(entropy)

    def _of_actions(self, values: Tensor) -> Tensor:
        return values.squeeze(1) if self._chunk_shape[0] == 1 else values

    def _counted(self, x: Tensor) -> Tensor | None:
        """Which axes count, [A]."""
        if self._num_axes is None:
            return None
        return torch.arange(self._chunk_shape[1], device=x.device) < self._num_axes

    def _path_of(self, drawn: Tensor) -> tuple[Tensor, ...]:
        return drawn.view(len(drawn), -1, *self._chunk_shape).unbind(1)

    def _one_step_of(self, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The points before and after the noisy step, and its time."""
        before, after = drawn[:, :-1].view(len(drawn), 2, *self._chunk_shape).unbind(1)
        return before, after, drawn[:, -1] / self._num_steps

    def _steps(self, features: Tensor) -> StepNoise:
        dt, noise = 1.0 / self._num_steps, self._std
        if noise is None:
            return sde_steps(flow_sde_sigma(self._level, dt=dt), dt=dt)
        return velocity_plus_noise(lambda x, t: noise(x, features, t.flatten()).to(x.dtype), dt=dt)
