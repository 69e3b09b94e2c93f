"""Networks of a class of the user: `policy.model_class`, and `policy.components.NAME.model_class`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dovetail.core.errors import PluginError, UsageError
from dovetail.core.own_modules import load_class

__all__ = ["build_network", "load_network_class"]


def load_network_class(name: str, *, setting: str) -> type[nn.Module]:
    """Import `package.module:Class`. `setting` is the one that names it. Raise PluginError if it is no torch module."""
    found = load_class(name, what=f"{setting} '{name}'")
    if not issubclass(found, nn.Module):
        raise PluginError(f"{setting} '{name}' should be a subclass of torch.nn.Module")
    return found


def build_network(
    kind: type[nn.Module], options: Mapping[str, Any], sizes: Mapping[str, int], *, name: str, setting: str
) -> nn.Module:
    """Construct it with `options`, which `setting` gave, and with those of `sizes` that its constructor takes."""
    parameters = inspect.signature(kind).parameters
    arguments = dict(options)
    for size, value in sizes.items():
        if size not in parameters:
            continue
        if arguments.setdefault(size, value) != value:
            raise UsageError(f"{setting}.{size} is {arguments[size]}, but the robot needs {value}")
    try:
        inspect.signature(kind).bind(**arguments)
    except TypeError as problem:
        raise PluginError(
            f"{name}: {setting} does not fit its constructor, {problem}. It takes {', '.join(parameters) or 'nothing'}"
        ) from problem
    try:
        module = kind(**arguments)
    except Exception as problem:  # code of the user may raise anything
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise PluginError(f"{name} cannot be constructed ({reason[:300]})") from problem
    if any(parameter.dtype == torch.bfloat16 for parameter in module.parameters()):
        raise PluginError(
            f"{name} has bfloat16 parameters, which versions of weights cannot store. Construct it in float32; "
            "learner.precision=bf16 computes in bfloat16"
        )
    return module
