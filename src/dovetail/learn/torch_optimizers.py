"""torch's Adam and AdamW. Making one here does not load torch's compiler, which takes most of a second."""

from __future__ import annotations

import inspect
from typing import Any

import torch

__all__ = ["TorchAdam", "TorchAdamW"]

_add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)


class _WithoutCompiler(torch.optim.Optimizer):
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        # torch loads its compiler here only to exclude this method from compilation
        _add_param_group(self, param_group)


class TorchAdam(_WithoutCompiler, torch.optim.Adam):
    """torch.optim.Adam."""


class TorchAdamW(_WithoutCompiler, torch.optim.AdamW):
    """torch.optim.AdamW."""
