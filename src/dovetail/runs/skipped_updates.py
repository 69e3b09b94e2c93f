"""Events for updates that were skipped because a loss was not finite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from dovetail.runs.folder import RunFolder

__all__ = ["CountsSkipped", "report_skipped_updates"]


class CountsSkipped(Protocol):
    """A learner that counts skipped updates."""

    @property
    def num_updates(self) -> int: ...

    @property
    def num_skipped_updates(self) -> int: ...


@contextmanager
def report_skipped_updates(folder: RunFolder | None, learner: CountsSkipped) -> Iterator[None]:
    """Add one event for all updates that are skipped inside the context, even if it ends with an error."""
    before = learner.num_skipped_updates
    try:
        yield
    finally:
        if folder is not None and learner.num_skipped_updates > before:
            folder.event("skipped updates", in_all=learner.num_skipped_updates, updates=learner.num_updates)
