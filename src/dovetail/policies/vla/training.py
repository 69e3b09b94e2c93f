"""The loss that the published models were trained with: flow matching (Lipman et al., 2022), with more times near noise.

x_t = t noise + (1 - t) actions; the network predicts noise - actions. t is 0.001 + 0.999 Beta(1.5, 1).
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional

from dovetail.policies.random_draws import normal, uniform
from dovetail.policies.vla.family import FlowNetwork
from dovetail.policies.vla.sampler import Inputs

__all__ = ["draw_times", "flow_matching_errors", "flow_matching_loss"]


def draw_times(num: int, *, generator: Generator | None, device: torch.device) -> Tensor:
    """Times [N] in 0.001..1. The distribution function of Beta(1.5, 1) is t^1.5, so u^(2/3) of a uniform u has it."""
    return 0.001 + 0.999 * uniform((num,), generator=generator, device=device) ** (2.0 / 3.0)


def flow_matching_errors(network: FlowNetwork, inputs: Inputs, actions: Tensor, times: Tensor) -> Tensor:
    """Squared errors [B, H, A'] of the velocity at these times [B], for normalized actions [B, H, A'].

    `inputs.noise` [B, H, A] has the network's size A >= A'. The axes that are only padding have no error."""
    size = actions.shape[-1]
    padded = functional.pad(actions, (0, inputs.noise.shape[-1] - size))
    t = times[:, None, None]
    velocity = network.velocity(
        t * inputs.noise + (1.0 - t) * padded, network.embed_times(times), network.prefix(*inputs[:-1])
    )
    return (velocity - (inputs.noise - padded))[..., :size].square()


def flow_matching_loss(
    network: FlowNetwork,
    inputs: Inputs,
    actions: Tensor,
    mask: Tensor | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """The mean error at times and with noise drawn here. Actions, or axes of actions, where `mask`, [B, H] or [B, H, A'],
    is false do not count, even NaN."""
    if mask is None:
        mask = torch.ones_like(actions, dtype=torch.bool)
    mask = (mask if mask.ndim == 3 else mask[..., None]).expand_as(actions)
    actions = torch.where(mask, actions, 0.0)
    times = draw_times(len(actions), generator=generator, device=actions.device)
    noise = normal(tuple(inputs.noise.shape), generator=generator, device=actions.device)
    with network.run_layer.precision(actions.device):
        errors: Tensor = network(flow_matching_errors, network, inputs._replace(noise=noise), actions, times)
    return (errors * mask).sum() / mask.sum().clamp(min=1)
