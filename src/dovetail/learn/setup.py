"""How an algorithm computes, apart from what: precision, micro-batches, several processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import nn

from dovetail.core.contracts import Algorithm
from dovetail.core.errors import UsageError
from dovetail.learn.precision import compute_in_bf16
from dovetail.learn.spread import Spread

__all__ = ["Spreadable", "set_up"]


@runtime_checkable
class Spreadable(Protocol):
    """An algorithm that can be told how to compute; all of ours can."""

    @property
    def networks(self) -> Mapping[str, nn.Module]: ...

    def spread(self, spread: Spread) -> None: ...


def set_up(
    algorithm: Algorithm,
    *,
    name: str,
    precision: str = "fp32",
    accumulate: int = 1,
    rank: int = 0,
    size: int = 1,
    shard: bool = False,
) -> None:
    """Before its first update, or before its state is loaded."""
    if (precision, accumulate, size, shard) == ("fp32", 1, 1, False):
        return
    if not isinstance(algorithm, Spreadable):
        raise UsageError(
            f"algorithm '{name}' knows neither `networks` nor `spread`: leave learner.precision, accumulate and ranks as "
            "they are"
        )
    num_rows = sum(algorithm.wants.rows.values())
    if num_rows % size or (num_rows and num_rows // size < accumulate):
        raise UsageError(
            f"a batch of {num_rows} rows cannot be shared by learner.ranks={size} in learner.accumulate={accumulate} "
            "pieces: choose another algorithm.batch_size"
        )
    if shard and (size == 1 or not hasattr(algorithm, "shard") or num_rows == 0):
        raise UsageError(
            f"learner.shard needs learner.ranks of 2 or more, and one of the algorithms imitation, hg_dagger and hi_ors; "
            f"here are {size} and '{name}'"
        )
    if shard:
        algorithm.check_shard()  # type: ignore[attr-defined]
    if precision == "bf16":
        compute_in_bf16(algorithm.networks.values())
    if accumulate > 1 or size > 1:
        algorithm.spread(Spread(num_pieces=accumulate, rank=rank, size=size))
