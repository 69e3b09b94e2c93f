"""Replay an update as one CUDA graph: one launch starts hundreds of small kernels, so the GPU does not wait for Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["CudaGraphs", "Update", "to_floats"]

_NUM_PLAIN = 3  # calls before the capture, in which libraries and optimizers initialize themselves

Metrics = Mapping[str, Tensor | float]
Variant = tuple[tuple[str, object], ...]
Update = Callable[..., Metrics]  # update(batch, **variant)


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    names: list[str]  # of the metrics that are tensors
    values: Tensor  # the metrics that are tensors
    constants: dict[str, float]  # the other metrics


class CudaGraphs:
    """`graphs(update, batch, **variant)` returns the metrics of `update(batch, **variant)`, by replay from the fourth call.

    Each variant and each set of shapes has its own graph. An update may only change tensors in place, draw from `generator`
    only, and must not synchronize with the GPU.
    """

    def __init__(self, generator: torch.Generator) -> None:
        if generator.device.type != "cuda":
            raise ValueError(f"CUDA graphs need a generator on a CUDA device, not on '{generator.device}'")
        self._generator = generator
        self._num_calls: dict[Variant, int] = {}
        self._captured: dict[Variant, _Captured] = {}

    def __call__(self, update: Update, batch: Mapping[str, Tensor], **variant: bool) -> dict[str, float]:
        key = (*variant.items(), *((name, tensor.shape) for name, tensor in batch.items()))
        if key not in self._captured:
            self._num_calls[key] = self._num_calls.get(key, 0) + 1
            if self._num_calls[key] <= _NUM_PLAIN:
                return to_floats(self._on_side_stream(update, batch, **variant))
            self._captured[key] = self._capture(update, batch, **variant)
        found = self._captured[key]
        torch._foreach_copy_(found.inputs, list(batch.values()), non_blocking=True)
        found.graph.replay()
        return {**found.constants, **dict(zip(found.names, found.values.tolist(), strict=True))}

    @staticmethod
    def _on_side_stream(update: Update, batch: Mapping[str, Tensor], **variant: bool) -> Metrics:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            metrics = update(batch, **variant)
        torch.cuda.current_stream().wait_stream(stream)
        return metrics

    def _capture(self, update: Update, batch: Mapping[str, Tensor], **variant: bool) -> _Captured:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)  # each replay continues the random stream
        inputs = {name: tensor.clone() for name, tensor in batch.items()}
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            metrics = update(inputs, **variant)
            names, values = _stack(metrics)
        constants = {name: float(value) for name, value in metrics.items() if name not in names}
        return _Captured(graph, list(inputs.values()), names, values, constants)


def to_floats(metrics: Metrics) -> dict[str, float]:
    """Convert metrics to floats, with one synchronization for all of them on a GPU."""
    if not any(isinstance(value, Tensor) for value in metrics.values()):
        return {name: float(value) for name, value in metrics.items()}
    names, values = _stack(metrics)
    floats = dict(zip(names, values.tolist(), strict=True))
    return {name: floats[name] if name in floats else float(value) for name, value in metrics.items()}


def _stack(metrics: Metrics) -> tuple[list[str], Tensor]:
    tensors = {name: value.detach() for name, value in metrics.items() if isinstance(value, Tensor)}
    return list(tensors), torch.stack(list(tensors.values()))
