"""How the layers of a large network are computed in an update: recomputed, compiled, in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

__all__ = ["LayerRunner"]


@dataclass(slots=True)
class LayerRunner:
    """A network calls `run(layer_function, *arguments)` for each of its large layers. Acting is never changed."""

    recompute: bool = False
    """Keep only the input of each layer, and compute the layer again for its gradients. Needs far less memory."""
    is_compiled: bool = False
    """Let torch compile the layers: once for all layers of a kind."""
    is_bf16: bool = False
    """Compute products in bfloat16. Parameters, gradients and optimizer state keep their type."""
    _compiled: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*arguments)
        if self.is_compiled:
            if function not in self._compiled:
                self._compiled[function] = torch.compile(function, dynamic=False)
            function = self._compiled[function]
        if not self.recompute:
            return function(*arguments)
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)

    def precision(self, device: torch.device) -> AbstractContextManager[Any]:
        return torch.autocast(device.type, torch.bfloat16) if self.is_bf16 else nullcontext()
