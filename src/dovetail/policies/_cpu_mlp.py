"""What torch is slow at on one CPU thread, done faster there: MLPs with LayerNorm and tanh, and ensembles of them.

Measured on an AVX-512 core: torch's tanh takes half as long as the matrix product before it, numpy's a fifteenth; an
ensemble of small networks spends as much again on passes over memory that no cache holds as on its products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Views", "ensemble", "errors", "is_served", "mlp"]

_EPS = 1e-5  # layer norm's own default
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default


def is_served(values: Tensor) -> bool:
    """Elsewhere, and in what is compiled or in lower precision, torch's own way is the better one."""
    return (
        values.device.type == "cpu"
        and values.dtype == torch.float32
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


class _Layers(NamedTuple):
    """Per layer and member: a list of layers, each unbound into its members."""

    weights: Sequence[Sequence[Tensor]]  # [in, out]
    biases: Sequence[Sequence[Tensor]]  # [out]
    scales: Sequence[Sequence[Tensor]]  # [out], of all layers but the last
    shifts: Sequence[Sequence[Tensor]]

    @classmethod
    def of(cls, parameters: Sequence[Tensor]) -> Self:
        """From weights, biases, scales and shifts in a row, [E, ...] each; or those of a single one, as `nn.Linear`
        holds them."""
        num = (len(parameters) + 2) // 4
        if parameters[0].ndim == 2:
            parameters = [p.t()[None] if p.ndim == 2 else p[None, None] for p in parameters]
        weights = [weight.unbind(0) for weight in parameters[:num]]
        rows = [row.squeeze(1).unbind(0) for row in parameters[num:]]
        return cls(weights, rows[:num], rows[num : 2 * num - 1], rows[2 * num - 1 :])


class Views:
    """Views of a network's parameters, made once for as long as these stay where they are in memory."""

    def __init__(self) -> None:
        self._where: list[int] = []
        self._layers: _Layers | None = None

    def __deepcopy__(self, memo: object) -> Views:
        return Views()  # of the copy's own parameters

    def __reduce__(self) -> tuple[type[Views], tuple[()]]:
        return Views, ()

    def of(self, parameters: Sequence[Tensor]) -> _Layers:
        where = [parameter.data_ptr() for parameter in parameters]
        if self._layers is None or where != self._where:
            self._where, self._layers = where, _Layers.of([parameter.detach() for parameter in parameters])
        return self._layers


def ensemble(inputs: Tensor, parameters: Sequence[Tensor], *, members: Sequence[int], views: Views) -> Tensor:
    """[B, in] -> [members, B], member after member: what one of them works on stays in the cache."""
    return _applied(inputs, members, parameters, views).squeeze(-1)


def errors(
    inputs: Tensor, targets: Tensor, parameters: Sequence[Tensor], *, views: Views
) -> tuple[Tensor, Tensor]:
    """What all members say, [E, B], and the sum of their mean squared errors: the gradients of a member right after what
    it said, while the cache still holds that."""
    found: tuple[Tensor, Tensor] = _Errors.apply(inputs, targets, views.of(parameters), *parameters)  # type: ignore[no-untyped-call]
    return found


def mlp(inputs: Tensor, parameters: Sequence[Tensor], *, views: Views) -> Tensor:
    """[B, in] -> [B, out]."""
    return _applied(inputs, (0,), parameters, views)[0]


def _applied(inputs: Tensor, members: Sequence[int], parameters: Sequence[Tensor], views: Views) -> Tensor:
    layers = views.of(parameters)
    if not torch.is_grad_enabled():
        return _values(inputs, members, layers, None)
    if not any(parameter.requires_grad for parameter in parameters):
        parameters = ()  # gradients pass through to the inputs at most
    values: Tensor = _Ensemble.apply(inputs, members, layers, *parameters)  # type: ignore[no-untyped-call]
    return values


def _values(inputs: Tensor, members: Sequence[int], layers: _Layers, kept: list[Tensor] | None) -> Tensor:
    """What the members say, [members, B, out]; `kept` gets what their gradients need: four tensors for each hidden
    layer of each. None: nobody will ask, and each layer works where the cache still holds the one before."""
    num_out = layers.weights[-1][0].shape[1]
    values = inputs.new_empty(len(members), len(inputs), num_out)
    for row, e in zip(values.unbind(0), members, strict=True):
        hidden = inputs
        for i, scale in enumerate(layers.scales):
            sums = torch.addmm(layers.biases[i][e], hidden, layers.weights[i][e])
            hidden, mean, rstd = torch.native_layer_norm(sums, sums.shape[1:], scale[e], layers.shifts[i][e], _EPS)
            array = hidden.numpy()
            np.tanh(array, out=array)
            if kept is not None:
                kept += (sums, mean, rstd, hidden)
        if num_out == 1:  # a product of matrices takes six times as long
            torch.addmv(layers.biases[-1][e], hidden, layers.weights[-1][e][:, 0], out=row[:, 0])
        else:  # the other way round: few columns take twice as long as few rows
            torch.add(torch.mm(layers.weights[-1][e].t(), hidden.t()).t(), layers.biases[-1][e], out=row)
    return values


class _Ensemble(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, members: Sequence[int], layers: _Layers, *parameters: Tensor) -> Tensor:
        kept: list[Tensor] = []
        ctx.members, ctx.layers = members, layers
        values = _values(inputs, members, layers, kept)
        ctx.save_for_backward(inputs, *kept, *parameters)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        layers, num = ctx.layers, len(ctx.needs_input_grad) - 3
        inputs, *kept = ctx.saved_tensors
        of_inputs = torch.zeros_like(inputs) if ctx.needs_input_grad[0] else None
        found: list[Tensor] | None = None
        if num:
            whole = len(ctx.members) == len(layers.weights[0])
            found = [torch.empty_like(p) if whole else torch.zeros_like(p) for p in kept[-num:]]
        slopes = None if found is None else _Layers.of(found)
        size = 4 * len(layers.scales)
        for n, e in enumerate(ctx.members):
            mine, rows = kept[size * n : size * (n + 1)], None
            if slopes is None and of_inputs is not None:
                rows = grads[n].any(1).nonzero()[:, 0]
            if rows is None or of_inputs is None or 4 * len(rows) > 3 * len(inputs):
                _descend(grads[n], e, layers, inputs, mine, slopes, of_inputs)
            else:  # of the least of several, say: each row has one
                few = torch.zeros_like(inputs[: len(rows)])
                _descend(grads[n][rows], e, layers, inputs, [values[rows] for values in mine], None, few)
                of_inputs.index_add_(0, rows, few)
        return of_inputs, None, None, *(found or ())


class _Errors(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, targets: Tensor, layers: _Layers, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        of_inputs = torch.zeros_like(inputs) if ctx.needs_input_grad[0] else None
        found = [torch.empty_like(parameter) for parameter in parameters]
        slopes = _Layers.of(found)
        values = inputs.new_empty(len(layers.weights[0]), len(inputs))
        for e, row in enumerate(values):
            kept: list[Tensor] = []
            row.copy_(_values(inputs, (e,), layers, kept)[0, :, 0])
            _descend(((row - targets) * (2.0 / len(row)))[:, None], e, layers, inputs, kept, slopes, of_inputs)
        ctx.slopes = of_inputs, found
        ctx.mark_non_differentiable(values)
        return values, (values - targets).square().mean(1).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_inputs, found = ctx.slopes
        if grad != 1.0:  # as a rule it is what one descends
            of_inputs, found = None if of_inputs is None else of_inputs * grad, [slope * grad for slope in found]
        return of_inputs, None, None, *found


def _descend(
    grad: Tensor,
    e: int,
    layers: _Layers,
    inputs: Tensor,
    kept: Sequence[Tensor],
    slopes: _Layers | None,
    of_inputs: Tensor | None,
) -> None:
    """From what member `e` said, grad [B, out], to its parameters' `slopes` and the inputs' gradient where wanted."""
    wanted = slopes is not None
    if grad.shape[1] == 1:
        if slopes is not None:
            torch.mv(kept[-1].t(), grad[:, 0], out=slopes.weights[-1][e][:, 0])
        up = torch.outer(grad[:, 0], layers.weights[-1][e][:, 0])
    else:
        if slopes is not None:
            torch.mm(kept[-1].t(), grad, out=slopes.weights[-1][e])
        up = torch.mm(grad, layers.weights[-1][e].t())
    if slopes is not None:
        torch.sum(grad, 0, out=slopes.biases[-1][e])
    for i in reversed(range(len(layers.scales))):
        sums, mean, rstd, hidden = kept[4 * i : 4 * i + 4]
        _tanh_backward(up, hidden, grad_input=up)
        up, of_scale, of_shift = _layer_norm_backward(
            up,
            sums,
            sums.shape[1:],
            mean,
            rstd,
            layers.scales[i][e],
            layers.shifts[i][e],
            [True, wanted, wanted],
        )
        if slopes is not None:
            slopes.scales[i][e].copy_(of_scale)
            slopes.shifts[i][e].copy_(of_shift)
            below = inputs if i == 0 else kept[4 * i - 1]
            torch.mm(below.t(), up, out=slopes.weights[i][e])
            torch.sum(up, 0, out=slopes.biases[i][e])
        if i > 0:
            up = torch.mm(up, layers.weights[i][e].t())
        elif of_inputs is not None:
            of_inputs.addmm_(up, layers.weights[0][e].t())
