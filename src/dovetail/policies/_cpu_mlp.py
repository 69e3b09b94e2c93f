"""Fast forward and backward passes on one CPU thread for MLPs with LayerNorm and tanh, and for ensembles of them.

Measured on an AVX-512 core: torch's tanh takes half as long as the matrix product before it, numpy's a fifteenth. A
batched ensemble spends half of its time on memory that no cache holds, so the members are computed one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["ParameterViews", "ensemble", "errors", "mlp", "supports"]

_EPS = 1e-5  # the default of nn.LayerNorm
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default


def supports(values: Tensor) -> bool:
    """Only float32 on a CPU. Compiled or autocast code and GPUs use torch's own operators."""
    return (
        values.device.type == "cpu"
        and values.dtype == torch.float32
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


class _Layers(NamedTuple):
    """Parameters as [layer][member]."""

    weights: Sequence[Sequence[Tensor]]  # [in, out]
    biases: Sequence[Sequence[Tensor]]  # [out]
    scales: Sequence[Sequence[Tensor]]  # [out], hidden layers only
    shifts: Sequence[Sequence[Tensor]]

    @classmethod
    def of(cls, parameters: Sequence[Tensor]) -> Self:
        """From a flat list of all weights, biases, scales and shifts. Each has the ensemble axis first, or none and the
        layout of `nn.Linear`."""
        num_layers = (len(parameters) + 2) // 4
        if parameters[0].ndim == 2:
            parameters = [p.t()[None] if p.ndim == 2 else p[None, None] for p in parameters]
        weights = [weight.unbind(0) for weight in parameters[:num_layers]]
        vectors = [vector.squeeze(1).unbind(0) for vector in parameters[num_layers:]]
        biases, scales_and_shifts = vectors[:num_layers], vectors[num_layers:]
        return cls(weights, biases, scales_and_shifts[: num_layers - 1], scales_and_shifts[num_layers - 1 :])


class ParameterViews:
    """Cached views of a network's parameters. They are made again when the parameters move in memory."""

    def __init__(self) -> None:
        self._addresses: list[int] = []
        self._layers: _Layers | None = None

    def __deepcopy__(self, memo: object) -> ParameterViews:
        return ParameterViews()  # the copy has other parameters

    def __reduce__(self) -> tuple[type[ParameterViews], tuple[()]]:
        return ParameterViews, ()

    def of(self, parameters: Sequence[Tensor]) -> _Layers:
        addresses = [parameter.data_ptr() for parameter in parameters]
        if self._layers is None or addresses != self._addresses:
            self._addresses, self._layers = addresses, _Layers.of([p.detach() for p in parameters])
        return self._layers


def ensemble(
    inputs: Tensor, parameters: Sequence[Tensor], *, members: Sequence[int], views: ParameterViews
) -> Tensor:
    """[B, in] -> [members, B]. One member after another, because the data of one fits into the cache."""
    return _apply(inputs, members, parameters, views).squeeze(-1)


def errors(
    inputs: Tensor, targets: Tensor, parameters: Sequence[Tensor], *, views: ParameterViews
) -> tuple[Tensor, Tensor]:
    """The outputs of all members, [E, B], and the sum of their mean squared errors. Each member's gradients are computed
    right after its outputs, while its data is still in the cache."""
    found: tuple[Tensor, Tensor] = _Errors.apply(inputs, targets, views.of(parameters), *parameters)  # type: ignore[no-untyped-call]
    return found


def mlp(inputs: Tensor, parameters: Sequence[Tensor], *, views: ParameterViews) -> Tensor:
    """[B, in] -> [B, out]."""
    return _apply(inputs, (0,), parameters, views)[0]


def _apply(inputs: Tensor, members: Sequence[int], parameters: Sequence[Tensor], views: ParameterViews) -> Tensor:
    layers = views.of(parameters)
    if not torch.is_grad_enabled():
        return _forward(inputs, members, layers, None)
    if not any(parameter.requires_grad for parameter in parameters):
        parameters = ()  # only the inputs may need gradients
    values: Tensor = _Ensemble.apply(inputs, members, layers, *parameters)  # type: ignore[no-untyped-call]
    return values


def _forward(inputs: Tensor, members: Sequence[int], layers: _Layers, saved: list[Tensor] | None) -> Tensor:
    """The outputs of the members, [members, B, out]. `saved` receives the tensors for the backward pass: four per hidden
    layer and member. None: no backward pass follows."""
    num_out = layers.weights[-1][0].shape[1]
    values = inputs.new_empty(len(members), len(inputs), num_out)
    for row, e in zip(values.unbind(0), members, strict=True):
        hidden = inputs
        for i, scale in enumerate(layers.scales):
            sums = torch.addmm(layers.biases[i][e], hidden, layers.weights[i][e])
            hidden, mean, rstd = torch.native_layer_norm(sums, sums.shape[1:], scale[e], layers.shifts[i][e], _EPS)
            array = hidden.numpy()
            np.tanh(array, out=array)
            if saved is not None:
                saved += (sums, mean, rstd, hidden)
        if num_out == 1:  # a matrix product takes six times as long
            torch.addmv(layers.biases[-1][e], hidden, layers.weights[-1][e][:, 0], out=row[:, 0])
        else:  # transposed, because few columns take twice as long as few rows
            torch.add(torch.mm(layers.weights[-1][e].t(), hidden.t()).t(), layers.biases[-1][e], out=row)
    return values


class _Ensemble(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, members: Sequence[int], layers: _Layers, *parameters: Tensor) -> Tensor:
        saved: list[Tensor] = []
        ctx.members, ctx.layers = members, layers
        values = _forward(inputs, members, layers, saved)
        ctx.save_for_backward(inputs, *saved, *parameters)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        layers, num_parameters = ctx.layers, len(ctx.needs_input_grad) - 3
        inputs, *saved = ctx.saved_tensors
        input_grad = torch.zeros_like(inputs) if ctx.needs_input_grad[0] else None
        parameter_grads: list[Tensor] | None = None
        if num_parameters:
            has_all = len(ctx.members) == len(layers.weights[0])
            new = torch.empty_like if has_all else torch.zeros_like
            parameter_grads = [new(p) for p in saved[-num_parameters:]]
        layer_grads = None if parameter_grads is None else _Layers.of(parameter_grads)
        num_saved = 4 * len(layers.scales)
        for n, e in enumerate(ctx.members):
            of_member, rows = saved[num_saved * n : num_saved * (n + 1)], None
            if layer_grads is None and input_grad is not None:
                rows = grads[n].any(1).nonzero()[:, 0]
            if rows is None or input_grad is None or 4 * len(rows) > 3 * len(inputs):
                _backward(grads[n], e, layers, inputs, of_member, layer_grads, input_grad)
            else:  # most rows have no gradient, as after a minimum over members
                of_rows = torch.zeros_like(inputs[: len(rows)])
                _backward(grads[n][rows], e, layers, inputs, [values[rows] for values in of_member], None, of_rows)
                input_grad.index_add_(0, rows, of_rows)
        return input_grad, None, None, *(parameter_grads or ())


class _Errors(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, targets: Tensor, layers: _Layers, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        input_grad = torch.zeros_like(inputs) if ctx.needs_input_grad[0] else None
        parameter_grads = [torch.empty_like(parameter) for parameter in parameters]
        layer_grads = _Layers.of(parameter_grads)
        values = inputs.new_empty(len(layers.weights[0]), len(inputs))
        for e, row in enumerate(values):
            saved: list[Tensor] = []
            row.copy_(_forward(inputs, (e,), layers, saved)[0, :, 0])
            grad = ((row - targets) * (2.0 / len(row)))[:, None]
            _backward(grad, e, layers, inputs, saved, layer_grads, input_grad)
        ctx.grads = input_grad, parameter_grads
        ctx.mark_non_differentiable(values)
        return values, (values - targets).square().mean(1).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        input_grad, parameter_grads = ctx.grads
        if grad != 1.0:  # it is 1 if the sum of errors is the loss
            input_grad = None if input_grad is None else input_grad * grad
            parameter_grads = [of_parameter * grad for of_parameter in parameter_grads]
        return input_grad, None, None, *parameter_grads


def _backward(
    grad: Tensor,
    e: int,
    layers: _Layers,
    inputs: Tensor,
    saved: Sequence[Tensor],
    layer_grads: _Layers | None,
    input_grad: Tensor | None,
) -> None:
    """Backpropagate the output gradient `grad` [B, out] of member `e`. Writes its share of `layer_grads`, adds to
    `input_grad`."""
    with_parameters = layer_grads is not None
    if grad.shape[1] == 1:
        if layer_grads is not None:
            torch.mv(saved[-1].t(), grad[:, 0], out=layer_grads.weights[-1][e][:, 0])
        up = torch.outer(grad[:, 0], layers.weights[-1][e][:, 0])
    else:
        if layer_grads is not None:
            torch.mm(saved[-1].t(), grad, out=layer_grads.weights[-1][e])
        up = torch.mm(grad, layers.weights[-1][e].t())
    if layer_grads is not None:
        torch.sum(grad, 0, out=layer_grads.biases[-1][e])
    for i in reversed(range(len(layers.scales))):
        sums, mean, rstd, hidden = saved[4 * i : 4 * i + 4]
        _tanh_backward(up, hidden, grad_input=up)
        up, scale_grad, shift_grad = _layer_norm_backward(
            up,
            sums,
            sums.shape[1:],
            mean,
            rstd,
            layers.scales[i][e],
            layers.shifts[i][e],
            [True, with_parameters, with_parameters],
        )
        if layer_grads is not None:
            layer_grads.scales[i][e].copy_(scale_grad)
            layer_grads.shifts[i][e].copy_(shift_grad)
            below = inputs if i == 0 else saved[4 * i - 1]
            torch.mm(below.t(), up, out=layer_grads.weights[i][e])
            torch.sum(up, 0, out=layer_grads.biases[i][e])
        if i > 0:
            up = torch.mm(up, layers.weights[i][e].t())
        elif input_grad is not None:
            input_grad.addmm_(up, layers.weights[0][e].t())
