"""Noise levels of a diffusion model, and its steps to actions: DDPM (Ho et al., 2020), DDIM (Song et al., 2020).

    x_t   = sqrt(a_t) * x_0 + sqrt(1 - a_t) * noise             a_t: the share of the signal at level t
    x_t-1 = step(x_0 as the network predicts it, x_t)

Levels, order of computation and clipping are those of the diffusers package, which LeRobot uses.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from dovetail.core.errors import UsageError

__all__ = ["NoiseSchedule"]


class NoiseSchedule:
    def __init__(
        self,
        *,
        schedule: Literal["squaredcos_cap_v2", "linear", "scaled_linear"],
        beta_range: tuple[float, float],
        num_train_steps: int,
        num_steps: int,
        stochastic: bool,
        prediction: Literal["epsilon", "sample"],
        clip: float | None,
    ) -> None:
        if num_steps > num_train_steps:
            raise UsageError(
                f"policy.num_denoising_steps={num_steps}, but there are {num_train_steps} noise levels. Use at most those"
            )
        with torch.device("cpu"):
            betas = _betas(schedule, beta_range, num_train_steps)
            self._signals = torch.cumprod(1.0 - betas, dim=0)  # a_t, [T]
        self._stochastic, self._prediction, self._clip = stochastic, prediction, clip
        self._stride = num_train_steps // num_steps
        self.levels = [i * self._stride for i in reversed(range(num_steps))]

    @property
    def num_train_steps(self) -> int:
        return len(self._signals)

    def add_noise(self, clean: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """x_t of [B, H, A] at levels [B]."""
        signal = self._signals.to(clean.device)[levels][:, None, None]
        return signal.sqrt() * clean + (1.0 - signal).sqrt() * noise

    def target(self, clean: Tensor, noise: Tensor) -> Tensor:
        """What the network learns to predict."""
        return noise if self._prediction == "epsilon" else clean

    def clean(self, predicted: Tensor, x: Tensor, level: int) -> Tensor:
        """x_0 by the network's prediction, without clipping."""
        if self._prediction == "sample":
            return predicted
        signal = self.signal(level)
        return (x - math.sqrt(1.0 - signal) * predicted) / math.sqrt(signal)

    def step(self, clean: Tensor, x: Tensor, level: int, noise: Tensor | None) -> Tensor:
        """x at the next lower level, from x_0 as `clean` gives it. DDPM adds `noise`, except at level 0."""
        now, after = self.signal(level), self.signal(level - self._stride)
        clipped = self.clip(clean)
        if not self._stochastic:
            direction = (x - math.sqrt(now) * clean) / math.sqrt(1.0 - now)  # the noise in x
            return math.sqrt(after) * clipped + math.sqrt(1.0 - after) * direction
        ratio = now / after
        mean = (math.sqrt(after) * (1.0 - ratio) * clipped + math.sqrt(ratio) * (1.0 - after) * x) / (1.0 - now)
        if level == 0 or noise is None:
            return mean
        variance = max((1.0 - after) / (1.0 - now) * (1.0 - ratio), 1e-20)
        return mean + math.sqrt(variance) * noise

    def clip(self, clean: Tensor) -> Tensor:
        return clean if self._clip is None else clean.clamp(-self._clip, self._clip)

    @property
    def is_stochastic(self) -> bool:
        return self._stochastic

    def flow_time(self, level: int) -> tuple[float, float]:
        """The scale and the time at which x / scale is a point of a flow, (1 - time) * noise + time * actions."""
        signal = math.sqrt(self.signal(level))
        scale = signal + math.sqrt(1.0 - self.signal(level))
        return scale, signal / scale

    def signal(self, level: int) -> float:
        """a_t, and 1 below level 0."""
        return self._signals[level].item() if level >= 0 else 1.0


def _betas(schedule: str, beta_range: tuple[float, float], num_levels: int) -> Tensor:
    first, last = beta_range
    if schedule == "linear":
        return torch.linspace(first, last, num_levels, dtype=torch.float32)
    if schedule == "scaled_linear":
        return torch.linspace(math.sqrt(first), math.sqrt(last), num_levels, dtype=torch.float32) ** 2

    def signal(share: float) -> float:
        return math.cos((share + 0.008) / 1.008 * math.pi / 2) ** 2

    ratios = [signal((i + 1) / num_levels) / signal(i / num_levels) for i in range(num_levels)]
    return torch.tensor([min(1.0 - ratio, 0.999) for ratio in ratios], dtype=torch.float32)
