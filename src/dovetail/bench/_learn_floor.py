"""The multiply-adds that an update needs at least, and a matrix product that measures how fast this core does them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

__all__ = ["GEMM_MACS", "gemm", "mlp_macs", "ppo_macs", "soft_macs"]

_SIDE = 256
GEMM_MACS = _SIDE**3


def gemm() -> Callable[[], object]:
    """One matrix product of the size that updates have. Its speed turns multiply-adds into seconds."""
    left, right, out = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE), torch.empty(_SIDE, _SIDE)
    return lambda: torch.mm(left, right, out=out)


def mlp_macs(sizes: Sequence[int], *, parameters: bool = False, inputs: int | None = None) -> int:
    """Multiply-adds of one row through an MLP: forward, and backward for its parameters and for `inputs` of its inputs.
    Either gradient needs those of the hidden layers."""
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
    """One update of the critics and the actor of soft actor-critic. `targets` is the number of target critics evaluated.
    The actor's loss needs, per row, the gradient of the smallest Q with respect to the action, and no other."""
    actor, critic = (features, *hidden, 2 * actions), (features + actions, *hidden, 1)
    per_row = (
        mlp_macs(actor)  # the next action
        + targets * mlp_macs(critic)
        + critics * mlp_macs(critic, parameters=True)
        + (critics - 1) * mlp_macs(critic)
        + mlp_macs(critic, inputs=actions)
        + mlp_macs(actor, parameters=True)
    )
    return batch * per_row


def ppo_macs(*, features: int, actions: int, hidden: Sequence[int], rows: int) -> int:
    """One epoch, including values and log-probabilities of all rows before it."""
    actor, value = (features, *hidden, actions), (features, *hidden, 1)
    before = mlp_macs(actor) + mlp_macs(value)
    return rows * (before + mlp_macs(actor, parameters=True) + mlp_macs(value, parameters=True))
