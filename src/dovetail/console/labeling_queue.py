"""Several people label at once: which page works on which episode, and what each labeled.

A page claims an episode before it shows it, so that no two people label the same one. A page that is closed without notice
loses its claims after some seconds. Claims are in memory only: after a restart of the console no page is open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from dovetail.console.episode_labels import EpisodeLabels
from dovetail.core.errors import UsageError
from dovetail.labels.human import Mark
from dovetail.labels.queue import Waiting

__all__ = ["CLAIM_S", "EpisodeClaims", "LabelingQueue", "TakenError"]

CLAIM_S = 30.0  # a page renews its claims several times in this time


class TakenError(UsageError):
    """Another person is labeling this episode, or has labeled it."""


class EpisodeClaims:
    """An episode is claimed by one page at a time, until the page releases it or does not renew it."""

    def __init__(self, *, claim_s: float = CLAIM_S, now_s: Callable[[], float] = time.monotonic) -> None:
        self._claim_s = claim_s
        self._now_s = now_s
        self._claims: dict[str, tuple[str, float]] = {}  # episode -> page, end of the claim
        self._lock = threading.Lock()

    def claim(self, page: str, candidates: Iterable[str], *, count: int) -> list[str]:
        """Claim the first `count` of these that no other page has; those that this page has already count."""
        with self._lock:
            self._drop_expired()
            mine: list[str] = []
            for episode_id in candidates:
                if len(mine) == count:
                    break
                if self._page_of(episode_id) in (None, page):
                    mine.append(episode_id)
            end_s = self._now_s() + self._claim_s
            self._claims.update(dict.fromkeys(mine, (page, end_s)))
            return mine

    def claim_one(self, page: str, episode_id: str) -> bool:
        """Claim this episode; False if another page has it."""
        return self.claim(page, [episode_id], count=1) == [episode_id]

    def release(self, page: str, episode_ids: Iterable[str] | None = None) -> None:
        """Release these, or all that the page has; those of other pages are not touched."""
        with self._lock:
            for episode_id in list(self._claims) if episode_ids is None else episode_ids:
                if self._page_of(episode_id) == page:
                    del self._claims[episode_id]

    def pages(self) -> dict[str, str]:
        """The page of each claimed episode."""
        with self._lock:
            self._drop_expired()
            return {episode_id: page for episode_id, (page, _) in self._claims.items()}

    def _page_of(self, episode_id: str) -> str | None:
        return self._claims[episode_id][0] if episode_id in self._claims else None

    def _drop_expired(self) -> None:
        now_s = self._now_s()
        self._claims = {key: claim for key, claim in self._claims.items() if claim[1] > now_s}


class LabelingQueue:
    """The queue of all pages. A page is identified by a random secret, so that no page acts for another by accident."""

    def __init__(self, labels: EpisodeLabels, *, claims: EpisodeClaims | None = None) -> None:
        self._labels = labels
        self._claims = claims or EpisodeClaims()
        self._labeled_by: dict[tuple[str, str], str] = {}  # (page, episode) -> person

    def items(self, page: str) -> list[tuple[Waiting, str]]:
        """All episodes that wait, each with `mine`, `other` or nothing: which page has claimed it."""
        pages = self._claims.pages()

        def owner(item: Waiting) -> str:
            claimed_by = pages.get(item.episode_id)
            return "" if claimed_by is None else "mine" if claimed_by == page else "other"

        return [(item, owner(item)) for item in self._labels.waiting()]

    def claim(self, page: str, *, count: int, skip: Collection[str] = ()) -> list[Waiting]:
        """Claim up to `count`: those that this page has already, then the first that no page has."""
        waiting = [item for item in self._labels.waiting() if item.episode_id not in skip]
        pages = self._claims.pages()
        waiting.sort(key=lambda item: pages.get(item.episode_id) != page)  # stable: the longest wait stays first
        mine = self._claims.claim(page, [item.episode_id for item in waiting], count=count)
        by_id = {item.episode_id: item for item in waiting}
        still = {item.episode_id for item in self._labels.waiting()}  # one may just have been labeled
        self._claims.release(page, [episode_id for episode_id in mine if episode_id not in still])
        return [by_id[episode_id] for episode_id in mine if episode_id in still]

    def claim_one(self, page: str, episode_id: str) -> None:
        """Claim this episode, in the queue or not."""
        if not self._claims.claim_one(page, episode_id):
            raise TakenError(f"another person is labeling episode {episode_id} now")

    def renew(self, page: str, episode_ids: Sequence[str]) -> list[str]:
        """Renew these claims, also expired ones that no other page took; returns those the page now has."""
        return [episode_id for episode_id in episode_ids if self._claims.claim_one(page, episode_id)]

    def release(self, page: str, episode_ids: Sequence[str] | None = None) -> None:
        """Release these, or all when the page is closed."""
        if episode_ids is None:
            self._labeled_by = {key: by for key, by in self._labeled_by.items() if key[0] != page}
        self._claims.release(page, episode_ids)

    def label(
        self, page: str, episode_id: str, verdict: str, marks: Sequence[Mark], *, by: str, queued: bool
    ) -> None:
        """`queued`: the page got it from the queue. A repeated call is harmless, because an answer may be lost."""
        self.claim_one(page, episode_id)
        if queued and (page, episode_id) not in self._labeled_by and not self._waits(episode_id):
            self._claims.release(page, [episode_id])
            raise TakenError(f"another person has labeled episode {episode_id}")
        self._labels.label(episode_id, verdict, marks, by=by)
        self._labeled_by[page, episode_id] = by
        self._claims.release(page, [episode_id])

    def retract(self, page: str, episode_id: str, *, by: str) -> None:
        """Retract the label of this page, also if the person has changed the name since; the page gets the episode."""
        self.claim_one(page, episode_id)
        by = self._labeled_by.get((page, episode_id), by)
        if not self._labels.retract(episode_id, by=by):
            raise UsageError(f"episode {episode_id} has no label by {by} to retract")
        self._labeled_by.pop((page, episode_id), None)

    def _waits(self, episode_id: str) -> bool:
        return any(item.episode_id == episode_id for item in self._labels.waiting())
