"""Triton kernels of the backward pass of a Gemma layer with few tokens: the vector-Jacobian product of guidance, on a GPU.

Only the gradient of the tokens is needed, not that of the weights. Eight kernels do a layer:

    down and gate backward -> gate, up backward -> norm backward -> output backward
    attention backward -> rotation backward -> queries, keys, values backward -> norm backward

The gradient of the residual stream is float32, with a copy in the weights' type for the products. Sums that several programs
share are added atomically into float32 buffers. The kernel that reads such a buffer last sets it to 0 for the next layer.
`torch.autograd` on the plain network computes the same; a test compares them.

Import it on a machine with Triton only.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from dovetail.policies.vla.fast.kernels import block_m, fitted, overlap

__all__ = [
    "add_transposed_product",
    "attention_backward",
    "mlp_backward",
    "normalize_backward",
    "rotation_backward",
    "transposed_product",
]

_MIN_K = 16  # the shortest sum of a product in Triton

# measured on an H200 with pi0's sizes
_MLP: dict[str, Any] = {"BLOCK_N": 16, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4}
_ADD: dict[str, Any] = {"BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4}
_PRODUCT: dict[str, Any] = {"BLOCK_N": 16, "BLOCK_K": 128, "num_warps": 4, "num_stages": 6}
_ATTENTION: dict[str, Any] = {"BLOCK_ROWS": 16, "BLOCK_KEYS": 32, "num_warps": 4, "num_stages": 3}


def mlp_backward(grad: Tensor, weight: Tensor, gate_up: Tensor, out: Tensor) -> None:
    """From the gradient [M, W] of a gated MLP's output to that of gate and up, `out` [M, 2 F].

    `weight` [W, F] is that of the second product, `gate_up` [M, 2 F] the result of the first one."""
    num_tokens, width = grad.shape
    num_hidden = weight.shape[1]
    rows = block_m(num_tokens)
    settings = fitted(_MLP, width)
    _mlp_backward[(num_hidden // settings["BLOCK_N"], triton.cdiv(num_tokens, rows))](
        grad, weight, gate_up, out, num_tokens, num_hidden, WIDTH=width, BLOCK_M=rows, **settings
    )


def add_transposed_product(x: Tensor, a: Tensor, weight: Tensor, *, num_splits: int) -> None:
    """x [M, N] += a [M, K] @ weight [K, N]. K is divided over at most `num_splits` programs."""
    num_tokens, size = a.shape
    while size % (_MIN_K * num_splits):
        num_splits //= 2
    rows, per_split = block_m(num_tokens), size // num_splits
    settings = {**fitted(_ADD, per_split), "BLOCK_N": min(_ADD["BLOCK_N"], x.shape[1])}
    _add_transposed[(x.shape[1] // settings["BLOCK_N"], num_splits, triton.cdiv(num_tokens, rows))](
        x, a, weight, num_tokens, x.shape[1], size, PER_SPLIT=per_split, BLOCK_M=rows, **settings
    )


def transposed_product(a: Tensor, weight: Tensor, out: Tensor) -> None:
    """out [M, N] = a [M, K] @ weight [K, N]."""
    num_tokens, size = a.shape
    rows, settings = block_m(num_tokens), fitted(_PRODUCT, size)
    _transposed[(out.shape[1] // settings["BLOCK_N"], triton.cdiv(num_tokens, rows))](
        a, weight, out, num_tokens, out.shape[1], SIZE=size, BLOCK_M=rows, **settings
    )


def normalize_backward(
    x: Tensor, scale: Tensor, grad_out: Tensor, grad: Tensor, copy: Tensor, *, epsilon: float
) -> None:
    """Add the gradient of an RMSNorm's input x [M, W] to `grad` [M, W]; `copy` gets it in the weights' type.

    `grad_out` [M, W] is the gradient of its output. It is set to 0."""
    _normalize_backward[(len(x),)](
        x, scale, grad_out, grad, copy, WIDTH=x.shape[1], EPSILON=epsilon, num_warps=4, **overlap()
    )


def attention_backward(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
    attended: Tensor,
    log_sum: Tensor,
    grad: Tensor,
    out: Tensor,
    *,
    num_keys: int,
    num_splits: int,
) -> None:
    """Add the gradients of queries, and of the keys and values of the last N of `num_keys` keys, to `out` [B, N, G + 2, D].

    q, `attended` and its gradient `grad` are [B, N * G, D], `log_sum` [B, N * G], keys and values [B, T, D]. The keys are
    divided over `num_splits` programs."""
    num_batch, num_rows, size = q.shape
    num_tokens, num_heads = out.shape[1], out.shape[2] - 2
    blocks = _ATTENTION["BLOCK_KEYS"]
    split = triton.cdiv(triton.cdiv(num_keys, num_splits), blocks) * blocks
    grid = triton.cdiv(num_rows, _ATTENTION["BLOCK_ROWS"]), triton.cdiv(num_keys, split), num_batch
    _attention_backward[grid](
        q, keys, values, bias, attended, log_sum, grad, out,
        num_rows, num_tokens, num_keys, keys.shape[1], bias.shape[1], size**-0.5,
        SIZE=size, HEADS=num_heads, SPLIT=split, **_ATTENTION, **overlap(),
    )  # fmt: skip


def rotation_backward(grad: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """From the gradient of rotated queries and keys, and of values, [M, G + 2, D], to that of the product, `out`, in the
    weights' type. `grad` is set to 0."""
    num_tokens, num_heads, size = grad.shape
    _rotation_backward[(num_tokens, num_heads)](
        grad, cos, sin, out, HEADS=num_heads, HALF=size // 2, num_warps=1, **overlap()
    )


@triton.jit
def _mlp_backward(
    grad, weight, gate_up, out, num_tokens, num_hidden,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = (tokens < num_tokens)[:, None]
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_at = grad + tokens[:, None] * WIDTH + ks[None, :]
    w_at = weight + ks[:, None] * num_hidden + columns[None, :]
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, WIDTH, BLOCK_K):
        acc = tl.dot(tl.load(a_at + k, mask=valid, other=0.0), tl.load(w_at + k * num_hidden), acc)
    at = tokens[:, None] * (2 * num_hidden) + columns[None, :]
    gate = tl.load(gate_up + at, mask=valid, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + num_hidden, mask=valid, other=0.0).to(tl.float32)
    slope = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * gate * gate)
    share = tl.sigmoid(
        2.0 * 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    )  # gelu, tanh approximation
    kind = out.dtype.element_ty
    slope_of_gelu = share + 2.0 * gate * share * (1.0 - share) * slope
    tl.store(out + at, (acc * up * slope_of_gelu).to(kind), mask=valid)
    tl.store(out + at + num_hidden, (acc * gate * share).to(kind), mask=valid)


@triton.jit
def _add_transposed(
    x, a, weight, num_tokens, num_out, size,
    PER_SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = (tokens < num_tokens)[:, None]
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.program_id(1) * PER_SPLIT + tl.arange(0, BLOCK_K)
    a_at = a + tokens[:, None] * size + ks[None, :]
    w_at = weight + ks[:, None] * num_out + columns[None, :]
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, PER_SPLIT, BLOCK_K):
        acc = tl.dot(tl.load(a_at + k, mask=valid, other=0.0), tl.load(w_at + k * num_out), acc)
    tl.atomic_add(x + tokens[:, None] * num_out + columns[None, :], acc, mask=valid, sem="relaxed")


@triton.jit
def _transposed(
    a, weight, out, num_tokens, num_out,
    SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = (tokens < num_tokens)[:, None]
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_at = a + tokens[:, None] * SIZE + ks[None, :]
    w_at = weight + ks[:, None] * num_out + columns[None, :]
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, SIZE, BLOCK_K):
        acc = tl.dot(tl.load(a_at + k, mask=valid, other=0.0), tl.load(w_at + k * num_out), acc)
    at = tokens[:, None] * num_out + columns[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=valid)


@triton.jit
def _normalize_backward(
    x, scale, grad_out, grad, copy, WIDTH: tl.constexpr, EPSILON: tl.constexpr, OVERLAP: tl.constexpr
):
    at = tl.arange(0, WIDTH)
    row = tl.program_id(0) * WIDTH + at
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    xs = tl.load(x + row)
    factor = tl.rsqrt(tl.sum(xs * xs) / WIDTH + EPSILON)
    normal = xs * factor
    scaled = tl.load(grad_out + row) * (1.0 + tl.load(scale + at).to(tl.float32))
    change = factor * (scaled - normal * (tl.sum(scaled * normal) / WIDTH))
    total = tl.load(grad + row) + change
    tl.store(grad + row, total)
    tl.store(copy + row, total.to(copy.dtype.element_ty))
    tl.store(grad_out + row, tl.zeros((WIDTH,), tl.float32))


@triton.jit
def _attention_backward(
    q, keys, values, bias, attended, log_sum, grad, out,
    num_rows, num_tokens, num_keys, stride_keys, stride_bias, factor,
    SIZE: tl.constexpr, HEADS: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_ROWS rows and one part of the keys. Row r is head r % HEADS of token r // HEADS."""
    batch = tl.program_id(2)
    part = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    valid = rows < num_rows
    ds = tl.arange(0, SIZE)
    at = (batch * num_rows + rows)[:, None] * SIZE + ds[None, :]
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    qs = tl.load(q + at, mask=valid[:, None], other=0.0)
    grads = tl.load(grad + at, mask=valid[:, None], other=0.0)
    results = tl.load(attended + at, mask=valid[:, None], other=0.0)
    inner = tl.sum(grads.to(tl.float32) * results.to(tl.float32), axis=1)
    logs = tl.load(log_sum + batch * num_rows + rows, mask=valid, other=0.0)
    first = num_keys - num_tokens  # of the keys with gradients
    of_q = tl.zeros((BLOCK_ROWS, SIZE), tl.float32)
    row_size: tl.constexpr = (HEADS + 2) * SIZE
    for start in range(0, SPLIT, BLOCK_KEYS):
        ts = part * SPLIT + start + tl.arange(0, BLOCK_KEYS)
        inside = ts < num_keys
        at_keys = (batch * stride_keys + ts)[:, None] * SIZE + ds[None, :]
        ks = tl.load(keys + at_keys, mask=inside[:, None], other=0.0)
        vs = tl.load(values + at_keys, mask=inside[:, None], other=0.0)
        added = tl.load(bias + batch * stride_bias + ts, mask=inside, other=-1.0e30)
        scores = tl.dot(qs, tl.trans(ks)) * factor + tl.maximum(added, -1.0e30)[None, :] - logs[:, None]
        seen = (added > -0.5e30)[None, :] & valid[:, None]
        probable = tl.where(seen, tl.exp(tl.minimum(scores, 0.0)), 0.0)
        of_scores = (probable * (tl.dot(grads, tl.trans(vs)) - inner[:, None]) * factor).to(qs.dtype)
        of_q = tl.dot(of_scores, ks, of_q)
        if part * SPLIT + start + BLOCK_KEYS > first:
            of_k = tl.dot(tl.trans(of_scores), qs)
            of_v = tl.dot(tl.trans(probable.to(qs.dtype)), grads)
            mine = (inside & (ts >= first))[:, None]
            place = out + (batch * num_tokens + ts - first)[:, None] * row_size + HEADS * SIZE + ds[None, :]
            tl.atomic_add(place, of_k, mask=mine, sem="relaxed")
            tl.atomic_add(place + SIZE, of_v, mask=mine, sem="relaxed")
    place = (batch * num_tokens + rows // HEADS) * row_size + (rows % HEADS) * SIZE
    tl.atomic_add(out + place[:, None] + ds[None, :], of_q, mask=valid[:, None], sem="relaxed")


@triton.jit
def _rotation_backward(grad, cos, sin, out, HEADS: tl.constexpr, HALF: tl.constexpr, OVERLAP: tl.constexpr):
    token = tl.program_id(0)
    head = tl.program_id(1)
    at = tl.arange(0, HALF)
    here = (token * HEADS + head) * 2 * HALF + at
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    a = tl.load(grad + here)
    b = tl.load(grad + here + HALF)
    if head < HEADS - 1:  # queries and keys
        c = tl.load(cos + token * HALF + at)
        s = tl.load(sin + token * HALF + at)
        a, b = a * c + b * s, b * c - a * s
    kind = out.dtype.element_ty
    tl.store(out + here, a.to(kind))
    tl.store(out + here + HALF, b.to(kind))
    nothing = tl.zeros((HALF,), tl.float32)
    tl.store(grad + here, nothing)
    tl.store(grad + here + HALF, nothing)
