"""Divide one optimizer step over micro-batches (one after another) and over processes (at the same time).

    parallel = DataParallel(num_micro_batches=4)        # or, in each of two processes of a process group:
    parallel = DataParallel(rank=rank, size=2)
    for rows in parallel.micro_batches(batch):
        ...                                             # accumulate gradients and loss weights
    parallel.sum_(tensors)                              # over all processes, in place

Gradients are summed explicitly, as one flat tensor, before they are clipped. torch's DDP is not used, because a call of
`ddp.module.method()` bypasses its forward and leaves the gradients unsynchronized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dovetail.core.errors import FailureError
from dovetail.core.types import SampleRequest, View
from dovetail.policies.random_draws import SharedGenerator

__all__ = ["DataParallel"]


class DataParallel:
    """Row i of a batch belongs to process i % size, and there to micro-batch (i // size) % num_micro_batches."""

    def __init__(self, *, num_micro_batches: int = 1, rank: int = 0, size: int = 1) -> None:
        self.num_micro_batches, self.rank, self.size = num_micro_batches, rank, size

    @property
    def is_single(self) -> bool:
        """One process and one micro-batch: there is nothing to sum."""
        return self.num_micro_batches == 1 and self.size == 1

    def micro_batches(self, batch: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
        # none is empty: the last minibatch of a rollout may have fewer rows than there are micro-batches
        count = min(self.num_micro_batches, len(next(iter(batch.values()))))
        if count <= 1:
            return [batch]
        return [{name: batch[name][i::count] for name in batch.keys()} for i in range(count)]  # noqa: SIM118

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Sum over all processes, in place."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in tensors])
        try:
            dist.all_reduce(flat)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise FailureError(
                f"rank {self.rank} lost its connection to the other ranks: {reason[:200]}"
            ) from error
        first = 0
        for tensor in tensors:
            tensor.copy_(flat[first : first + tensor.numel()].view_as(tensor))
            first += tensor.numel()

    def rows_per_view(self, request: SampleRequest) -> dict[View, int]:
        """This process's rows of each view: every size-th row of the whole batch."""
        rows: dict[View, int] = {}
        first = 0
        for view, num_rows in request.rows.items():
            rows[view] = self.num_rows_before(first + num_rows) - self.num_rows_before(first)
            first += num_rows
        return rows

    def num_rows_before(self, row: int) -> int:
        """Number of the first `row` rows of a whole batch that belong to this process."""
        return (row - self.rank + self.size - 1) // self.size if row > self.rank else 0

    def make_generator(self, device: torch.device, seed: int) -> torch.Generator:
        """Return a generator that draws this process's rows of what one process would draw."""
        if self.size == 1:
            return torch.Generator(device=device).manual_seed(seed)
        return SharedGenerator.of(device=device, rank=self.rank, size=self.size).manual_seed(seed)
