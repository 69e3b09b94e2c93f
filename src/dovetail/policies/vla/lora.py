"""Low-rank adapters (Hu et al., 2021) of our networks: W + scale B A, where only A and B are trained.

    lora = Lora.add(network, places, pattern=r".*gemma_expert.*\\.(q|v)_proj", rank=16, alpha=32, seed=0)
    train(lora.parameters())
    lora.merge()  # the weights are plain tensors again

Some of our weights are several published ones, joined along the first axis. Each published one has its own A and B, as in
PEFT. The sum is computed wherever a weight is used, so every way through the network is adapted, and the weights are in
memory once. `summed_once` computes the sums of some layers once for several calls.

torch's own parametrization gives each module a class of its own. torch would then compile each layer again, and refuse the
ninth. Here all layers of a kind share one class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dovetail.core.errors import UsageError

__all__ = ["Lora", "Place", "Update", "summed_once"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a published tensor is in our network."""

    parameter: str
    first: int
    num: int


class Update(nn.Module):
    """B A of one published weight, [out, in]."""

    def __init__(self, down: Tensor, up: Tensor, *, scale: float, first: int) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(down), nn.Parameter(up)  # A [rank, in] and B [out, rank]
        self.scale, self.first = scale, first

    def forward(self) -> Tensor:
        return self.scale * (self.up @ self.down)


class _Sum(nn.Module):
    """A weight with all updates of its rows."""

    def __init__(self, base: nn.Parameter) -> None:
        super().__init__()
        self.base, self.updates = base, nn.ModuleList()
        self.kept: Tensor | None = None  # inside `summed_once`

    def forward(self) -> Tensor:
        if self.kept is not None:
            return self.kept
        base = self.base
        total = base.clone()
        for update in self.updates:
            assert isinstance(update, Update)
            change: Tensor = update()
            rows = slice(update.first, update.first + len(change))
            total[rows] = (base[rows].float() + change).to(base.dtype)
        return total


@contextmanager
def summed_once(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Compute the sums of all adapted weights in some modules now, and use them until the end. They have no gradients."""
    sums = [part for module in modules for part in module.modules() if isinstance(part, _Sum)]
    try:
        for one in sums:
            one.kept = one().detach()
        yield
    finally:
        for one in sums:
            one.kept = None


_CLASSES: dict[tuple[type[nn.Module], str], type[nn.Module]] = {}


def _adapted_class(kind: type[nn.Module], attribute: str) -> type[nn.Module]:
    """A module class whose weight is a sum. The same for all modules of a kind."""
    if (kind, attribute) in _CLASSES:
        return _CLASSES[kind, attribute]

    def total(module: nn.Module) -> Tensor:
        found: Tensor = getattr(module, _sum_name(attribute))()
        return found

    adapted = type(f"Adapted{kind.__name__}", (kind,), {attribute: property(total)})
    _CLASSES[kind, attribute] = adapted
    return adapted


def _sum_name(attribute: str) -> str:
    return f"{attribute}_sum"


class Lora:
    """The updates that were added to a network, by published name."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self.updates: dict[str, Update] = {}
        self._sums: dict[str, _Sum] = {}

    @staticmethod
    def add(
        network: nn.Module, places: Mapping[str, Place], *, pattern: str, rank: int, alpha: float, seed: int
    ) -> Lora:
        """New updates, which change nothing yet because B is zero, for all matrices whose published module matches.

        The rest of the network is frozen. Raise UsageError if nothing matches."""
        network.requires_grad_(False)
        lora = Lora(network)
        weights = dict(network.named_parameters())
        generator = torch.Generator().manual_seed(seed)
        for name, place in places.items():
            weight = weights[place.parameter]
            module = name.removesuffix(".weight")
            if not name.endswith(".weight") or weight.ndim != 2 or re.fullmatch(pattern, module) is None:
                continue
            size = weight.shape[1]
            down = torch.randn((rank, size), generator=generator) * size**-0.5
            up = torch.zeros((place.num, rank))
            lora.put(name, place, Update(down, up, scale=alpha / rank, first=place.first))
        if not lora.updates:
            raise UsageError(f"no weight has a name that matches '{pattern}', so there is nothing to adapt")
        return lora

    def put(self, name: str, place: Place, update: Update) -> None:
        """Add an update to the rows of a published weight."""
        if place.parameter not in self._sums:
            self._sums[place.parameter] = self._adapt(place.parameter)
        found = self._sums[place.parameter]
        found.updates.append(update.to(found.base.device))
        self.updates[name] = update

    def _adapt(self, parameter: str) -> _Sum:
        """Replace a parameter by a sum without updates."""
        module, attribute = self._place(parameter)
        found = _Sum(module._parameters.pop(attribute))  # type: ignore[arg-type]
        module.register_module(_sum_name(attribute), found)
        module.__class__ = _adapted_class(type(module), attribute)
        return found

    def _place(self, parameter: str) -> tuple[nn.Module, str]:
        module_name, _, attribute = parameter.rpartition(".")
        return self._network.get_submodule(module_name), attribute

    def parameters(self) -> Iterator[nn.Parameter]:
        """A and B of every update, in float32."""
        for update in self.updates.values():
            yield from update.parameters()

    def merge(self) -> None:
        """Make the sums the weights. The updates are then no part of the network."""
        for parameter, found in reversed(self._sums.items()):
            module, attribute = self._place(parameter)
            base = found.base
            base.data = found().detach()
            module.__class__ = type(module).__bases__[0]
            del module._modules[_sum_name(attribute)]
            module.register_parameter(attribute, base)
        self._sums = {}
