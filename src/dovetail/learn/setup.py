"""Configure how an algorithm computes: precision, micro-batches, several processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import nn

from dovetail.core.abilities import Shards
from dovetail.core.contracts import Algorithm
from dovetail.core.errors import UsageError
from dovetail.learn.data_parallel import DataParallel
from dovetail.learn.precision import compute_in_bf16
from dovetail.learn.schedules import OptimizerSettings

__all__ = ["SetsOptimizers", "SupportsDataParallel", "set_up"]


@runtime_checkable
class SupportsDataParallel(Protocol):
    """An algorithm with configurable precision, micro-batches and processes. All built-in algorithms support it."""

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """Every network that computes in an update, by name."""

    def set_parallel(self, parallel: DataParallel) -> None:
        """Divide each step as `parallel` says. Called before the first update."""


@runtime_checkable
class SetsOptimizers(Protocol):
    """An algorithm whose components or networks may have optimizer settings of their own."""

    def set_optimizers(self, optimizers: Mapping[str, OptimizerSettings]) -> None: ...


def set_up(
    algorithm: Algorithm,
    *,
    name: str,
    precision: str = "fp32",
    accumulate: int = 1,
    rank: int = 0,
    size: int = 1,
    shard: bool = False,
    optimizers: Mapping[str, OptimizerSettings] | None = None,
) -> None:
    """Apply the learner's settings. Call before the first update, and before a state is loaded."""
    if optimizers:
        if not isinstance(algorithm, SetsOptimizers):
            raise UsageError(
                f"learner.optimizers is not for algorithm '{name}', which has one learning rate for all networks. Remove "
                "it, and set algorithm.lr"
            )
        algorithm.set_optimizers(optimizers)
    if (precision, accumulate, size, shard) == ("fp32", 1, 1, False):
        return
    if not isinstance(algorithm, SupportsDataParallel):
        raise UsageError(
            f"algorithm '{name}' has no `networks` and `set_parallel`. Keep the defaults of learner.precision, "
            "learner.accumulate and learner.ranks"
        )
    num_rows = sum(algorithm.sample_request.rows.values())
    if num_rows % size or (num_rows and num_rows // size < accumulate):
        raise UsageError(
            f"a batch of {num_rows} rows cannot be divided by learner.ranks={size} into learner.accumulate={accumulate} "
            "micro-batches. Change algorithm.batch_size"
        )
    if shard:
        if size == 1 or not isinstance(algorithm, Shards) or num_rows == 0:
            raise UsageError(
                "learner.shard needs learner.ranks of at least 2 and algorithm imitation, hg_dagger or hi_ors, not "
                f"learner.ranks={size} and algorithm '{name}'"
            )
        algorithm.check_shard()
    if precision == "bf16":
        compute_in_bf16(algorithm.networks.values())
    if accumulate > 1 or size > 1:
        algorithm.set_parallel(DataParallel(num_micro_batches=accumulate, rank=rank, size=size))
