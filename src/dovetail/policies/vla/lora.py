"""Low-rank adapters (Hu et al., 2021) of our networks: W + scale B A, where only A and B are trained.

    lora = Lora.add(network, places, pattern=r".*gemma_expert.*\\.(q|v)_proj", rank=16, alpha=32, seed=0)
    train(lora.parameters())
    lora.merge()  # the weights are plain tensors again

Some of our weights are several published ones, joined along the first axis. Each published one has its own A and B, as in
PEFT. The sum is computed wherever a weight is used (torch's parametrization), so every way through the network is adapted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dovetail.core.errors import UsageError

__all__ = ["Lora", "Place", "Update"]


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


class _Added(nn.Module):
    """A weight with all updates of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = nn.ModuleList()

    def forward(self, weight: Tensor) -> Tensor:
        total = weight.clone()
        for update in self.updates:
            assert isinstance(update, Update)
            change: Tensor = update()
            rows = slice(update.first, update.first + len(change))
            total[rows] = (weight[rows].float() + change).to(weight.dtype)
        return total


class Lora:
    """The updates that were added to a network, by published name."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self.updates: dict[str, Update] = {}
        self._adapted: dict[str, _Added] = {}

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
        module_name, _, attribute = place.parameter.rpartition(".")
        module = self._network.get_submodule(module_name)
        weight = getattr(module, attribute)
        update.to(weight.device)
        if place.parameter not in self._adapted:
            self._adapted[place.parameter] = _Added()
            parametrize.register_parametrization(module, attribute, self._adapted[place.parameter], unsafe=True)
        self._adapted[place.parameter].updates.append(update)
        self.updates[name] = update

    def parameters(self) -> Iterator[nn.Parameter]:
        """A and B of every update, in float32."""
        for update in self.updates.values():
            yield from update.parameters()

    def merge(self) -> None:
        """Make the sums the weights. The updates are then no part of the network."""
        for parameter in self._adapted:
            module_name, _, attribute = parameter.rpartition(".")
            parametrize.remove_parametrizations(
                self._network.get_submodule(module_name), attribute, leave_parametrized=True
            )
        self._adapted = {}
