"""The multiply-adds that an update cannot do without, and how fast this core does them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

__all__ = ["GEMM_MACS", "gemm", "mlp_macs", "ppo_macs", "soft_macs"]

_SIDE = 256
GEMM_MACS = _SIDE**3


def gemm() -> Callable[[], object]:
    """One product of matrices as an update has them: its time is what the floor is measured in."""
    left, right, out = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE), torch.empty(_SIDE, _SIDE)
    return lambda: torch.mm(left, right, out=out)


def mlp_macs(sizes: Sequence[int], *, parameters: bool = False, inputs: int | None = None) -> int:
    """Of one row through an MLP and, where gradients are asked for, back: for its parameters, and for that many of its
    inputs. What is passed down is needed by either, from the last layer to the second."""
    pairs = [below * above for below, above in itertools.pairwise(sizes)]
    macs = sum(pairs)
    if parameters:
        macs += sum(pairs)
    if parameters or inputs is not None:
        macs += sum(pairs[1:])
    return macs + (inputs or 0) * sizes[1]


def soft_macs(
    *, features: int, actions: int, hidden: Sequence[int], batch: int, critics: int, targets: int
) -> int:
    """One update of a soft actor-critic's critics and actor. Of the targets, those that are asked; of the critics,
    while the actor climbs the least of them, no gradient but that of its actions, and of each row only that one's."""
    actor, critic = (features, *hidden, 2 * actions), (features + actions, *hidden, 1)
    per_row = (
        mlp_macs(actor)  # what it would do next
        + targets * mlp_macs(critic)
        + critics * mlp_macs(critic, parameters=True)
        + (critics - 1) * mlp_macs(critic)
        + mlp_macs(critic, inputs=actions)
        + mlp_macs(actor, parameters=True)
    )
    return batch * per_row


def ppo_macs(*, features: int, actions: int, hidden: Sequence[int], rows: int) -> int:
    """One epoch, after values and log-densities of all rows as they are before it."""
    actor, value = (features, *hidden, actions), (features, *hidden, 1)
    before = mlp_macs(actor) + mlp_macs(value)
    return rows * (before + mlp_macs(actor, parameters=True) + mlp_macs(value, parameters=True))
