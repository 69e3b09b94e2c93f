"""Random numbers for networks. They are drawn on the generator's device and then moved to the network's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Generator, Tensor

from dovetail.core.streams import stream

__all__ = ["SharedGenerator", "integers", "normal", "seeded_generator", "uniform"]


def seeded_generator(seed: int | None, *, role: str = "") -> Generator | None:
    """A CPU generator. None: torch's global one.

    A policy on a base policy names a `role`. Both get the same seed, and without it they would draw the same numbers.
    """
    if seed is not None and role:
        seed = int(stream(seed % 2**64, role).integers(2**63))
    return None if seed is None else Generator().manual_seed(seed)


class SharedGenerator(Generator):
    """One random stream for the ranks of a data-parallel learner.

    Every rank draws for the whole batch and keeps the values of its own rows. So the ranks' generators stay in step, and
    the ranks together compute the same update as a single process.
    """

    rank: int
    size: int

    @staticmethod
    def of(*, device: torch.device, rank: int, size: int) -> SharedGenerator:
        generator = SharedGenerator(device=device)
        generator.rank, generator.size = rank, size
        return generator


def normal(shape: Sequence[int], *, generator: Generator | None, device: torch.device, rows: int = 0) -> Tensor:
    """Values from N(0, 1). `rows` is the batch axis."""
    return _draw(torch.randn, shape, generator, device, rows)


def uniform(shape: Sequence[int], *, generator: Generator | None, device: torch.device, rows: int = 0) -> Tensor:
    """Values from [0, 1). `rows` is the batch axis."""
    return _draw(torch.rand, shape, generator, device, rows)


def integers(
    low: int, high: int, shape: Sequence[int], *, generator: Generator | None, device: torch.device, rows: int = 0
) -> Tensor:
    """Integers from `low` to `high` - 1. `rows` is the batch axis."""
    return _draw(partial(torch.randint, low, high), shape, generator, device, rows)


def _draw(
    draw: Callable[..., Tensor], shape: Sequence[int], generator: Generator | None, device: torch.device, rows: int
) -> Tensor:
    source = device if generator is None else generator.device
    if not isinstance(generator, SharedGenerator):
        return draw(tuple(shape), generator=generator, device=source).to(device)
    whole = list(shape)
    whole[rows] *= generator.size
    drawn = draw(whole, generator=generator, device=source)
    # row i of the whole batch is row i // size of rank i % size, as in the data-parallel learner
    own_rows = torch.arange(generator.rank, whole[rows], generator.size, device=source)
    return drawn.index_select(rows, own_rows).to(device)
