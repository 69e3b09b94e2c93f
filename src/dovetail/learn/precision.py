"""Compute networks in bfloat16. Parameters, losses, log-densities, targets, statistics and optimizer state stay float32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

__all__ = ["ChoosesPrecision", "callable_modules", "compute_in_bf16"]


def compute_in_bf16(networks: Iterable[nn.Module]) -> None:
    """Add hooks to these networks. Copies made afterwards have them too."""
    for network in networks:
        if isinstance(network, ChoosesPrecision):
            network.compute_in_bf16()
            continue
        for module in callable_modules(network):
            hooks = _AutocastHooks()
            module.register_forward_pre_hook(hooks.enter)
            module.register_forward_hook(hooks.exit, always_call=True)


@runtime_checkable
class ChoosesPrecision(Protocol):
    """A network whose modules are not called as a whole, so that hooks would miss it."""

    def compute_in_bf16(self) -> None: ...


def callable_modules(network: nn.Module) -> Iterator[nn.Module]:
    """The modules that are called as a whole: the network, or the elements of a container."""
    if isinstance(network, nn.ModuleDict):
        for module in network.values():
            yield from callable_modules(module)
    elif isinstance(network, nn.ModuleList):
        for module in network:
            yield from callable_modules(module)
    else:
        yield network


class _AutocastHooks:
    def __init__(self) -> None:
        self._entered: list[torch.autocast] = []

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        device = next((p.device.type for p in module.parameters()), "cpu")
        autocast = torch.autocast(device, torch.bfloat16)
        autocast.__enter__()  # type: ignore[no-untyped-call]
        self._entered.append(autocast)

    def exit(self, module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> Any:
        self._entered.pop().__exit__(None, None, None)
        return _to_float32(outputs)


def _to_float32(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype == torch.bfloat16 else outputs
    if isinstance(outputs, tuple):
        return tuple(_to_float32(output) for output in outputs)
    return outputs
