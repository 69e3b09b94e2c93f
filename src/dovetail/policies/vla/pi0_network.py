"""pi0: a flow over action chunks, conditioned on images, prompt and state (Black et al., 2024).

    prefix = network.prefix(images, camera_mask, tokens, token_mask, state)  # once per chunk
    times = network.embed_times(1 - torch.arange(num_steps) / num_steps)
    for step in range(num_steps):  # from noise to actions
        x = x - network.velocity(x, times[step : step + 1], prefix) / num_steps

Time goes from 1 (noise) to 0 (actions), as in the published weights: x_t = t noise + (1 - t) actions, and the velocity is
noise - actions. All shapes are fixed and nothing depends on values, so both parts can be compiled and captured in a CUDA
graph.

Three exact savings. The state token does not attend to actions, so it is the same in each step and belongs to the prefix.
Of the last layer before the actions only keys and values are used. The part of the first action layer that depends on time
only is computed for all steps at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.policies.vla.family import FlowNetwork
from dovetail.policies.vla.sizes import Pi0Sizes
from dovetail.policies.vla.transformers import GemmaLayer, RMSNorm, Rotation, VisionTower, append, attend, rotation

__all__ = ["Pi0Network", "Prefix", "layers_of"]


class Prefix(NamedTuple):
    """What the actions attend to. Keys and values of each layer are [B, K, P + 1 + H, D]: images, prompt, state, and room
    for the actions."""

    keys: list[Tensor]
    values: list[Tensor]
    bias: Tensor  # [B, 1, 1, P + 1 + H]: 0, or minus infinity for padding
    where: Rotation  # of the action tokens


class Pi0Network(FlowNetwork):
    def __init__(self, sizes: Pi0Sizes) -> None:
        super().__init__()
        self.sizes: Pi0Sizes = sizes
        text, expert = sizes.text, sizes.expert
        self.vision = VisionTower(sizes.vision, out=text.width)
        self.embedding = nn.Embedding(sizes.vocabulary, text.width)
        self.text_layers = nn.ModuleList(GemmaLayer(text) for _ in range(text.num_layers))
        self.expert_layers = nn.ModuleList(GemmaLayer(expert) for _ in range(expert.num_layers))
        self.expert_norm = RMSNorm(expert.width)
        self.state_in = nn.Linear(sizes.state_size, expert.width)
        self.action_in = nn.Linear(sizes.action_size, expert.width)
        self.action_time_in = nn.Linear(2 * expert.width, expert.width)
        self.action_time_out = nn.Linear(expert.width, expert.width)
        self.action_out = nn.Linear(expert.width, sizes.action_size)

    @property
    def dtype(self) -> torch.dtype:
        return self.action_out.weight.dtype

    def prefix(
        self, images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor, state: Tensor
    ) -> Prefix:
        """Read images [B, C, 3, S, S] in [-1, 1], prompt tokens [B, L] and the normalized state [B, state_size].

        The masks [B, C] and [B, L] are false for absent cameras and for padding."""
        x = torch.cat((self._embed_images(images), self.embed_prompt(tokens)), dim=1)  # [B, P, W]
        mask = torch.cat((camera_mask.repeat_interleave(self.sizes.vision.num_patches, dim=1), token_mask), dim=1)
        bias = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -math.inf)[:, None, None]
        where = rotation(mask.cumsum(1) - 1, head_size=self.sizes.text.head_size)
        keys_values = self._read(x, where, bias)
        return self._add_state(state, keys_values, bias, num_valid=mask.sum(1, keepdim=True))

    def velocity(self, x: Tensor, time: Tensor, prefix: Prefix) -> Tensor:
        """The velocity, float32, of noisy actions x [B, H, A]. `time` [B or 1, W] comes from `embed_times`.

        Without gradients, the action tokens' keys and values are written behind those of the prefix, in place."""
        tokens = self.action_tokens(x, time)
        for layer, cached_keys, cached_values in zip(
            layers_of(self.expert_layers), prefix.keys, prefix.values, strict=True
        ):
            q, k, v = layer.project(tokens, prefix.where)
            keys, values = append(cached_keys, k), append(cached_values, v)
            tokens = layer.finish(tokens, attend(q, keys, values, prefix.bias))
        return self.action_velocity(tokens)

    def action_tokens(self, x: Tensor, time: Tensor) -> Tensor:
        """Noisy actions as tokens [B, H, W] of the expert."""
        width = self.sizes.expert.width
        tokens = functional.linear(self.action_in(x.to(self.dtype)), self.action_time_in.weight[:, :width])
        found: Tensor = self.action_time_out(functional.silu(tokens + time[:, None]))
        return found

    def action_velocity(self, tokens: Tensor) -> Tensor:
        """The velocity, float32, from the expert's tokens after its last layer."""
        velocity: Tensor = self.action_out(self.expert_norm(tokens))
        return velocity.float()

    def embed_times(self, times: Tensor) -> Tensor:
        """The share of time in the first action layer: times [N] to [N, W]."""
        width, sizes = self.sizes.expert.width, self.sizes
        fraction = torch.linspace(0.0, 1.0, width // 2, device=times.device)
        period = sizes.min_period * (sizes.max_period / sizes.min_period) ** fraction
        angles = times.float()[:, None] * (2.0 * math.pi / period)
        embedded = torch.cat((angles.sin(), angles.cos()), dim=1).to(self.dtype)
        return functional.linear(embedded, self.action_time_in.weight[:, width:], self.action_time_in.bias)

    # ---- the parts of the prefix

    def _embed_images(self, images: Tensor) -> Tensor:
        """[B, C * patches, W]"""
        embedded: Tensor = self.vision(images.flatten(0, 1))
        return embedded.view(len(images), -1, embedded.shape[-1])

    def embed_prompt(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(tokens)
        return embedded * embedded.new_full((), self.sizes.text.width**0.5)  # rounded as the weights are

    def _read(self, x: Tensor, where: Rotation, bias: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of images and prompt, [B, K, P, D] for each layer. All of these tokens attend to each other."""
        *layers, last = layers_of(self.text_layers)
        found = []
        for layer in layers:
            q, k, v = layer.project(x, where)
            x = layer.finish(x, attend(q, k, v, bias))
            found.append((k, v))
        found.append(last.keys_values(x, where))
        return found

    def _add_state(
        self, state: Tensor, keys_values: list[tuple[Tensor, Tensor]], bias: Tensor, *, num_valid: Tensor
    ) -> Prefix:
        """Pass the state token through the expert. It attends to the prefix and to itself."""
        horizon, head_size = self.sizes.horizon, self.sizes.text.head_size
        where = rotation(num_valid, head_size=head_size)
        bias = functional.pad(bias, (0, 1))
        x = self.state_in(state.to(self.dtype))[:, None]
        num = bias.shape[-1]
        all_keys, all_values = [], []
        *layers, last = layers_of(self.expert_layers)
        for layer, (keys, values) in zip(layers, keys_values, strict=False):
            q, k, v = layer.project(x, where)
            all_keys.append(self._with_room(keys, k))
            all_values.append(self._with_room(values, v))
            x = layer.finish(x, attend(q, all_keys[-1][:, :, :num], all_values[-1][:, :, :num], bias))
        for found, of_prefix, of_state in zip(
            (all_keys, all_values), keys_values[-1], last.keys_values(x, where), strict=True
        ):
            found.append(self._with_room(of_prefix, of_state))
        positions = num_valid + 1 + torch.arange(horizon, device=state.device)
        where = rotation(positions, head_size=head_size)
        return Prefix(all_keys, all_values, functional.pad(bias, (0, horizon)), where)

    def _with_room(self, of_prefix: Tensor, of_state: Tensor) -> Tensor:
        """[B, K, P + 1 + H, D], with zeros where the actions will be."""
        return functional.pad(torch.cat((of_prefix, of_state), dim=2), (0, 0, 0, self.sizes.horizon))


def layers_of(modules: nn.ModuleList) -> list[GemmaLayer]:
    return cast("list[GemmaLayer]", list(modules))
