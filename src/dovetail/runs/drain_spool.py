"""Move the episodes of a spool to their store. Safe to repeat after a kill at any point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dovetail.core.errors import StoreError
from dovetail.core.types import Episode
from dovetail.episodes.spool import Spool

__all__ = ["drain_spool"]


class Reports(Protocol):
    def __call__(self, kind: str, /, **facts: Any) -> None: ...


def drain_spool(
    spool: Spool,
    store: Callable[[Episode], bool],
    *,
    report: Reports,
    until: str | None = None,
    in_memory: Callable[[str], Episode | None] = lambda episode_id: None,
) -> None:
    """Give every finished episode to `store`, oldest first, and delete it from the spool once that returns True.

    It ends at episode `until`, which is still in use, or when `store` returns False: no episode overtakes another.
    `in_memory` returns an episode that need not be read from disk.
    """
    for episode_id in spool.pending():
        if episode_id == until:
            return
        episode = in_memory(episode_id)
        recovered = episode is None
        try:
            episode = episode or spool.load(episode_id)
        except StoreError as error:  # damaged at its beginning: the file stays for `episodes verify`
            report("cannot be recovered from the spool", id=episode_id, reason=str(error))
            continue
        if episode is not None:
            if not store(episode):
                return
            if recovered:
                report("recovered from the spool", id=episode_id, outcome=episode.outcome)
        if recovered and spool.is_damaged(episode_id):  # its end is lost
            kept = spool.set_aside(episode_id)
            report("damaged in the spool", id=episode_id, kept=kept.name)
        else:
            spool.acknowledge(episode_id)
