"""From inputs to action chunks: eager, compiled, or as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dovetail.policies.flows.guidance import guided_velocity
from dovetail.policies.settings import GuidanceConfig
from dovetail.policies.vla.family import FlowNetwork
from dovetail.policies.vla.lora import summed_once
from dovetail.policies.vla.networks.paligemma import PaliGemmaNetwork
from dovetail.policies.vla.networks.sizes import GemmaSizes

__all__ = ["FEW_TOKENS", "Commitment", "Inputs", "Parts", "Sampler", "compiled_parts", "fits_kernels"]

FEW_TOKENS = 128  # actions of a batch; more are large products, which torch computes faster


class Inputs(NamedTuple):
    """One batch for `FlowNetwork.prefix`, and the noise [B, H, A] that the chunk starts from."""

    images: Tensor
    camera_mask: Tensor
    tokens: Tensor
    token_mask: Tensor
    state: Tensor
    noise: Tensor

    def without_padding(self) -> Inputs:
        """Prompts as long as the longest of this batch: padding changes no result. On a GPU, graphs need one size."""
        if self.tokens.is_cuda:
            return self
        longest = int(self.token_mask.sum(1).max())
        return self._replace(tokens=self.tokens[:, :longest], token_mask=self.token_mask[:, :longest])


class Commitment(NamedTuple):
    """Real-time chunking: normalized actions [B, H, A] to continue, and their weights [B, H, A]."""

    target: Tensor
    weights: Tensor


class Parts(NamedTuple):
    """`prefix` and `velocity` of a network, compiled or not."""

    prefix: Callable[..., Any]
    velocity: Callable[[Tensor, Tensor, Any], Tensor]
    sample: Callable[[Inputs, Tensor], Tensor] | None = None
    """Whole chunks of small batches without guidance, from inputs and embedded times, if there is a faster way."""


def compiled_parts(network: FlowNetwork) -> Parts:
    """They compile at their first call with each batch size, with and without gradients. With Triton and the published
    sizes, most of pi0 and pi0.5 are kernels of our own."""
    if (
        isinstance(network, PaliGemmaNetwork)
        and fits_kernels(network.sizes.expert)
        and find_spec("triton") is not None
    ):
        from dovetail.policies.vla.fast.parts import fast_parts

        return fast_parts(network)
    velocity = torch.compile(network.velocity, dynamic=False, fullgraph=True)
    return Parts(torch.compile(network.prefix, dynamic=False, fullgraph=True), velocity)


def fits_kernels(expert: GemmaSizes) -> bool:
    """Whether the blocks of `fast/kernels.py` divide these sizes. They do for the published models."""
    is_power = all(size & (size - 1) == 0 for size in (expert.width, expert.head_size))
    summed = expert.num_heads * expert.head_size, expert.mlp_width
    return (
        expert.num_kv_heads == 1
        and is_power
        and expert.width >= 64
        and expert.head_size >= 32
        and all(size % 128 == 0 for size in summed)
    )


class Sampler:
    """Compute normalized chunks [B, H, A].

    `graph` captures the whole computation as one CUDA graph, at the first call with each batch size, guided or not. Call it
    once with each before the robot moves.

    `advantage_guidance` w is that of classifier-free guidance, velocity = none + w (positive - none). Unless it is 1, the
    inputs have 2 B rows for B chunks: first those without an advantage, then those with a positive one.
    """

    def __init__(
        self,
        network: FlowNetwork,
        *,
        num_steps: int,
        parts: Parts | None = None,
        graph: bool = False,
        guidance: GuidanceConfig | None = None,
        advantage_guidance: float = 1.0,
    ) -> None:
        self._network, self._num_steps = network, num_steps
        self._weight = advantage_guidance
        self._parts = parts or Parts(network.prefix, network.velocity)
        self._guidance = guidance or GuidanceConfig()
        self._is_graph = graph
        self._graphs: dict[tuple[int, bool], _Graph] = {}

    def __call__(self, inputs: Inputs, commitment: Commitment | None = None) -> Tensor:
        # no inference_mode, because guidance needs derivatives
        with torch.inference_mode(False), torch.no_grad():
            if not self._is_graph:
                return self._sample(inputs, commitment)
            key = len(inputs.noise), commitment is not None
            if key not in self._graphs:
                self._graphs[key] = _Graph(self._sample, inputs, commitment)
            return self._graphs[key](inputs, commitment)

    def _sample(self, inputs: Inputs, commitment: Commitment | None) -> Tensor:
        with summed_once(self._network.expert_modules.values()):
            return self._chunks(inputs, commitment)

    def _chunks(self, inputs: Inputs, commitment: Commitment | None) -> Tensor:
        num, x = self._num_steps, inputs.noise
        if self._weight != 1.0:
            x = x[: len(x) // 2]
        # 1 is noise; rounded once, as LeRobot does it
        times = (1.0 - torch.arange(num, dtype=torch.float64, device=x.device) / num).float()
        embedded = self._network.embed_times(times)
        whole = self._parts.sample
        is_small = x.shape[0] * x.shape[1] <= FEW_TOKENS
        if whole is not None and commitment is None and self._weight == 1.0 and is_small:
            return whole(inputs, embedded)
        prefix = self._parts.prefix(*inputs[:-1])
        for step in range(num):
            time = embedded[step : step + 1]
            if commitment is None:
                x = x - self._velocity(x, time, prefix) / num
            else:
                x = x + self._guided(x, step / num, time, prefix, commitment) / num
        return x

    def _velocity(self, x: Tensor, time: Tensor, prefix: Any) -> Tensor:
        if self._weight == 1.0:
            return self._parts.velocity(x, time, prefix)
        none, positive = self._parts.velocity(torch.cat((x, x)), time, prefix).chunk(2)
        return none + self._weight * (positive - none)

    def _guided(self, x: Tensor, t: float, time: Tensor, prefix: Any, commitment: Commitment) -> Tensor:
        """The velocity towards the actions: guidance counts time from noise to actions, and the network the other way."""
        return guided_velocity(
            lambda x, _: -self._velocity(x, time, prefix),
            x,
            t,
            target=commitment.target,
            weights=commitment.weights,
            beta=self._guidance.beta,
            jacobian=self._guidance.jacobian,
        )


class _Graph:
    """A captured call. Its inputs and its output stay in the same memory."""

    def __init__(
        self, sample: Callable[[Inputs, Commitment | None], Tensor], inputs: Inputs, commitment: Commitment | None
    ) -> None:
        self._inputs = Inputs(*(value.clone() for value in inputs))
        self._commitment = None if commitment is None else Commitment(*(value.clone() for value in commitment))
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles, and allocates what the libraries need
            for _ in range(3):
                sample(self._inputs, self._commitment)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = sample(self._inputs, self._commitment)

    def __call__(self, inputs: Inputs, commitment: Commitment | None) -> Tensor:
        for static, given in zip(self._inputs, inputs, strict=True):
            static.copy_(given, non_blocking=True)
        if self._commitment is not None and commitment is not None:
            for static, given in zip(self._commitment, commitment, strict=True):
                static.copy_(given, non_blocking=True)
        self._graph.replay()
        return self._output.clone()
