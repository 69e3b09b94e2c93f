"""Triton kernels of a Gemma layer with few tokens: the state or one chunk of actions, on a GPU.

A denoising step of pi0 passes 50 action tokens through 18 layers. Its products are so small that most of the time passes
between kernels. Eight kernels do a layer here:

    normalize -> queries, keys, values, rotation -> attention to parts of the keys -> sum of the parts -> output, residual
    normalize -> gated MLP -> down, residual

The residual stream is float32, because several programs add to it at once (atomically, so the last bits differ from call to
call). Products take bfloat16 or float16 and accumulate in float32. `networks/transformers.py` computes the same in
plain torch; a test compares them.

Most kernels overlap (programmatic dependent launch): each starts while the one before it ends, and then waits for its input.

Import it on a machine with Triton only.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "EPSILON",
    "add_product",
    "attention",
    "block_m",
    "fitted",
    "gated_mlp",
    "normalize",
    "overlap",
    "project_qkv",
]

EPSILON = 1e-6  # of the norms
_IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
_NEGATIVE = tl.constexpr(-1.0e30)  # instead of minus infinity: its differences are finite

# measured on an H200 with pi0's sizes
QKV: dict[str, Any] = {"HALF": 16, "BLOCK_K": 128, "num_warps": 4, "num_stages": 5}
MLP: dict[str, Any] = {"BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 5}
ADD: dict[str, Any] = {"BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4}
FEW: dict[str, Any] = {"BLOCK_ROWS": 32, "BLOCK_KEYS": 128, "num_warps": 4, "num_stages": 2}
MANY: dict[str, Any] = {"BLOCK_ROWS": 64, "BLOCK_KEYS": 64, "num_warps": 4, "num_stages": 2}


def normalize(
    x: Tensor, scale: Tensor, out: Tensor, *, shift: Tensor | None = None, copy: Tensor | None = None
) -> None:
    """Gemma's RMSNorm: tokens x [M, W], float32, to `out` [M, W], with a scale and a shift [W]. `copy` gets x."""
    _normalize[(len(x),)](
        x, scale, scale if shift is None else shift, out, x if copy is None else copy,
        WIDTH=x.shape[1], EPSILON=EPSILON, HAS_SHIFT=shift is not None, COPIES=copy is not None, num_warps=4, **overlap(),
    )  # fmt: skip


def project_qkv(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, q: Tensor, keys: Tensor, values: Tensor, *, first: int
) -> None:
    """Project tokens x [B, N, W] with `weight` [(G + 2) D, W] and rotate them.

    Queries go to q [B, N * G, D]; keys and values to the rows from `first` on of [B, T, D]. One key head."""
    num_rows, num_tokens, width = x.shape
    size = keys.shape[-1]
    num_heads = weight.shape[0] // size
    rows = block_m(num_rows * num_tokens)
    grid = (num_heads * (size // 2 // QKV["HALF"]), triton.cdiv(num_rows * num_tokens, rows))
    _project_qkv[grid](
        x, weight, cos, sin, q, keys, values,
        num_rows * num_tokens, num_tokens, first, keys.shape[1],
        WIDTH=width, HEADS=num_heads - 2, SIZE=size, BLOCK_M=rows, **fitted(QKV, width),
    )  # fmt: skip


def attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
    *,
    num_keys: int,
    num_splits: int = 1,
    num_early: int = 0,
    early_keys: int = 0,
    log_sum: Tensor | None = None,
) -> Tensor:
    """Attend with rows q [B, R, D] to the first `num_keys` of [B, T, D], with `bias` [B, T] added. Returns [B, R, D].

    The keys can be divided into `num_splits` parts, so that few rows keep the whole GPU busy. The first `num_early` rows
    attend to the first `early_keys` keys only. `log_sum` [B, R] gets the logarithm of each row's sum of exponentials."""
    num_batch, num_rows, size = q.shape
    out = torch.empty_like(q)
    settings = MANY if num_splits == 1 else FEW
    split = triton.cdiv(triton.cdiv(num_keys, num_splits), settings["BLOCK_KEYS"]) * settings["BLOCK_KEYS"]
    num_splits = triton.cdiv(num_keys, split)
    partial, summary = out, out
    has_parts = num_splits > 1 or log_sum is not None  # few keys are one part, and its sum is needed too
    if has_parts:
        partial = q.new_empty((num_splits, num_batch * num_rows, size))
        summary = q.new_empty((num_splits, num_batch * num_rows, 2), dtype=torch.float32)
    _attention[(triton.cdiv(num_rows, settings["BLOCK_ROWS"]), num_splits, num_batch)](
        q, keys, values, bias, partial, summary,
        num_rows, num_keys, num_early, early_keys, keys.shape[1], bias.shape[1], size**-0.5,
        SIZE=size, IS_PART=has_parts, SPLIT=split, **settings,
    )  # fmt: skip
    if has_parts:
        block = 1 << (num_splits - 1).bit_length()
        _sum_parts[(num_batch * num_rows,)](
            partial, summary, out, out if log_sum is None else log_sum, num_batch * num_rows,
            SIZE=size, SPLITS=num_splits, BLOCK=block, HAS_LOG_SUM=log_sum is not None, num_warps=2,
        )  # fmt: skip
    return out


def gated_mlp(x: Tensor, weight: Tensor, out: Tensor, *, gate_up: Tensor | None = None) -> None:
    """The first half of a gated MLP: normalized tokens x [M, W], `weight` [2 F, W] (gate, then up), `out` [M, F].

    `gate_up` [M, 2 F] gets the result of the product."""
    num_tokens, width = x.shape
    rows = block_m(num_tokens)
    _gated_mlp[(out.shape[1] // MLP["BLOCK_N"], triton.cdiv(num_tokens, rows))](
        x, weight, out, out if gate_up is None else gate_up, num_tokens, out.shape[1],
        WIDTH=width, BLOCK_M=rows, KEEPS=gate_up is not None, **fitted(MLP, width),
    )  # fmt: skip


def add_product(x: Tensor, a: Tensor, weight: Tensor, *, num_splits: int, gate: Tensor | None = None) -> None:
    """x [M, N] += gate [N] * (a [M, K] @ weight [N, K]^T). K is divided over `num_splits` programs."""
    num_tokens, size = a.shape
    rows, per_split = block_m(num_tokens), size // num_splits
    block_n = min(ADD["BLOCK_N"], x.shape[1])
    _add_product[(x.shape[1] // block_n, num_splits, triton.cdiv(num_tokens, rows))](
        x, a, weight, weight if gate is None else gate, num_tokens, x.shape[1], size,
        HAS_GATE=gate is not None, PER_SPLIT=per_split, BLOCK_M=rows, **{**fitted(ADD, per_split), "BLOCK_N": block_n},
    )  # fmt: skip


def fitted(settings: dict[str, Any], size: int) -> dict[str, Any]:
    """Settings with blocks that divide the summed axis."""
    block = settings["BLOCK_K"]
    while size % block:
        block //= 2
    return {**settings, "BLOCK_K": block, **overlap()}


def overlap() -> dict[str, bool]:
    """Triton's interpreter, which the tests use without a GPU, has no overlapping launches."""
    return {"OVERLAP": False} if _IS_INTERPRETED else {"OVERLAP": True, "launch_pdl": True}


def block_m(num_tokens: int) -> int:
    return 16 if num_tokens <= 16 else 32 if num_tokens <= 32 else 64


@triton.jit
def _normalize(
    x, scale, shift, out, copy,
    WIDTH: tl.constexpr, EPSILON: tl.constexpr, HAS_SHIFT: tl.constexpr, COPIES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, WIDTH)
    row = tl.program_id(0) * WIDTH
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    xs = tl.load(x + row + at)
    if COPIES:
        tl.store(copy + row + at, xs)
    factor = tl.rsqrt(tl.sum(xs * xs) / WIDTH + EPSILON)
    ys = xs * factor * (1.0 + tl.load(scale + at).to(tl.float32))
    if HAS_SHIFT:
        ys += tl.load(shift + at).to(tl.float32)
    tl.store(out + row + at, ys.to(out.dtype.element_ty))


@triton.jit
def _project_qkv(
    x, weight, cos, sin, q, keys, values,
    num_tokens, per_row, first, num_keys,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, HALF: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """One program: HALF columns of the first half of a head and the same of its second half, which rotate together."""
    per_head: tl.constexpr = SIZE // 2 // HALF
    head = tl.program_id(0) // per_head
    at = (tl.program_id(0) % per_head) * HALF + tl.arange(0, HALF)  # in the first half of the head
    tokens = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = tokens < num_tokens
    ks = tl.arange(0, BLOCK_K)
    x_at = x + tokens[:, None] * WIDTH + ks[None, :]
    a_at = weight + (head * SIZE + at)[:, None] * WIDTH + ks[None, :]
    b_at = a_at + (SIZE // 2) * WIDTH
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    a = tl.zeros((BLOCK_M, HALF), tl.float32)
    b = tl.zeros((BLOCK_M, HALF), tl.float32)
    for k in range(0, WIDTH, BLOCK_K):
        xs = tl.load(x_at + k, mask=valid[:, None], other=0.0)
        a = tl.dot(xs, tl.trans(tl.load(a_at + k)), a)
        b = tl.dot(xs, tl.trans(tl.load(b_at + k)), b)
    kind = q.dtype.element_ty
    a, b = a.to(kind).to(tl.float32), b.to(kind).to(tl.float32)
    if head <= HEADS:  # queries and keys
        angle_at = tokens[:, None] * (SIZE // 2) + at[None, :]
        c = tl.load(cos + angle_at, mask=valid[:, None], other=0.0)
        s = tl.load(sin + angle_at, mask=valid[:, None], other=0.0)
        a, b = a * c - b * s, b * c + a * s
    place = (tokens // per_row) * num_keys + first + tokens % per_row
    if head < HEADS:
        out = q + (tokens * HEADS + head)[:, None] * SIZE + at[None, :]
    elif head == HEADS:
        out = keys + place[:, None] * SIZE + at[None, :]
    else:
        out = values + place[:, None] * SIZE + at[None, :]
    tl.store(out, a.to(kind), mask=valid[:, None])
    tl.store(out + SIZE // 2, b.to(kind), mask=valid[:, None])


@triton.jit
def _attention(
    q, keys, values, bias, out, summary,
    num_rows, num_keys, num_early, early_keys, stride_keys, stride_bias, factor,
    SIZE: tl.constexpr, IS_PART: tl.constexpr, SPLIT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_ROWS rows and one part of the keys. `summary` gets the highest score and the sum of each row."""
    batch = tl.program_id(2)
    part = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    valid = rows < num_rows
    ds = tl.arange(0, SIZE)
    at = (batch * num_rows + rows)[:, None] * SIZE + ds[None, :]
    qs = tl.load(q + at, mask=valid[:, None], other=0.0)
    best = tl.full((BLOCK_ROWS,), _NEGATIVE, tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    acc = tl.zeros((BLOCK_ROWS, SIZE), tl.float32)
    for start in range(0, SPLIT, BLOCK_KEYS):
        ts = part * SPLIT + start + tl.arange(0, BLOCK_KEYS)
        inside = ts < num_keys
        at_keys = (batch * stride_keys + ts)[:, None] * SIZE + ds[None, :]
        ks = tl.load(keys + at_keys, mask=inside[:, None], other=0.0)
        vs = tl.load(values + at_keys, mask=inside[:, None], other=0.0)
        added = tl.load(bias + batch * stride_bias + ts, mask=inside, other=_NEGATIVE)
        scores = tl.dot(qs, tl.trans(ks)) * factor + tl.maximum(added, _NEGATIVE)[None, :]
        scores = tl.where((rows < num_early)[:, None] & (ts >= early_keys)[None, :], _NEGATIVE, scores)
        higher = tl.maximum(best, tl.max(scores, axis=1))
        probable = tl.where(scores > 0.5 * _NEGATIVE, tl.exp(scores - higher[:, None]), 0.0)
        shrink = tl.exp(best - higher)
        acc = tl.dot(probable.to(vs.dtype), vs, acc * shrink[:, None])
        total = total * shrink + tl.sum(probable, axis=1)
        best = higher
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    if IS_PART:
        here = (part * tl.num_programs(2) + batch) * num_rows + rows
        tl.store(out + here[:, None] * SIZE + ds[None, :], acc.to(out.dtype.element_ty), mask=valid[:, None])
        tl.store(summary + here * 2, best, mask=valid)
        tl.store(summary + here * 2 + 1, total, mask=valid)
    else:
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=valid[:, None])


@triton.jit
def _sum_parts(
    partial, summary, out, log_sum, num_rows,
    SIZE: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr, HAS_LOG_SUM: tl.constexpr,
):  # fmt: skip
    """One program: the weighted mean of one row over the parts of the keys."""
    row = tl.program_id(0)
    parts = tl.arange(0, BLOCK)
    valid = parts < SPLITS
    here = parts * num_rows + row
    best = tl.load(summary + here * 2, mask=valid, other=_NEGATIVE)
    highest = tl.max(best)
    share = tl.load(summary + here * 2 + 1, mask=valid, other=0.0) * tl.exp(best - highest)
    if HAS_LOG_SUM:
        tl.store(log_sum + row, highest + tl.log(tl.sum(share)))
    ds = tl.arange(0, SIZE)
    values = tl.load(partial + here[:, None] * SIZE + ds[None, :], mask=valid[:, None], other=0.0).to(tl.float32)
    mean = tl.sum(values * (share / tl.sum(share))[:, None], axis=0)
    tl.store(out + row * SIZE + ds, mean.to(out.dtype.element_ty))


@triton.jit
def _gated_mlp(
    x, weight, out, gate_up, num_tokens, num_hidden,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    KEEPS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = tokens < num_tokens
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    x_at = x + tokens[:, None] * WIDTH + ks[None, :]
    gate_at = weight + columns[:, None] * WIDTH + ks[None, :]
    up_at = gate_at + num_hidden * WIDTH
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, WIDTH, BLOCK_K):
        xs = tl.load(x_at + k, mask=valid[:, None], other=0.0)
        gate = tl.dot(xs, tl.trans(tl.load(gate_at + k)), gate)
        up = tl.dot(xs, tl.trans(tl.load(up_at + k)), up)
    if KEEPS:
        kept = gate_up + tokens[:, None] * (2 * num_hidden) + columns[None, :]
        tl.store(kept, gate.to(gate_up.dtype.element_ty), mask=valid[:, None])
        tl.store(kept + num_hidden, up.to(gate_up.dtype.element_ty), mask=valid[:, None])
    inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)  # gelu, tanh approximation
    hidden = gate * tl.sigmoid(2.0 * inner) * up
    at = tokens[:, None] * num_hidden + columns[None, :]
    tl.store(out + at, hidden.to(out.dtype.element_ty), mask=valid[:, None])


@triton.jit
def _add_product(
    x, a, weight, gate, num_tokens, num_out, size,
    HAS_GATE: tl.constexpr, PER_SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = tokens < num_tokens
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.program_id(1) * PER_SPLIT + tl.arange(0, BLOCK_K)
    a_at = a + tokens[:, None] * size + ks[None, :]
    w_at = weight + columns[:, None] * size + ks[None, :]
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, PER_SPLIT, BLOCK_K):
        left = tl.load(a_at + k, mask=valid[:, None], other=0.0)
        acc = tl.dot(left, tl.trans(tl.load(w_at + k)), acc)
    if HAS_GATE:
        acc *= tl.load(gate + columns).to(tl.float32)[None, :]
    tl.atomic_add(x + tokens[:, None] * num_out + columns[None, :], acc, mask=valid[:, None], sem="relaxed")
