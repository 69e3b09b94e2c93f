"""An update as one CUDA graph: hundreds of small kernels launched at once, so that the GPU does not wait for Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["Graphs", "told"]

_NUM_PLAIN = (
    3  # calls that run as they are, before one is captured: libraries and optimisers set themselves up in them
)

Metrics = Mapping[str, Tensor | float]
Step = Callable[..., Metrics]


class Graphs:
    """`graphs(step, *tensors, variant=v)` does what `step(*tensors, variant=v)` does, from the fourth call on by replay.

    A step reads and changes tensors that stay where they are, draws from `generator` only, and asks the GPU nothing.
    What it returns is overwritten by the next call.
    """

    def __init__(self, generator: torch.Generator) -> None:
        if generator.device.type != "cuda":
            raise ValueError("graphs are of CUDA, and draw from a generator that lives there")
        self._generator = generator
        self._calls: dict[bool, int] = {}
        self._captured: dict[bool, tuple[torch.cuda.CUDAGraph, Sequence[Tensor], Metrics]] = {}

    def __call__(self, step: Step, *tensors: Tensor, variant: bool) -> Metrics:
        if variant not in self._captured:
            self._calls[variant] = self._calls.get(variant, 0) + 1
            if self._calls[variant] <= _NUM_PLAIN:
                return self._aside(step, tensors, variant=variant)
            self._capture(step, tensors, variant=variant)
        graph, inputs, outputs = self._captured[variant]
        torch._foreach_copy_(list(inputs), list(tensors), non_blocking=True)
        graph.replay()
        return outputs

    @staticmethod
    def _aside(step: Step, tensors: Sequence[Tensor], *, variant: bool) -> Metrics:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = step(*tensors, variant=variant)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _capture(self, step: Step, tensors: Sequence[Tensor], *, variant: bool) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)  # each replay draws on from where the last one stopped
        inputs = [tensor.clone() for tensor in tensors]
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            outputs = step(*inputs, variant=variant)
        self._captured[variant] = graph, inputs, outputs


def told(metrics: Metrics) -> dict[str, float]:
    """As numbers: a GPU is asked once for all of them."""
    tensors = {name: value for name, value in metrics.items() if isinstance(value, Tensor)}
    values = torch.stack([value.detach() for value in tensors.values()]).tolist() if tensors else []
    return {**metrics, **dict(zip(tensors, values, strict=True))}
