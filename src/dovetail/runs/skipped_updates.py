"""Updates that were skipped because a loss was not finite: a line in the run's events, whoever learned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from dovetail.runs.folder import RunFolder

__all__ = ["Skips", "report_skipped_updates"]


class Skips(Protocol):
    """Who learns, and counts what it skips."""

    @property
    def num_updates(self) -> int: ...

    @property
    def num_skipped_updates(self) -> int: ...


@contextmanager
def report_skipped_updates(folder: RunFolder | None, learner: Skips) -> Iterator[None]:
    """One line for all that are skipped meanwhile, also where the last of them is one too many."""
    before = learner.num_skipped_updates
    try:
        yield
    finally:
        if folder is not None and learner.num_skipped_updates > before:
            folder.event("skipped updates", in_all=learner.num_skipped_updates, updates=learner.num_updates)
