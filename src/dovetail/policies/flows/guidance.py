"""Real-time chunking: guide a flow towards the actions that the robot has already committed to (Black et al., 2025).

    w  = prefix_weights("exp", delay=d, execution_horizon=s, chunk_length=H)
    v  = guided_velocity(velocity, x, t, target=Y, weights=w)
    x <- x + dt * v

All actions are normalized. Time goes from 0 (noise) to 1 (actions).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.core.types import ActContext
from dovetail.policies.settings import GuidanceConfig, Jacobian, Schedule

__all__ = [
    "Committed",
    "GuidanceConfig",
    "Velocity",
    "committed_actions",
    "guidance_gain",
    "guided_velocity",
    "prefix_weights",
]

Velocity = Callable[[Tensor, float], Tensor]  # of x and t


def prefix_weights(schedule: Schedule, *, delay: int, execution_horizon: int, chunk_length: int) -> Tensor:
    """The weight of the old chunk for each action of the new one, [H], from 0 to 1.

    H - s actions of the old chunk are still valid. The first `delay` of them run during inference and have weight 1.
    Actions after the valid ones have weight 0. `schedule` gives the weights between.
    """
    if delay < 0 or execution_horizon < 1:
        raise UsageError(
            f"guidance needs delay >= 0 and execution_horizon >= 1 (ticks), got {delay} and {execution_horizon}"
        )
    num_valid = max(chunk_length - execution_horizon, 0)
    start = min(delay, num_valid)
    index = torch.arange(chunk_length, dtype=torch.float32, device="cpu")
    if schedule == "zeros":
        weights = (index < start).float()
    elif schedule == "ones":
        weights = torch.ones_like(index)
    else:
        weights = ((start - 1 - index) / (num_valid - start + 1) + 1).clamp(0.0, 1.0)
        if schedule == "exp":
            weights = weights * weights.expm1() / math.expm1(1.0)
    return torch.where(index < num_valid, weights, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The actions that the robot has committed to."""

    target: Tensor  # [B, H, A], normalized; NaN where unknown
    weights: Tensor  # [B, H], 0 where unknown


def committed_actions(
    context: ActContext,
    *,
    shape: tuple[int, int, int],
    normalize: Callable[[Tensor], Tensor],
    schedule: Schedule,
    device: torch.device,
) -> Committed | None:
    """The context's prefix for chunks of this shape [B, H, A]. None if it has none."""
    if context.prefix is None:
        return None
    num_rows, horizon, num_actions = shape
    prefix = torch.tensor(context.prefix, dtype=torch.float32, device=device)
    if prefix.ndim != 3 or prefix.shape[0] != num_rows or prefix.shape[2] != num_actions:
        raise UsageError(f"the prefix should be [{num_rows}, H, {num_actions}], got {list(prefix.shape)}")
    prefix = prefix[:, :horizon]
    missing = prefix.new_full((num_rows, horizon - prefix.shape[1], num_actions), math.nan)
    target = normalize(torch.cat((prefix, missing), dim=1))
    weights = prefix_weights(
        schedule, delay=context.delay, execution_horizon=context.horizon, chunk_length=horizon
    )
    return Committed(target=target, weights=weights.to(device) * target.isfinite().all(-1))


def guidance_gain(t: float, *, beta: float) -> float:
    """min((1 - t) / t * (t^2 + (1 - t)^2) / (1 - t)^2, beta)."""
    if not 0.0 <= t < 1.0:
        raise UsageError(f"guidance needs a time in [0, 1), got {t}")
    if t == 0.0:
        return beta
    return min((t * t + (1.0 - t) ** 2) / (t * (1.0 - t)), beta)


def guided_velocity(
    velocity: Velocity,
    x: Tensor,
    t: float,
    *,
    target: Tensor,
    weights: Tensor,
    beta: float = 5.0,
    jacobian: Jacobian = "vjp",
) -> Tensor:
    """The velocity at x [B, H, A], corrected by the error of its end x1 = x + (1 - t) v against `target` [B, H, A].

    `weights` are [H], [B, H] or, for each axis, [B, H, A]. Where they are 0, the target is ignored, even NaN. Works under
    `no_grad`, but not under `inference_mode`, which has no derivatives.
    """
    if weights.ndim < x.ndim:
        weights = weights[..., None]  # [.., H, 1]

    def weighted_error(end: Tensor) -> Tensor:
        return torch.where(weights > 0.0, weights * (target - end), 0.0)

    gain = guidance_gain(t, beta=beta)
    if jacobian == "identity":
        v = velocity(x, t)
        return v + gain * weighted_error(x + (1.0 - t) * v)
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        v = velocity(x, t)
        end = x + (1.0 - t) * v
    (correction,) = torch.autograd.grad(end, x, grad_outputs=weighted_error(end.detach()))
    return v.detach() + gain * correction
