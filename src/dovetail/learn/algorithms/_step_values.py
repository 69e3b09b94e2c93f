"""RECAP's value model, and the thresholds that turn advantages into indicators.

The value of an observation is the negative number of steps to success, divided by `max_steps`, from -1 to 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.types import Array
from dovetail.policies.networks import mlp

__all__ = ["StepValues", "Thresholds", "advantages", "prompt_numbers", "steps_to_returns"]


class StepValues(nn.Module):
    """A distribution of the value over bins from -1 to 0, [B, F] -> [B]. Most bins of a bimodal outcome stay empty, which a
    single number could not express."""

    bins: Tensor

    def __init__(self, *, num_features: int, hidden: tuple[int, ...], num_bins: int) -> None:
        super().__init__()
        self.net = mlp((num_features, *hidden, num_bins))
        self.register_buffer("bins", torch.linspace(-1.0, 0.0, num_bins), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """The mean of the distribution."""
        values: Tensor = self.net(features).softmax(-1) @ self.bins
        return values

    def loss(self, features: Tensor, returns: Tensor) -> Tensor:
        """The mean cross-entropy with `returns` [B], each divided over its two nearest bins so that their mean is exact."""
        place = (returns.clamp(-1.0, 0.0) + 1.0) * (len(self.bins) - 1)
        low = place.floor().long().clamp(max=len(self.bins) - 2)
        upper = place - low
        log_p: Tensor = self.net(features).log_softmax(-1)
        chosen = log_p.gather(1, torch.stack((low, low + 1), 1))
        return -(chosen[:, 0] * (1.0 - upper) + chosen[:, 1] * upper).mean()


def steps_to_returns(steps: Tensor, success: Tensor, *, max_steps: int, failure_steps: int) -> Tensor:
    """The normalized return of steps [B] before the end of their episodes, at least -1."""
    return (-(steps + failure_steps * ~success) / max_steps).clamp(min=-1.0)


def advantages(
    returns: Tensor, steps_to_end: Tensor, v: Tensor, v_after: Tensor, *, num_steps: int, max_steps: int
) -> Tensor:
    """The n-step return plus the value after it, minus the value before. Within n steps of the end, the return is known."""
    bootstrapped = v_after - num_steps / max_steps
    return torch.where(steps_to_end > num_steps, bootstrapped, returns) - v


class Thresholds:
    """The quantile of the newest advantages, for each prompt."""

    def __init__(self, *, positive_share: float, num_recent: int) -> None:
        self._positive_share, self._num_recent = positive_share, num_recent
        self._values, self._prompts = np.zeros(0, np.float32), np.zeros(0, np.int64)

    def add(self, values: Tensor, prompts: Tensor) -> None:
        """Add advantages [B] with the numbers of their prompts [B]."""
        new, of = values.cpu().numpy().astype(np.float32), prompts.cpu().numpy()
        self._values = np.concatenate((self._values, new))[-self._num_recent :]
        self._prompts = np.concatenate((self._prompts, of))[-self._num_recent :]

    def of(self, prompts: Tensor) -> Tensor:
        """The threshold of each row [B]. Without advantages of its prompt, it is 0."""
        wanted, rows = np.unique(prompts.cpu().numpy(), return_inverse=True)
        found = np.zeros(len(wanted), np.float32)
        for index, prompt in enumerate(wanted):
            known = self._values[self._prompts == prompt]
            if len(known):
                found[index] = np.quantile(known, 1.0 - self._positive_share)
        return torch.from_numpy(found[rows]).to(prompts.device)

    def state_dict(self) -> dict[str, Array]:
        return {"thresholds/values": self._values.copy(), "thresholds/prompts": self._prompts.copy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._values = np.array(state["thresholds/values"], np.float32)
        self._prompts = np.array(state["thresholds/prompts"], np.int64)


def prompt_numbers(prompts: Tensor) -> Tensor:
    """A number for each prompt, uint8 [B, L] -> int64 [B], that does not depend on the padding."""
    place = torch.arange(1, prompts.shape[1] + 1, device=prompts.device)
    return (prompts.long() * (place * place * 2654435761 % 2147483647)).sum(1)
