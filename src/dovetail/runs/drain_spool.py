"""From a spool to whoever keeps episodes for good: may be killed anywhere, and repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dovetail.core.errors import StoreError
from dovetail.core.types import Episode
from dovetail.episodes.spool import Spool

__all__ = ["hand_over"]


class Tell(Protocol):
    def __call__(self, kind: str, /, **facts: Any) -> None: ...


def hand_over(spool: Spool, keep: Callable[[Episode], bool], *, tell: Tell, but: str | None = None) -> None:
    """Everything that is waiting, oldest first, up to one (`but`) that somebody else still reads; the spool lets go of what
    `keep` has said it has. Where it has not, the rest waits too, so that their order stays."""
    for episode_id in spool.pending():
        if episode_id == but:
            return
        try:
            episode = spool.load(episode_id)
        except StoreError as error:  # damaged at its very beginning: it stays there, for `verify` to tell
            tell("cannot be recovered from the spool", id=episode_id, reason=str(error))
            continue
        if episode is not None:
            if not keep(episode):
                return
            tell("recovered from the spool", id=episode_id, outcome=episode.outcome)
        if spool.is_damaged(episode_id):  # there was more than that
            aside = spool.set_aside(episode_id)
            tell("damaged in the spool", id=episode_id, kept=aside.name)
        else:
            spool.acknowledge(episode_id)
