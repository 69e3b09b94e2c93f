"""Networks that compute in bfloat16, between which everything stays float32: losses, log-densities, targets, statistics,
and the optimiser's own numbers. Parameters are float32 too, and rounded on the way in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["callable_modules", "compute_in_bf16"]


def compute_in_bf16(networks: Iterable[nn.Module]) -> None:
    """From now on, and for copies made of them later."""
    for network in networks:
        for part in callable_modules(network):
            hooks = _Lowered()
            part.register_forward_pre_hook(hooks.begin)
            part.register_forward_hook(hooks.end, always_call=True)


def callable_modules(network: nn.Module) -> Iterator[nn.Module]:
    """What is callable_modules as a whole: of a mere container, its parts."""
    if isinstance(network, nn.ModuleDict):
        for part in network.values():
            yield from callable_modules(part)
    elif isinstance(network, nn.ModuleList):
        for part in network:
            yield from callable_modules(part)
    else:
        yield network


class _Lowered:
    def __init__(self) -> None:
        self._open: list[torch.autocast] = []

    def begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        device = next((p.device.type for p in module.parameters()), "cpu")
        lowered = torch.autocast(device, torch.bfloat16)
        lowered.__enter__()  # type: ignore[no-untyped-call]
        self._open.append(lowered)

    def end(self, module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> Any:
        self._open.pop().__exit__(None, None, None)
        return _raised(outputs)


def _raised(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype == torch.bfloat16 else outputs
    if isinstance(outputs, tuple):
        return tuple(_raised(output) for output in outputs)
    return outputs
