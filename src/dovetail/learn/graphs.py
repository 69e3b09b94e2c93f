"""An update as one CUDA graph: hundreds of small kernels launched at once, so that the GPU does not wait for Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Graphs", "told"]

_NUM_PLAIN = (
    3  # calls that run as they are, before one is captured: libraries and optimisers set themselves up in them
)

Metrics = Mapping[str, Tensor | float]


class Step(Protocol):
    def __call__(self, batch: Mapping[str, Tensor], *, variant: bool) -> Metrics: ...


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    names: list[str]  # of the metrics that are computed
    values: Tensor  # all of them
    others: dict[str, float]


class Graphs:
    """`graphs(step, batch, variant=v)` gives what `step(batch, variant=v)` says, from the fourth call on by replay.

    A step reads and changes tensors that stay where they are, draws from `generator` only, and asks the GPU nothing.
    """

    def __init__(self, generator: torch.Generator) -> None:
        if generator.device.type != "cuda":
            raise ValueError("graphs are of CUDA, and draw from a generator that lives there")
        self._generator = generator
        self._calls: dict[bool, int] = {}
        self._captured: dict[bool, _Captured] = {}

    def __call__(self, step: Step, batch: Mapping[str, Tensor], *, variant: bool) -> dict[str, float]:
        if variant not in self._captured:
            self._calls[variant] = self._calls.get(variant, 0) + 1
            if self._calls[variant] <= _NUM_PLAIN:
                return told(self._aside(step, batch, variant=variant))
            self._captured[variant] = self._capture(step, batch, variant=variant)
        found = self._captured[variant]
        torch._foreach_copy_(found.inputs, list(batch.values()), non_blocking=True)
        found.graph.replay()
        return {**found.others, **dict(zip(found.names, found.values.tolist(), strict=True))}

    @staticmethod
    def _aside(step: Step, batch: Mapping[str, Tensor], *, variant: bool) -> Metrics:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            metrics = step(batch, variant=variant)
        torch.cuda.current_stream().wait_stream(stream)
        return metrics

    def _capture(self, step: Step, batch: Mapping[str, Tensor], *, variant: bool) -> _Captured:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)  # each replay draws on from where the last one stopped
        inputs = {name: tensor.clone() for name, tensor in batch.items()}
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            metrics = step(inputs, variant=variant)
            names, values = _stacked(metrics)
        others = {name: float(value) for name, value in metrics.items() if name not in names}
        return _Captured(graph, list(inputs.values()), names, values, others)


def told(metrics: Metrics) -> dict[str, float]:
    """As numbers: a GPU is asked once for all of them."""
    if not any(isinstance(value, Tensor) for value in metrics.values()):
        return {name: float(value) for name, value in metrics.items()}
    names, values = _stacked(metrics)
    found = dict(zip(names, values.tolist(), strict=True))
    return {name: found[name] if name in found else float(value) for name, value in metrics.items()}


def _stacked(metrics: Metrics) -> tuple[list[str], Tensor]:
    tensors = {name: value.detach() for name, value in metrics.items() if isinstance(value, Tensor)}
    return list(tensors), torch.stack(list(tensors.values()))
