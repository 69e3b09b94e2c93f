"""SmolVLA: a flow over action chunks by a small expert that reads a vision-language model (Shukor et al., 2025).

    prefix = network.prefix(images, camera_mask, tokens, token_mask, state)  # once per chunk
    times = network.embed_times(1 - torch.arange(num_steps) / num_steps)
    for step in range(num_steps):  # from noise to actions
        x = x - network.velocity(x, times[step : step + 1], prefix) / num_steps

Images, prompt and state pass through the first layers of SmolVLM2. Images and prompt attend to each other; the state, which
is one token after them, attends to all. The expert has one layer for each of them, and two kinds of layers take turns:

- Self-attention: action tokens attend to the prefix's keys and values of this layer, and to earlier action tokens.
- Cross-attention: keys and values are projections of the prefix's, so they are the same in each step and belong to the
  prefix. Their positions are those of the prefix; those of the actions start at 0.

Differences from SmolVLM2 on its own: its embeddings are multiplied by the square root of the width, positions turn with base
10 000, and attention is not causal in the prefix. All shapes are fixed and nothing depends on values.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.policies.vla.family import FlowNetwork
from dovetail.policies.vla.networks.llama import CrossLayer, LlamaLayer, LlamaNorm
from dovetail.policies.vla.networks.sizes import SmolVLASizes
from dovetail.policies.vla.networks.transformers import (
    Rotation,
    VisionTower,
    aligned,
    attend,
    insert,
    rotation,
    self_attention_layer,
    with_room,
)

__all__ = ["SmolVLANetwork", "SmolVLAPrefix"]


class SmolVLAPrefix(NamedTuple):
    """What the actions attend to. Keys and values of each layer are [B, K, T, D]: images, prompt and state, in layers of
    self-attention room for the actions, and padding (`aligned`)."""

    keys: list[Tensor]
    values: list[Tensor]
    self_bias: Tensor  # [B, 1, H * G, T]: 0, or minus infinity for padding and later actions
    cross_bias: Tensor  # [B, 1, 1, T]
    after_prefix: Rotation  # of the action tokens in self-attention
    from_zero: Rotation  # in cross-attention
    num_keys: int  # of self-attention, without the padding at the end


class SmolVLANetwork(FlowNetwork):
    def __init__(self, sizes: SmolVLASizes) -> None:
        super().__init__()
        self.sizes: SmolVLASizes = sizes
        text, expert = sizes.text, sizes.expert
        self.vision = VisionTower(sizes.vision, out=text.width, bias=False)
        self.embedding = nn.Embedding(sizes.vocabulary, text.width)
        self.state_in = nn.Linear(sizes.state_size, text.width)
        self.text_layers = nn.ModuleList(LlamaLayer(text) for _ in range(text.num_layers))
        self.expert_layers = nn.ModuleList(
            LlamaLayer(expert) if sizes.is_self_attention(index) else CrossLayer(expert)
            for index in range(expert.num_layers)
        )
        self.expert_norm = LlamaNorm(expert.width)
        self.action_in = nn.Linear(sizes.action_size, expert.width)
        self.action_time_in = nn.Linear(2 * expert.width, expert.width)
        self.action_time_out = nn.Linear(expert.width, expert.width)
        self.action_out = nn.Linear(expert.width, sizes.action_size)

    def prefix(
        self, images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor, state: Tensor
    ) -> SmolVLAPrefix:
        """Read images [B, C, 3, S, S] in [-1, 1], prompt tokens [B, L] and the normalized state [B, state_size].

        The masks [B, C] and [B, L] are false for absent cameras and for padding."""
        return self.prefix_and_embeddings(images, camera_mask, tokens, token_mask, state)[0]

    def prefix_and_embeddings(
        self, images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor, state: Tensor
    ) -> tuple[SmolVLAPrefix, Tensor, Tensor]:
        x, mask = self._embed(images, camera_mask, tokens, token_mask, state)
        keys_values, x = self._read(x, mask)
        return self._for_actions(keys_values, mask), x, mask

    def velocity(self, x: Tensor, time: Tensor, prefix: SmolVLAPrefix) -> Tensor:
        """The velocity, float32, of noisy actions x [B, H, A]. `time` [B or 1, W] comes from `embed_times`.

        Without gradients, the action tokens' keys and values are written behind those of the prefix, in place."""
        tokens = self._action_tokens(x, time)
        for module, keys, values in zip(self.expert_layers, prefix.keys, prefix.values, strict=True):
            if isinstance(module, CrossLayer):
                q = module.queries(tokens, prefix.from_zero)
                attended = attend(q, keys, values, prefix.cross_bias)
                tokens = module.finish(tokens, attended)
            else:
                layer = cast(LlamaLayer, module)
                q, k, v = layer.project(tokens, prefix.after_prefix)
                keys, values = insert(keys, k, end=prefix.num_keys), insert(values, v, end=prefix.num_keys)
                attended = attend(q, keys, values, prefix.self_bias)
                tokens = layer.finish(tokens, attended)
        velocity: Tensor = self.action_out(self.expert_norm(tokens))
        return velocity.float()

    def embed_times(self, times: Tensor) -> Tensor:
        """The share of time in the first action layer: times [N] to [N, W]."""
        layer, width = self.action_time_in, self.sizes.expert.width
        return functional.linear(self.embed_sine_cosine(times), layer.weight[:, width:], layer.bias)

    # ---- parts

    def _embed(
        self, images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens [B, P, W] of images, prompt and state, and their mask [B, P]."""
        embedded = torch.cat((self.vision.tokens(images, self.run_layer), self.embedding(tokens)), dim=1)
        embedded = embedded * embedded.new_full((), self.sizes.text.width**0.5)  # rounded as the weights are
        x = torch.cat((embedded, self.state_in(state.to(self.dtype))[:, None]), dim=1)
        images_mask = camera_mask.repeat_interleave(self.sizes.vision.num_tokens, dim=1)
        mask = functional.pad(torch.cat((images_mask, token_mask), dim=1), (0, 1), value=True)
        return x.to(self.dtype), mask

    def _action_tokens(self, x: Tensor, time: Tensor) -> Tensor:
        """Noisy actions as tokens [B, H, W] of the expert."""
        width = self.sizes.expert.width
        tokens = functional.linear(self.action_in(x.to(self.dtype)), self.action_time_in.weight[:, :width])
        found: Tensor = self.action_time_out(functional.silu(tokens + time[:, None]))
        return found

    def _read(self, x: Tensor, mask: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Keys and values of the prefix, [B, K, P, D] for each layer, and the tokens before the last layer."""
        text = self.sizes.text
        where = rotation(mask.cumsum(1) - 1, head_size=text.head_size)
        num = mask.shape[1]
        allowed = mask[:, None].expand(-1, num, -1).clone()  # [B, P, P]
        allowed[:, :-1, -1] = False  # images and prompt do not attend to the state
        bias = _bias(allowed).repeat_interleave(text.num_heads // text.num_kv_heads, dim=1)[:, None]
        *layers, last = (cast(LlamaLayer, module) for module in self.text_layers)
        found = []
        for layer in layers:
            x, k, v = self.run_layer(self_attention_layer, layer, x, where, bias)
            found.append((k, v))
        found.append(last.keys_values(x, where))
        return found, x

    def _for_actions(self, keys_values: list[tuple[Tensor, Tensor]], mask: Tensor) -> SmolVLAPrefix:
        horizon, expert = self.sizes.horizon, self.sizes.expert
        all_keys, all_values = [], []
        for module, (keys, values) in zip(self.expert_layers, keys_values, strict=True):
            num_new = horizon
            if isinstance(module, CrossLayer):
                keys, values = module.project_prefix(keys, values)
                num_new = 0
            all_keys.append(with_room(keys, num_new))
            all_values.append(with_room(values, num_new))
        earlier = torch.ones(horizon, horizon, dtype=torch.bool, device=mask.device).tril()
        rows = torch.cat(
            (mask[:, None].expand(-1, horizon, -1), earlier.expand(len(mask), -1, -1)), dim=2
        )  # [B, H, P + H]
        places = torch.arange(horizon, device=mask.device)[None]
        return SmolVLAPrefix(
            all_keys,
            all_values,
            _key_bias(rows).repeat_interleave(expert.num_heads // expert.num_kv_heads, dim=1)[:, None],
            _key_bias(mask)[:, None, None],
            rotation(mask.sum(1, keepdim=True) + places, head_size=expert.head_size),
            rotation(places, head_size=expert.head_size),
            rows.shape[-1],
        )


def _bias(allowed: Tensor) -> Tensor:
    return torch.zeros_like(allowed, dtype=torch.float32).masked_fill(~allowed, -math.inf)


def _key_bias(allowed: Tensor) -> Tensor:
    """The same, with padding behind the keys."""
    num = allowed.shape[-1]
    return _bias(functional.pad(allowed, (0, aligned(num) - num)))
