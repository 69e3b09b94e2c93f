"""Skip updates whose loss or gradient is not finite, count them, and end the run after too many.

norm = clip_grad_norm_(parameters, limit)
require_finite("critic", loss, norm)       # before the optimizer: nothing has changed yet
optimizer.step()
"""

from __future__ import annotations

import math

from torch import Tensor

from dovetail.core.errors import FailureError

__all__ = ["BadUpdates", "SkippedUpdate", "require_finite"]


class SkippedUpdate(Exception):  # not a DovetailError: the learner counts these
    """A step was not taken, because it would have put NaN or infinity into the weights."""


def require_finite(name: str, loss: Tensor, norm: Tensor) -> None:
    """Raise SkippedUpdate unless both are finite. A loss may be NaN while its gradient is not."""
    loss = loss.detach()
    if not math.isfinite(float(loss + norm)):  # one synchronization on a GPU
        raise SkippedUpdate(f"{name}'s loss is {float(loss):g}, the norm of its gradient {float(norm):g}")


class BadUpdates:
    """Count the skipped updates of a run; raise FailureError at `limit`."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._limit = limit

    def add(self, reason: SkippedUpdate, *, number: int) -> None:
        self.count += 1
        if self.count >= self._limit:
            raise FailureError(
                f"learning failed at update {number}: {reason}. {self.count} updates were skipped, and "
                f"learner.max_bad_updates is {self._limit}. Look for NaN in the data, or lower the learning rate"
            )
