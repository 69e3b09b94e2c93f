"""Fill a network with published weights. Everything is checked first; no parameter keeps a random value."""

from __future__ import annotations

import torch

from dovetail.core.errors import CheckpointError, one_line, shown
from dovetail.policies.checkpoints.weight_files import WeightFiles
from dovetail.policies.vla.family import Family, FlowNetwork, Layout

__all__ = ["load_network"]


def load_network(
    files: WeightFiles,
    layout: Layout,
    family: Family,
    *,
    name: str,
    device: torch.device,
    dtype: torch.dtype,
) -> FlowNetwork:
    """Raise CheckpointError, with names, for missing or unexpected tensors and for other shapes. `name` is the folder's."""
    try:
        with torch.device("meta"):  # shapes only
            network = family.network(layout.sizes)
    except (RuntimeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(
            f"{name} describes no network ({shown(one_line(error))}). Copy the folder again"
        ) from error
    _check(files, layout, network, name=name, model=family.name)
    network = network.to(dtype).to_empty(device=device).requires_grad_(False).eval()
    parameters, filled = dict(network.named_parameters()), set()
    for ours, theirs in layout.sources.items():
        first = 0
        for key, tensor in files.read(theirs):
            rows = parameters[ours].narrow(0, first, len(tensor))
            rows.copy_(tensor)
            if not rows.isfinite().all():
                raise CheckpointError(f"{name}: '{key}' holds numbers that are not finite. Copy the folder again")
            first += len(tensor)
        filled.add(ours)
    assert filled == parameters.keys(), "a parameter without a source would be random"
    return network


def _check(files: WeightFiles, layout: Layout, network: FlowNetwork, *, name: str, model: str) -> None:
    sources = layout.sources
    needed = {key for theirs in sources.values() for key in theirs}
    unexpected = {key for key in files.shapes.keys() - needed if not layout.is_unused(key)}
    for what, keys, remedy in (
        (
            "lacks",
            needed - files.shapes.keys(),
            f"a complete {model} needs them all. Copy the folder again, or save the model again",
        ),
        (
            "has unexpected",
            unexpected,
            f"{model} has no such weights. Use a folder that was saved without additions",
        ),
    ):
        if keys:
            names, rest = [shown(key, max_chars=200) for key in sorted(keys)[:3]], len(keys) - 3
            more = f" and {rest} more" if rest > 0 else ""
            raise CheckpointError(f"{name} {what} {', '.join(names)}{more}: {remedy}")
    for ours, parameter in network.named_parameters():
        shapes = [files.shapes[key] for key in sources[ours]]
        joined = (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes[0] else ()
        if joined != tuple(parameter.shape) or len({shape[1:] for shape in shapes}) > 1:
            found = " and ".join(f"{key} {list(files.shapes[key])}" for key in sources[ours])
            raise CheckpointError(
                f"{name}: {found} should be {list(parameter.shape)}, as its config says. Copy "
                "config.json and the weights from the same folder"
            )
