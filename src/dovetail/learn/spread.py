"""One optimiser step spread out: over micro-batches, one after another, and over processes, all at once.

    spread = Spread(num_pieces=4)                       # or, in each of two processes that share a process group,
    spread = Spread(rank=rank, size=2)
    for piece in spread.pieces(batch):
        ...                                             # sums of gradients and of weights
    spread.add_up(tensors)                              # over processes, in place: the same numbers everywhere

Gradients are added up explicitly, as one flat tensor, and before they are clipped. (A trap: calling `ddp.module.method()`
goes past DDP's own forward, and gradients were never synchronised.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dovetail.core.errors import FailureError
from dovetail.core.types import SampleRequest, View
from dovetail.policies.chance import SharedGenerator

__all__ = ["Spread"]


class Spread:
    """Row i of a batch belongs to process i % size, and there to piece (i // size) % num_pieces."""

    def __init__(self, *, num_pieces: int = 1, rank: int = 0, size: int = 1) -> None:
        self.num_pieces, self.rank, self.size = num_pieces, rank, size

    @property
    def alone(self) -> bool:
        """Then there is nothing to add up, and nothing is rounded that was not rounded before."""
        return self.num_pieces == 1 and self.size == 1

    def pieces(self, batch: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
        # none without rows: what is left at the end of a rollout may be fewer than there are pieces
        count = min(self.num_pieces, len(next(iter(batch.values()))))
        if count <= 1:
            return [batch]
        return [{name: batch[name][i::count] for name in batch.keys()} for i in range(count)]  # noqa: SIM118

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Sums over all processes, in place."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in tensors])
        try:
            dist.all_reduce(flat)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise FailureError(f"rank {self.rank} lost the others: {reason[:200]}") from error
        first = 0
        for tensor in tensors:
            tensor.copy_(flat[first : first + tensor.numel()].view_as(tensor))
            first += tensor.numel()

    def share(self, request: SampleRequest) -> dict[View, int]:
        """This process's rows of each view: every size-th of the batch as it would be drawn by one."""
        rows: dict[View, int] = {}
        first = 0
        for view, num_rows in request.rows.items():
            rows[view] = self.count_before(first + num_rows) - self.count_before(first)
            first += num_rows
        return rows

    def count_before(self, row: int) -> int:
        """How many of the first `row` rows of a whole batch are of this process."""
        return (row - self.rank + self.size - 1) // self.size if row > self.rank else 0

    def generator(self, device: torch.device, seed: int) -> torch.Generator:
        if self.size == 1:
            return torch.Generator(device=device).manual_seed(seed)
        return SharedGenerator.of(device=device, rank=self.rank, size=self.size).manual_seed(seed)
