"""Random numbers for networks: drawn where their generator lives, used where the network does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

__all__ = ["SharedGenerator", "integers", "normal", "uniform"]


class SharedGenerator(torch.Generator):
    """One stream for several processes that each hold a part of a batch: all draw for the whole of it, and each keeps what
    is for its own rows. So they stay alike, and together they learn what one would have."""

    rank: int
    size: int

    @staticmethod
    def of(*, device: torch.device, rank: int, size: int) -> SharedGenerator:
        generator = SharedGenerator(device=device)
        generator.rank, generator.size = rank, size
        return generator


def normal(
    shape: Sequence[int], *, generator: torch.Generator | None, device: torch.device, rows: int = 0
) -> Tensor:
    """From N(0, 1); `rows` is the axis along which a batch has its rows."""
    return _draw(torch.randn, shape, generator, device, rows)


def uniform(
    shape: Sequence[int], *, generator: torch.Generator | None, device: torch.device, rows: int = 0
) -> Tensor:
    """From 0 to 1."""
    return _draw(torch.rand, shape, generator, device, rows)


def integers(
    low: int,
    high: int,
    shape: Sequence[int],
    *,
    generator: torch.Generator | None,
    device: torch.device,
    rows: int = 0,
) -> Tensor:
    """From `low` to `high`, which is not among them."""
    return _draw(partial(torch.randint, low, high), shape, generator, device, rows)


def _draw(
    draw: object, shape: Sequence[int], generator: torch.Generator | None, device: torch.device, rows: int
) -> Tensor:
    assert callable(draw)
    where = device if generator is None else generator.device
    if not isinstance(generator, SharedGenerator):
        drawn: Tensor = draw(tuple(shape), generator=generator, device=where).to(device)
        return drawn
    whole = list(shape)
    whole[rows] *= generator.size
    drawn = draw(whole, generator=generator, device=where)
    # row i of the whole is row i // size of process i % size: see learn.spread
    every = torch.arange(generator.rank, whole[rows], generator.size, device=where)
    return drawn.index_select(rows, every).to(device)
