"""The parts of a rollout that on-policy algorithms compute with, from the TensorDict that their `update` gets.

steps = rollout_steps(rollout)                              # TensorDict [N, T]
values, next_values = rollout_values(rollout, value_of)     # [N, T] each
advantages = rollout_advantages(steps, values, next_values, gamma=0.99, lam=0.95)
for index in torch.randperm(steps.numel()).split(64):
    rows = steps.flatten()[index]                           # TensorDict [64]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dovetail.core.types import Array
from dovetail.learn.batches import observations_of
from dovetail.learn.rollouts import gae

if TYPE_CHECKING:  # its import loads torch's compiler, and an algorithm must be built fast
    from tensordict import TensorDict

__all__ = ["rollout_advantages", "rollout_steps", "rollout_values"]

_OF_STEPS = ("action", "log_prob", "version", "reward", "num_executed", "terminated")


def rollout_steps(rollout: Mapping[str, Tensor]) -> TensorDict:
    """What belongs to each step, [N, T]: the inputs of the policy under `observation`, what it drew (`action`), `log_prob`,
    `version`, `reward`, `num_executed`, `terminated` and `truncated`. See RolloutBuffer."""
    reward = rollout["reward"]
    truncated = torch.zeros_like(reward, dtype=torch.bool)
    truncated.view(-1)[rollout["final_at"]] = True
    observation = {key: values[:, :-1] for key, values in observations_of(rollout, "observation").items()}
    parts = {name: rollout[name] for name in _OF_STEPS}
    from tensordict import TensorDict

    return TensorDict(
        {**parts, "truncated": truncated, "observation": observation},
        batch_size=reward.shape,
        device=reward.device,
    )


def rollout_values(
    rollout: Mapping[str, Tensor], value_of: Callable[[Mapping[str, Tensor]], Tensor]
) -> tuple[Tensor, Tensor]:
    """Values before and after each step, [N, T] each. `value_of` maps the policy's inputs [B, ...] to values [B].

    After a truncated step, the value is that of the episode's last observation; after a terminated one, it has no meaning.
    """
    num_envs, num_steps = rollout["reward"].shape
    every = {key: rows.flatten(0, 1) for key, rows in observations_of(rollout, "observation").items()}
    values = value_of(every).view(num_envs, num_steps + 1)
    next_values = values[:, 1:].clone()
    if len(rollout["final_at"]):  # the next step is in another episode
        next_values.view(-1)[rollout["final_at"]] = value_of(observations_of(rollout, "final"))
    return values[:, :-1], next_values


def rollout_advantages(
    steps: TensorDict, values: Tensor, next_values: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """Generalized advantages [N, T]. Their sum with `values` is the target of the value network. `gamma` is the discount of
    one action; a chunk of k executed actions counts by gamma^k."""
    discount: float | Array = gamma
    if steps["log_prob"].ndim > 2:
        discount = np.power(np.float32(gamma), steps["num_executed"].cpu().numpy(), dtype=np.float32)
    advantages = gae(
        rewards=steps["reward"].cpu().numpy(),
        values=values.cpu().numpy(),
        next_values=next_values.cpu().numpy(),
        terminated=steps["terminated"].cpu().numpy(),
        truncated=steps["truncated"].cpu().numpy(),
        gamma=discount,
        lam=lam,
    )
    return torch.from_numpy(advantages).to(values.device)
