"""pi0: a flow over action chunks, conditioned on images, prompt and state (Black et al., 2024).

The state token does not attend to actions, so it is the same in each step and belongs to the prefix. Time is joined with
each action; the share of time in that product is computed for all steps at once.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.policies.vla.networks.paligemma import PaliGemmaNetwork, layers_of
from dovetail.policies.vla.networks.sizes import Pi0Sizes
from dovetail.policies.vla.networks.transformers import RMSNorm, attend, rotation, with_room

__all__ = ["Pi0Network"]


class Pi0Network(PaliGemmaNetwork):
    num_state_tokens: ClassVar[int] = 1

    def __init__(self, sizes: Pi0Sizes) -> None:
        super().__init__(sizes)
        width = sizes.expert.width
        self.expert_norm = RMSNorm(width)
        self.state_in = nn.Linear(sizes.state_size, width)
        self.action_time_in = nn.Linear(2 * width, width)
        self.action_time_out = nn.Linear(width, width)

    def embed_times(self, times: Tensor) -> Tensor:
        """The share of time in the first action layer, [N, W]."""
        layer, width = self.action_time_in, self.sizes.expert.width
        return functional.linear(self.embed_sine_cosine(times), layer.weight[:, width:], layer.bias)

    def action_tokens(self, x: Tensor, time: Tensor) -> Tensor:
        width = self.sizes.expert.width
        tokens = functional.linear(self.action_in(x.to(self.dtype)), self.action_time_in.weight[:, :width])
        found: Tensor = self.action_time_out(functional.silu(tokens + time[:, None]))
        return found

    def modulation(self, time: Tensor, index: int) -> None:
        return None

    def action_velocity(self, tokens: Tensor, time: Tensor) -> Tensor:
        velocity: Tensor = self.action_out(self.expert_norm(tokens))
        return velocity.float()

    def _extended(
        self, keys_values: list[tuple[Tensor, Tensor]], state: Tensor, bias: Tensor, num_valid: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Pass the state token through the expert. It attends to images and prompt and to itself."""
        horizon = self.sizes.horizon
        where = rotation(num_valid, head_size=self.sizes.text.head_size)
        bias = functional.pad(bias, (0, 1))
        x = self.state_in(state.to(self.dtype))[:, None]
        num = bias.shape[-1]
        all_keys, all_values = [], []
        *layers, last = layers_of(self.expert_layers)
        for layer, (keys, values) in zip(layers, keys_values, strict=False):
            q, k, v = layer.project(x, where)
            all_keys.append(with_room(torch.cat((keys, k), dim=2), horizon))
            all_values.append(with_room(torch.cat((values, v), dim=2), horizon))
            x = layer.finish(x, attend(q, all_keys[-1][:, :, :num], all_values[-1][:, :, :num], bias))
        for found, of_prefix, of_state in zip(
            (all_keys, all_values), keys_values[-1], last.keys_values(x, where), strict=True
        ):
            found.append(with_room(torch.cat((of_prefix, of_state), dim=2), horizon))
        return all_keys, all_values
