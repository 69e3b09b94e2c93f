"""pi0 and pi0.5 on a GPU: the same computation as their networks, in fewer kernels.

    parts = fast_parts(network)
    sampler = Sampler(network, num_steps=10, parts=parts, graph=True)

Images and prompt are large products: they run in pieces of one layer that torch compiles. All layers have the same shapes,
so each piece compiles once. State and actions are few tokens: they run in `kernels.py`.

Products in 8 bits were tried for the MLPs of the text model, with a scale for each token and each output: 1.5 ms less, but
actions of random weights differ by 5 % (2 % with the second product only), so they are not offered.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from dovetail.policies.vla.fast import kernels
from dovetail.policies.vla.fast.vjp import FastVelocity, compiled
from dovetail.policies.vla.networks.paligemma import PaliGemmaNetwork, Prefix, layers_of
from dovetail.policies.vla.networks.pi0 import Pi0Network
from dovetail.policies.vla.networks.transformers import (
    GemmaLayer,
    Rotation,
    VisionLayer,
    VisionTower,
    aligned,
    rotation,
)
from dovetail.policies.vla.sampler import FEW_TOKENS, Inputs, Parts

__all__ = ["FastPaliGemma", "fast_parts"]

_KEY_SPLITS = 7  # parts of the keys that few tokens attend to
_SUM_SPLITS = 8  # parts of the summed axis of a product


def fast_parts(network: PaliGemmaNetwork) -> Parts:
    """Raises ImportError without Triton."""
    fast, plain = FastPaliGemma(network), compiled(network.velocity)
    guided = FastVelocity(network) if isinstance(network, Pi0Network) else plain

    def velocity(x: Tensor, time: Tensor, prefix: Prefix) -> Tensor:
        is_few = x.shape[0] * x.shape[1] <= FEW_TOKENS
        return guided(x, time, prefix) if is_few else plain(x, time, prefix)

    return Parts(fast.prefix, velocity, fast.sample)


class _Change(NamedTuple):
    scale: Tensor
    shift: Tensor | None = None
    gate: Tensor | None = None


class _Where(NamedTuple):
    """Rotations of the state and of the actions after it."""

    rotation: Rotation

    def of(self, first: int, end: int | None) -> Rotation:
        return Rotation(*(part[:, first:end] for part in self.rotation))


class _Read(NamedTuple):
    """Images and prompt after the text model. Keys and values of each layer are [B, T, D]: P rows of the prefix, then room
    for state and actions."""

    keys: list[Tensor]
    values: list[Tensor]
    bias: Tensor  # [B, T]
    where: _Where
    num_prefix: int
    num_keys: int  # of prefix, state and actions; then comes padding


class _SideStream:
    """Kernels that run beside those of the current stream. On a CPU, everything runs in order."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def after_current(self) -> Iterator[None]:
        """What is started inside waits for what the current stream has been given so far, and not for more."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """The current stream waits for the side stream."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)


class FastPaliGemma:
    """`prefix` of a network with one key head, and whole chunks."""

    def __init__(self, network: PaliGemmaNetwork) -> None:
        if network.sizes.text.num_kv_heads != 1:
            raise ValueError(f"the kernels need one key head, got {network.sizes.text.num_kv_heads}")
        self._network, self._sizes = network, network.sizes
        self._text = layers_of(network.text_layers)
        self._vision_start, self._vision_layer = compiled(_vision_start), compiled(_vision_layer)
        self._vision_end, self._embed = compiled(_vision_end), compiled(_embed)
        self._first, self._middle, self._last = compiled(_first), compiled(_middle), compiled(_last)
        self._actions_in, self._actions_out = compiled(_actions_in), compiled(_actions_out)

    def prefix(
        self, images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor, state: Tensor
    ) -> Prefix:
        """See FlowNetwork.prefix."""
        x, where, read = self._start(images, camera_mask, tokens, token_mask)
        deque(self._read(x, where, read), maxlen=0)
        num = self._network.num_state_tokens
        if num:
            self._pass(self._state_token(state), read, read.where.of(0, 1), num_keys=read.num_prefix + 1)
        keys, values = ([one[:, None] for one in all_] for all_ in (read.keys, read.values))
        return Prefix(keys, values, read.bias[:, None, None], read.where.of(num, None), read.num_keys)

    def sample(self, inputs: Inputs, times: Tensor) -> Tensor:
        """Chunks without guidance; `times` [N, ...] comes from FlowNetwork.embed_times.

        A layer of the expert needs keys and values of the same layer of the text model only. So the first step runs beside
        the text model, one layer behind it."""
        num, num_state = len(times), self._network.num_state_tokens
        side = _SideStream(inputs.noise.device)
        x, where, read = self._start(*inputs[:4])
        with side.after_current():
            tokens = self._actions_in(self._network, inputs.noise, times[:1])
            if num_state:  # the state token is the same in each step
                tokens = torch.cat((self._state_token(inputs.state), tokens), dim=1)
            first_step = self._layers(
                tokens,
                read,
                read.where.of(0, None),
                num_keys=read.num_keys,
                has_state=bool(num_state),
                time=times[:1],
            )
        for _ in self._read(x, where, read):
            with side.after_current():
                next(first_step)
        side.join()
        x = self._actions_out(self._network, inputs.noise, tokens[:, num_state:], times[:1], num)
        actions = read.where.of(num_state, None)
        for step in range(1, num):
            time = times[step : step + 1]
            tokens = self._actions_in(self._network, x, time)
            tokens = self._pass(tokens, read, actions, num_keys=read.num_keys, time=time)
            x = self._actions_out(self._network, x, tokens, time, num)
        return x

    def _state_token(self, state: Tensor) -> Tensor:
        token: Tensor = cast(Pi0Network, self._network).state_in(state.to(self._network.dtype))
        return token[:, None].float()

    def _start(
        self, images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor
    ) -> tuple[Tensor, Rotation, _Read]:
        """Tokens of images and prompt and their rotation. Keys and values are still zeros, with room for state and
        actions."""
        sizes, network = self._sizes, self._network
        x = self._vision_start(network.vision, images)
        for layer in network.vision.layers:
            x = self._vision_layer(cast(VisionLayer, layer), x)
        x = self._vision_end(network.vision, x, len(images))
        x, bias, where, after = self._embed(network, x, camera_mask, tokens, token_mask)
        buffers = x.new_zeros((2, sizes.text.num_layers, *bias.shape, sizes.text.head_size))
        num_prefix = x.shape[1]
        num_keys = num_prefix + network.num_state_tokens + sizes.horizon
        return x, where, _Read(list(buffers[0]), list(buffers[1]), bias, after, num_prefix, num_keys)

    def _read(self, x: Tensor, where: Rotation, read: _Read) -> Iterator[None]:
        """Pass images and prompt through the text model. Yields when keys and values of each layer are written."""
        keys, values, last = read.keys, read.values, len(self._text) - 1
        q = self._first(self._text[0], x, where, keys[0], values[0])
        yield
        for index in range(last):
            attended = kernels.attention(q, keys[index], values[index], read.bias, num_keys=read.num_prefix)
            here, following = self._text[index], self._text[index + 1]
            places = keys[index + 1], values[index + 1]
            if index + 1 < last:
                x, q = self._middle(here, following, x, attended, where, *places)
            else:
                self._last(here, following, x, attended, where, *places)
            yield

    def _pass(
        self, x: Tensor, read: _Read, where: Rotation, *, num_keys: int, time: Tensor | None = None
    ) -> Tensor:
        """Pass tokens x through the whole expert, in place. See `_layers`."""
        deque(self._layers(x, read, where, num_keys=num_keys, time=time), maxlen=0)
        return x

    def _layers(
        self,
        x: Tensor,
        read: _Read,
        where: Rotation,
        *,
        num_keys: int,
        has_state: bool = False,
        time: Tensor | None = None,
    ) -> Iterator[None]:
        """Pass the last tokens before `num_keys`, x [B, N, W], float32, through one layer of the expert each time, in place.
        `has_state`: the first is the state, which does not attend to the others. `time` may change the layers; it is the
        same for all rows."""
        num_batch, num_tokens, width = x.shape
        sizes = self._sizes.expert
        flat = x.view(-1, width)
        cos, sin = (part.reshape(-1, part.shape[-1]).contiguous() for part in where)
        like = read.keys[0]
        q = like.new_empty((num_batch, num_tokens * sizes.num_heads, sizes.head_size))
        normal, hidden = like.new_empty(x.shape), like.new_empty((len(flat), sizes.mlp_width))
        num_early = sizes.num_heads if has_state else 0
        layers = zip(layers_of(self._network.expert_layers), read.keys, read.values, strict=True)
        for index, (layer, own_keys, own_values) in enumerate(layers):
            attention, mlp = self._changes(layer, time, index)
            kernels.normalize(flat, attention.scale, normal, shift=attention.shift)
            kernels.project_qkv(
                normal, layer.qkv.weight, cos, sin, q, own_keys, own_values, first=num_keys - num_tokens
            )
            attended = kernels.attention(
                q,
                own_keys,
                own_values,
                read.bias,
                num_keys=num_keys,
                num_splits=_KEY_SPLITS,
                num_early=num_early,
                early_keys=read.num_prefix + 1,
            )
            kernels.add_product(
                flat,
                attended.view(len(flat), -1),
                layer.attention_out.weight,
                num_splits=_SUM_SPLITS,
                gate=attention.gate,
            )
            kernels.normalize(flat, mlp.scale, normal, shift=mlp.shift)
            kernels.gated_mlp(normal.view(len(flat), -1), layer.gate_up.weight, hidden)
            kernels.add_product(flat, hidden, layer.down.weight, num_splits=_SUM_SPLITS, gate=mlp.gate)
            yield

    def _changes(self, layer: GemmaLayer, time: Tensor | None, index: int) -> tuple[_Change, _Change]:
        """Scale, shift and gate [W] of both norms. Norms with a scale of their own have neither shift nor gate."""
        modulation = None if time is None else self._network.modulation(time, index)
        if modulation is None:
            scales = layer.attention_norm.weight, layer.mlp_norm.weight
            return _Change(cast(Tensor, scales[0])), _Change(cast(Tensor, scales[1]))
        attention, mlp = (_Change(*(part.view(-1) for part in of)) for of in modulation)
        return attention, mlp


# ---- pieces that torch compiles


def _vision_start(tower: VisionTower, images: Tensor) -> Tensor:
    return tower.embed(images.flatten(0, 1))


def _vision_layer(layer: VisionLayer, x: Tensor) -> Tensor:
    return layer.forward(x)


def _vision_end(tower: VisionTower, x: Tensor, num_batch: int) -> Tensor:
    """[B, C * patches, W]"""
    tokens: Tensor = tower.out(tower.norm(x))
    return tokens.view(num_batch, -1, tokens.shape[-1])


def _embed(
    network: PaliGemmaNetwork, of_images: Tensor, camera_mask: Tensor, tokens: Tensor, token_mask: Tensor
) -> tuple[Tensor, Tensor, Rotation, _Where]:
    """Tokens [B, P, W], the bias of all keys [B, T], and the rotations of the prefix and of what follows."""
    sizes = network.sizes
    x = torch.cat((of_images, network.embed_prompt(tokens)), dim=1)
    mask = torch.cat((camera_mask.repeat_interleave(sizes.vision.num_patches, dim=1), token_mask), dim=1)
    bias = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -math.inf)
    num_valid, size = mask.sum(1, keepdim=True), sizes.text.head_size
    num_more = network.num_state_tokens + sizes.horizon
    positions = num_valid + torch.arange(num_more, device=x.device)
    where = rotation(mask.cumsum(1) - 1, head_size=size)
    bias = functional.pad(bias, (0, num_more))
    bias = functional.pad(bias, (0, aligned(bias.shape[1]) - bias.shape[1]), value=-math.inf)
    return x, bias, where, _Where(rotation(positions, head_size=size))


def _first(layer: GemmaLayer, x: Tensor, where: Rotation, keys: Tensor, values: Tensor) -> Tensor:
    """Queries [B, P * G, D]. Keys and values are written to the first P rows of [B, T, D]."""
    q, k, v = layer.project(x, where)
    keys[:, : x.shape[1]] = k[:, 0]
    values[:, : x.shape[1]] = v[:, 0]
    return q[:, 0]


def _middle(
    layer: GemmaLayer,
    following: GemmaLayer,
    x: Tensor,
    attended: Tensor,
    where: Rotation,
    keys: Tensor,
    values: Tensor,
) -> tuple[Tensor, Tensor]:
    """Tokens after a layer, and the queries of the next one."""
    x = layer.finish(x, attended[:, None])
    return x, _first(following, x, where, keys, values)


def _last(
    layer: GemmaLayer,
    following: GemmaLayer,
    x: Tensor,
    attended: Tensor,
    where: Rotation,
    keys: Tensor,
    values: Tensor,
) -> None:
    """Only keys and values of the last layer are used."""
    k, v = following.keys_values(layer.finish(x, attended[:, None]), where)
    keys[:, : x.shape[1]] = k[:, 0]
    values[:, : x.shape[1]] = v[:, 0]


def _actions_in(network: PaliGemmaNetwork, x: Tensor, time: Tensor) -> Tensor:
    return network.action_tokens(x, time).float()


def _actions_out(network: PaliGemmaNetwork, x: Tensor, tokens: Tensor, time: Tensor, num_steps: int) -> Tensor:
    """The actions after one of `num_steps` steps."""
    return x - network.action_velocity(tokens.to(network.dtype), time) / num_steps
