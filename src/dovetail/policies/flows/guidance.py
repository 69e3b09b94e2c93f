"""Real-time chunking: a flow that is pulled towards what the robot has already committed to (Black et al., 2025).

    w  = prefix_weights("exp", delay=d, execution_horizon=s, chunk_length=H)
    v  = guided_velocity(velocity, x, t, target=Y, weights=w)
    x <- x + dt * v

Everything here is in normalised actions, the space the flow works in. Time goes from 0 (noise) to 1 (actions).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dovetail.config.model import Config
from dovetail.core.errors import UsageError

__all__ = ["GuidanceConfig", "guidance_gain", "guided_velocity", "prefix_weights"]

Schedule = Literal["exp", "linear", "ones", "zeros"]
Jacobian = Literal["vjp", "identity"]
Velocity = Callable[[Tensor, float], Tensor]


class GuidanceConfig(Config):
    schedule: Schedule = "exp"
    """How the pull fades over the rest of the old chunk, once past what runs before the answer can."""
    beta: float = Field(default=5.0, gt=0.0)
    """The most that the pull is multiplied by."""
    jacobian: Jacobian = "vjp"
    """How an error in the actions reaches the flow: by the flow's own derivative, or as it is (a baseline)."""


def prefix_weights(schedule: Schedule, *, delay: int, execution_horizon: int, chunk_length: int) -> Tensor:
    """How much each action of a new chunk is held to the old one, [H], each 0 to 1.

    With e = H - s actions of the old chunk still valid, those that run before the answer can count whole, those
    from e on nothing at all, whatever the schedule; `zeros` and `ones` say what those between count.
    """
    if delay < 0 or execution_horizon < 1:
        raise UsageError(
            f"guidance needs a delay of at least 0 and an execution horizon of at least 1 tick, got {delay} "
            f"and {execution_horizon}"
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


def guidance_gain(t: float, *, beta: float) -> float:
    """What the pull is multiplied by at a time: min((1 - t) / t * (t^2 + (1 - t)^2) / (1 - t)^2, beta)."""
    if not 0.0 <= t < 1.0:
        raise UsageError(f"a flow is guided at times from 0 to below 1, got {t}")
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
    """The velocity at x [B, H, A], and the pull of what its end x1 = x + (1 - t) v misses of `target` [B, H, A].

    `weights` are [H], or [B, H] where rows know different parts of the target: where they are 0 nothing pulls,
    whatever stands in the target there. Works under `no_grad`; under `inference_mode` there are no derivatives.
    """
    weights = weights[..., None]  # [.., H, 1]

    def missed(end: Tensor) -> Tensor:
        return torch.where(weights > 0.0, weights * (target - end), 0.0)

    gain = guidance_gain(t, beta=beta)
    if jacobian == "identity":
        v = velocity(x, t)
        return v + gain * missed(x + (1.0 - t) * v)
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        v = velocity(x, t)
        end = x + (1.0 - t) * v
    (pull,) = torch.autograd.grad(end, x, grad_outputs=missed(end.detach()))
    return v.detach() + gain * pull
