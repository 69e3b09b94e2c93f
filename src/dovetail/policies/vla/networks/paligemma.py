"""The part that pi0 and pi0.5 share: SigLIP and a Gemma text model read images and prompt, and a smaller Gemma, the expert,
turns noisy actions into a velocity while it attends to them.

    prefix = network.prefix(images, camera_mask, tokens, token_mask, state)  # once per chunk
    times = network.embed_times(1 - torch.arange(num_steps) / num_steps)
    for step in range(num_steps):  # from noise to actions
        x = x - network.velocity(x, times[step : step + 1], prefix) / num_steps

Two exact savings. Of the last layer before the actions only keys and values are used. What depends on time only is computed
for all steps at once.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.policies.vla.family import FlowNetwork
from dovetail.policies.vla.networks.sizes import Pi0Sizes
from dovetail.policies.vla.networks.transformers import (
    GemmaLayer,
    LayerModulation,
    Rotation,
    VisionTower,
    aligned,
    attend,
    insert,
    rotation,
    self_attention_layer,
)

__all__ = ["PaliGemmaNetwork", "Prefix", "layers_of"]


class Prefix(NamedTuple):
    """What the actions attend to. Keys and values of each layer are [B, K, T, D]: images, prompt, a state token, room for
    the actions, and padding (`aligned`)."""

    keys: list[Tensor]
    values: list[Tensor]
    bias: Tensor  # [B, 1, 1, T]: 0, or minus infinity for padding
    where: Rotation  # of the action tokens
    num_keys: int  # without the padding at the end


class PaliGemmaNetwork(FlowNetwork):
    num_state_tokens: ClassVar[int]  # 0 or 1

    def __init__(self, sizes: Pi0Sizes) -> None:
        super().__init__()
        self.sizes: Pi0Sizes = sizes
        text, expert = sizes.text, sizes.expert
        self.vision = VisionTower(sizes.vision, out=text.width)
        self.embedding = nn.Embedding(sizes.vocabulary, text.width)
        self.text_layers = nn.ModuleList(GemmaLayer(text) for _ in range(text.num_layers))
        self.expert_layers = nn.ModuleList(
            GemmaLayer(expert, is_modulated=sizes.is_adaptive) for _ in range(expert.num_layers)
        )
        self.action_in = nn.Linear(sizes.action_size, expert.width)
        self.action_out = nn.Linear(expert.width, sizes.action_size)

    def prefix(
        self, images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor, state: Tensor
    ) -> Prefix:
        return self.prefix_and_embeddings(images, camera_mask, tokens, token_mask, state)[0]

    def prefix_and_embeddings(
        self, images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor, state: Tensor
    ) -> tuple[Prefix, Tensor, Tensor]:
        x, mask = self._embed(images, camera_mask, tokens, token_mask)
        bias = _bias(mask)
        head_size = self.sizes.text.head_size
        keys_values, x = self._read(x, mask, bias)
        num_valid = mask.sum(1, keepdim=True)
        keys, values = self._extended(keys_values, state, bias, num_valid)
        horizon = self.sizes.horizon
        positions = num_valid + self.num_state_tokens + torch.arange(horizon, device=x.device)
        bias = functional.pad(bias, (0, self.num_state_tokens + horizon))
        num_keys = bias.shape[-1]
        bias = functional.pad(bias, (0, aligned(num_keys) - num_keys), value=-math.inf)
        return Prefix(keys, values, bias, rotation(positions, head_size=head_size), num_keys), x, mask

    def velocity(self, x: Tensor, time: Tensor, prefix: Prefix) -> Tensor:
        """Without gradients, the action tokens' keys and values are written behind those of the prefix, in place."""
        tokens = self.action_tokens(x, time)
        layers = zip(layers_of(self.expert_layers), prefix.keys, prefix.values, strict=True)
        for index, (layer, cached_keys, cached_values) in enumerate(layers):
            modulation = self.modulation(time, index)
            q, k, v = layer.project(tokens, prefix.where, modulation)
            keys = insert(cached_keys, k, end=prefix.num_keys)
            values = insert(cached_values, v, end=prefix.num_keys)
            tokens = layer.finish(tokens, attend(q, keys, values, prefix.bias), modulation)
        return self.action_velocity(tokens, time)

    # ---- what differs

    @abstractmethod
    def _extended(
        self, keys_values: list[tuple[Tensor, Tensor]], state: Tensor, bias: Tensor, num_valid: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of each layer with those of the state, if it is a token, and room for the actions."""

    @abstractmethod
    def action_tokens(self, x: Tensor, time: Tensor) -> Tensor:
        """Noisy actions as tokens [B, H, W] of the expert."""

    @abstractmethod
    def modulation(self, time: Tensor, index: int) -> LayerModulation | None:
        """How time changes the expert's layer of this index."""

    @abstractmethod
    def action_velocity(self, tokens: Tensor, time: Tensor) -> Tensor:
        """The velocity, float32, from the expert's tokens after its last layer."""

    # ---- the parts of the prefix

    def _embed(
        self, images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens [B, P, W] of images and prompt, and their mask [B, P]."""
        x = torch.cat((self.vision.tokens(images, self.run_layer), self.embed_prompt(tokens)), dim=1)
        mask = torch.cat((camera_mask.repeat_interleave(self.sizes.vision.num_patches, dim=1), token_mask), dim=1)
        return x.to(self.dtype), mask

    def embed_prompt(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(tokens)
        return embedded * embedded.new_full((), self.sizes.text.width**0.5)  # rounded as the weights are

    def _read(self, x: Tensor, mask: Tensor, bias: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Keys and values of images and prompt, [B, K, P, D] for each layer, and the tokens before the last layer. All of
        these tokens attend to each other."""
        where = rotation(mask.cumsum(1) - 1, head_size=self.sizes.text.head_size)
        *layers, last = layers_of(self.text_layers)
        found = []
        for layer in layers:
            x, k, v = self.run_layer(self_attention_layer, layer, x, where, bias)
            found.append((k, v))
        found.append(last.keys_values(x, where))
        return found, x


def _bias(mask: Tensor) -> Tensor:
    """[B, 1, 1, P]: 0, or minus infinity for padding."""
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -math.inf)[:, None, None]


def layers_of(modules: nn.ModuleList) -> list[GemmaLayer]:
    return cast("list[GemmaLayer]", list(modules))
