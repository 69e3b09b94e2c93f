"""Who is looking at which episode: so that several people label at once and nobody does it twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

__all__ = ["LEASE_S", "Leases"]

LEASE_S = 30.0  # a page renews its leases several times in this; a closed lid frees them after it


class Leases:
    """An episode belongs to one page at a time, until it is given back or the page is not heard of for a while.

    In memory only: a console that is started anew has no pages open before it, and nothing is claimed.
    """

    def __init__(self, *, lease_s: float = LEASE_S, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s
        self._now_s = now_s
        self._held: dict[str, tuple[str, float]] = {}  # episode -> whose, and until when
        self._lock = threading.Lock()

    def claim(self, holder: str, candidates: Iterable[str], *, count: int) -> list[str]:
        """Hold up to `count` of these, the first that nobody else holds; those that are held already count."""
        with self._lock:
            self._forget()
            mine: list[str] = []
            for episode_id in candidates:
                if len(mine) == count:
                    break
                if self._whose(episode_id) in (None, holder):
                    mine.append(episode_id)
            self._hold(holder, mine)
            return mine

    def take(self, holder: str, episode_id: str) -> bool:
        """Hold this very one, unless somebody else does."""
        return self.claim(holder, [episode_id], count=1) == [episode_id]

    def renew(self, holder: str) -> list[str]:
        """Hold on to all that is held; returns it."""
        with self._lock:
            self._forget()
            mine = [episode_id for episode_id, (whose, _) in self._held.items() if whose == holder]
            self._hold(holder, mine)
            return mine

    def release(self, holder: str, episode_ids: Iterable[str] | None = None) -> None:
        """Give back these, or all; what belongs to others stays theirs."""
        with self._lock:
            for episode_id in list(self._held) if episode_ids is None else episode_ids:
                if self._whose(episode_id) == holder:
                    del self._held[episode_id]

    def held(self) -> dict[str, str]:
        """Episode by episode, whose it is."""
        with self._lock:
            self._forget()
            return {episode_id: whose for episode_id, (whose, _) in self._held.items()}

    def _whose(self, episode_id: str) -> str | None:
        return self._held[episode_id][0] if episode_id in self._held else None

    def _hold(self, holder: str, episode_ids: Iterable[str]) -> None:
        until = self._now_s() + self._lease_s
        self._held.update(dict.fromkeys(episode_ids, (holder, until)))

    def _forget(self) -> None:
        now = self._now_s()
        self._held = {key: (whose, until) for key, (whose, until) in self._held.items() if until > now}
