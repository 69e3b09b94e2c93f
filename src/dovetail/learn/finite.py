"""Losses that are not finite: such an update is skipped and counted, and too many of them end the run.

norm = clip_grad_norm_(parameters, limit)
require_finite("critic", loss, norm)       # before the optimiser: nothing has changed yet
optimizer.step()
"""

from __future__ import annotations

import math

from torch import Tensor

from dovetail.core.errors import FailureError

__all__ = ["BadUpdates", "SkippedUpdate", "require_finite"]


class SkippedUpdate(Exception):  # not an error yet: a learner counts them
    """A step was not taken, because it would have put NaN or infinity into the weights."""


def require_finite(name: str, loss: Tensor, norm: Tensor) -> None:
    """Look at both at once, which on a GPU means to wait once. A loss may be NaN where its gradient is not."""
    loss = loss.detach()
    if not math.isfinite(float(loss + norm)):
        raise SkippedUpdate(f"{name}'s loss is {float(loss):g}, the norm of its gradient {float(norm):g}")


class BadUpdates:
    """How many updates of a run were skipped; `limit` of them are one too many."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._limit = limit

    def add(self, reason: SkippedUpdate, *, number: int) -> None:
        self.count += 1
        if self.count >= self._limit:
            raise FailureError(
                f"learning broke at update {number}: {reason}. {self.count} updates were skipped, and "
                f"learner.max_bad_updates is {self._limit}: look for NaN in the data, or try a lower learning rate"
            )
