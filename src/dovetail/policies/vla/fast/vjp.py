"""The velocity of pi0 and its vector-Jacobian product with kernels of our own: chunks that are guided, on a GPU.

    velocity = FastVelocity(network)
    with torch.enable_grad():
        v = velocity(x, time, prefix)
    (product,) = torch.autograd.grad(v, x, grad_outputs=vector)

The forward pass keeps what the backward pass needs: the tokens before each half of a layer, queries, what they attended to,
and the first product of each MLP. The residual stream goes from buffer to buffer, so keeping it costs no extra kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from dovetail.policies.vla.fast import backward_kernels, kernels
from dovetail.policies.vla.networks.paligemma import Prefix, layers_of
from dovetail.policies.vla.networks.pi0 import Pi0Network
from dovetail.policies.vla.networks.transformers import RMSNorm

__all__ = ["FastVelocity", "compiled"]

_Call = TypeVar("_Call", bound=Callable[..., Any])
_KEY_SPLITS = 7  # parts of the keys that few tokens attend to
_SUM_SPLITS = 8  # parts of the summed axis of a product
_MLP_SPLITS, _QKV_SPLITS = 16, 8  # the same for the gradients of norms


def compiled(piece: _Call) -> _Call:
    return torch.compile(piece, dynamic=False, fullgraph=True)  # type: ignore[return-value]


class _Kept(NamedTuple):
    """What the backward pass needs. L layers, M tokens, R = M * heads rows."""

    stream: Tensor  # [2 L + 1, M, W], float32: tokens before each half of a layer, and at the end
    q: Tensor  # [L, B, R / B, D]
    attended: list[Tensor]  # [B, R / B, D] each
    log_sum: Tensor  # [L, B, R / B]
    gate_up: Tensor  # [L, M, 2 F]


class FastVelocity:
    """`Pi0Network.velocity` of few tokens, with one key head."""

    def __init__(self, network: Pi0Network) -> None:
        self.network = network
        self._layers = layers_of(network.expert_layers)
        self._actions_in, self._actions_out = compiled(_actions_in), compiled(_actions_out)
        self._actions_in_backward = compiled(_actions_in_backward)
        self._actions_out_backward = compiled(_actions_out_backward)

    def __call__(self, x: Tensor, time: Tensor, prefix: Prefix) -> Tensor:
        velocity: Tensor = _Velocity.apply(x, self, time, prefix)  # type: ignore[no-untyped-call]
        return velocity

    def forward(self, x: Tensor, time: Tensor, prefix: Prefix) -> tuple[Tensor, _Kept]:
        """The velocity [B, H, A], float32. Writes the actions' keys and values into the prefix."""
        first = self._actions_in(self.network, x, time)  # [B, H, W]
        num_batch, num_tokens, width = first.shape
        sizes, like = self.network.sizes.expert, prefix.keys[0]
        num_layers, num_rows = len(self._layers), num_tokens * sizes.num_heads
        stream = first.new_empty((2 * num_layers + 1, num_batch * num_tokens, width))
        stream[0] = first.view(-1, width)
        kept = _Kept(
            stream,
            like.new_empty((num_layers, num_batch, num_rows, sizes.head_size)),
            [],
            first.new_empty((num_layers, num_batch, num_rows)),
            like.new_empty((num_layers, num_batch * num_tokens, 2 * sizes.mlp_width)),
        )
        normal, hidden = like.new_empty(first.shape), like.new_empty((len(stream[0]), sizes.mlp_width))
        flat = normal.view(-1, width)
        cos, sin = _angles(prefix)
        bias, num_keys = prefix.bias[:, 0, 0], prefix.num_keys
        for index, layer in enumerate(self._layers):
            before, middle, after = stream[2 * index : 2 * index + 3]
            keys, values, q = prefix.keys[index][:, 0], prefix.values[index][:, 0], kept.q[index]
            kernels.normalize(before, _scale(layer.attention_norm), flat, copy=middle)
            kernels.project_qkv(normal, layer.qkv.weight, cos, sin, q, keys, values, first=num_keys - num_tokens)
            attended = kernels.attention(
                q, keys, values, bias, num_keys=num_keys, num_splits=_KEY_SPLITS, log_sum=kept.log_sum[index]
            )
            kept.attended.append(attended)
            kernels.add_product(
                middle, attended.view(len(flat), -1), layer.attention_out.weight, num_splits=_SUM_SPLITS
            )
            kernels.normalize(middle, _scale(layer.mlp_norm), flat, copy=after)
            kernels.gated_mlp(flat, layer.gate_up.weight, hidden, gate_up=kept.gate_up[index])
            kernels.add_product(after, hidden, layer.down.weight, num_splits=_SUM_SPLITS)
        return self._actions_out(self.network, stream[-1].view(first.shape), time), kept

    def backward(self, vector: Tensor, x: Tensor, time: Tensor, prefix: Prefix, kept: _Kept) -> Tensor:
        """The vector-Jacobian product, [B, H, A]."""
        num_batch, num_tokens, _ = x.shape
        sizes, stream, like = self.network.sizes.expert, kept.stream, prefix.keys[0]
        num_rows, width = stream.shape[1:]
        grad = self._actions_out_backward(self.network, stream[-1].view(num_batch, num_tokens, -1), vector)
        grad = grad.view(num_rows, width)
        copy = grad.to(like.dtype)  # for the products
        of_normal = torch.zeros_like(grad)
        of_gate_up, of_attended = like.new_empty((num_rows, 2 * sizes.mlp_width)), like.new_empty(kept.q[0].shape)
        heads = (sizes.num_heads + 2, sizes.head_size)
        of_qkv, of_product = grad.new_zeros((num_rows, *heads)), like.new_empty((num_rows, *heads))
        cos, sin = _angles(prefix)
        bias = prefix.bias[:, 0, 0]
        epsilon = kernels.EPSILON
        for index in reversed(range(len(self._layers))):
            layer, (before, middle) = self._layers[index], stream[2 * index : 2 * index + 2]
            backward_kernels.mlp_backward(copy, layer.down.weight, kept.gate_up[index], of_gate_up)
            backward_kernels.add_transposed_product(
                of_normal, of_gate_up, layer.gate_up.weight, num_splits=_MLP_SPLITS
            )
            backward_kernels.normalize_backward(
                middle, _scale(layer.mlp_norm), of_normal, grad, copy, epsilon=epsilon
            )
            backward_kernels.transposed_product(copy, layer.attention_out.weight, of_attended.view(num_rows, -1))
            backward_kernels.attention_backward(
                kept.q[index], prefix.keys[index][:, 0], prefix.values[index][:, 0], bias,
                kept.attended[index], kept.log_sum[index], of_attended, of_qkv.view(num_batch, num_tokens, *heads),
                num_keys=prefix.num_keys, num_splits=_KEY_SPLITS,
            )  # fmt: skip
            backward_kernels.rotation_backward(of_qkv, cos, sin, of_product)
            backward_kernels.add_transposed_product(
                of_normal, of_product.view(num_rows, -1), layer.qkv.weight, num_splits=_QKV_SPLITS
            )
            backward_kernels.normalize_backward(
                before, _scale(layer.attention_norm), of_normal, grad, copy, epsilon=epsilon
            )
        return self._actions_in_backward(self.network, x, time, grad.view(num_batch, num_tokens, width))


class _Velocity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, fast: FastVelocity, time: Tensor, prefix: Prefix) -> Tensor:
        velocity, kept = fast.forward(x, time, prefix)
        ctx.save_for_backward(x)
        ctx.kept = fast, time, prefix, kept
        return velocity

    @staticmethod
    def backward(ctx: Any, vector: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        fast, time, prefix, kept = ctx.kept
        return fast.backward(vector, x, time, prefix, kept), None, None, None


def _scale(norm: RMSNorm) -> Tensor:
    assert norm.weight is not None, "pi0's norms have scales of their own"
    return norm.weight


def _angles(prefix: Prefix) -> tuple[Tensor, Tensor]:
    """Cosine and sine [M, D / 2] of the action tokens."""
    cos, sin = (part.reshape(-1, part.shape[-1]).contiguous() for part in prefix.where)
    return cos, sin


# ---- pieces that torch compiles


def _actions_in(network: Pi0Network, x: Tensor, time: Tensor) -> Tensor:
    return network.action_tokens(x, time).float()


def _actions_out(network: Pi0Network, tokens: Tensor, time: Tensor) -> Tensor:
    return network.action_velocity(tokens.to(network.dtype), time)


def _actions_in_backward(network: Pi0Network, x: Tensor, time: Tensor, grad: Tensor) -> Tensor:
    """The gradient of noisy actions from that of their tokens."""
    weight = network.action_time_in.weight[:, : grad.shape[-1]]
    hidden = functional.linear(network.action_in(x.to(network.dtype)), weight) + time[:, None]
    share = torch.sigmoid(hidden.float())
    slope = share * (1.0 + hidden.float() * (1.0 - share))  # of silu
    of_hidden = (grad.to(network.dtype) @ network.action_time_out.weight).float() * slope
    of_x = of_hidden.to(network.dtype) @ weight @ network.action_in.weight
    return of_x.float()


def _actions_out_backward(network: Pi0Network, tokens: Tensor, vector: Tensor) -> Tensor:
    """The gradient of the last tokens, float32, from that of the velocity."""
    scaled = (vector.to(network.dtype) @ network.action_out.weight).float() * (
        1.0 + _scale(network.expert_norm).float()
    )
    factor = torch.rsqrt(tokens.square().mean(-1, keepdim=True) + kernels.EPSILON)
    normal = tokens * factor
    return factor * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
