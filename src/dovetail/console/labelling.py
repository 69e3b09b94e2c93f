"""People at the queue: who gets which episode next, what they say of it, and how they take it back."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dovetail.console.episode_handles import Desk, Marked, Waits
from dovetail.console.leases import Leases
from dovetail.core.errors import UsageError

__all__ = ["Labelling", "TakenError"]


class TakenError(UsageError):
    """Somebody else has this episode before them."""


class Labelling:
    """One for all pages. A page is known by a secret it made up, so nobody acts for another by accident."""

    def __init__(self, desk: Desk, *, leases: Leases | None = None) -> None:
        self._desk = desk
        self._leases = leases or Leases()
        self._said: dict[tuple[str, str], str] = {}  # from which page, of which episode; by whom

    def queue(self, page: str) -> list[tuple[Waits, str]]:
        """All that wait, and whose each is: `mine`, `theirs` or nobody's."""
        held = self._leases.held()

        def whose(item: Waits) -> str:
            holder = held.get(item.episode_id)
            return "" if holder is None else "mine" if holder == page else "theirs"

        return [(item, whose(item)) for item in self._desk.waiting()]

    def claim(self, page: str, *, count: int, skip: Collection[str] = ()) -> list[Waits]:
        """Hold up to `count` that wait: those this page has already, then the first that nobody has."""
        waiting = [item for item in self._desk.waiting() if item.episode_id not in skip]
        held = self._leases.held()
        waiting.sort(key=lambda item: held.get(item.episode_id) != page)  # stable: the longest wait first
        mine = self._leases.claim(page, [item.episode_id for item in waiting], count=count)
        by_id = {item.episode_id: item for item in waiting}
        still = {item.episode_id for item in self._desk.waiting()}  # one may have been labelled a moment ago
        self._leases.release(page, [episode_id for episode_id in mine if episode_id not in still])
        return [by_id[episode_id] for episode_id in mine if episode_id in still]

    def take(self, page: str, episode_id: str) -> None:
        """This very one, whether it waits or not."""
        if not self._leases.take(page, episode_id):
            raise TakenError(f"somebody else is labelling episode {episode_id} at this moment")

    def renew(self, page: str, episode_ids: Sequence[str]) -> list[str]:
        """Those of them that this page still has, or has again: it may have slept through its lease."""
        return [episode_id for episode_id in episode_ids if self._leases.take(page, episode_id)]

    def release(self, page: str, episode_ids: Sequence[str] | None = None) -> None:
        """These, or all: the page is closed."""
        if episode_ids is None:
            self._said = {said: by for said, by in self._said.items() if said[0] != page}
        self._leases.release(page, episode_ids)

    def say(
        self, page: str, episode_id: str, verdict: str, marks: Sequence[Marked], *, by: str, queued: bool
    ) -> None:
        """`queued`: the page got it from the queue. Saying it twice is harmless: an answer may be lost on its way."""
        self.take(page, episode_id)
        if queued and (page, episode_id) not in self._said and not self._waits(episode_id):
            self._leases.release(page, [episode_id])
            raise TakenError(f"somebody else has labelled episode {episode_id} meanwhile")
        self._desk.say(episode_id, verdict, marks, by=by)
        self._said[page, episode_id] = by
        self._leases.release(page, [episode_id])

    def unsay(self, page: str, episode_id: str, *, by: str) -> None:
        """Take it back, also if the person has changed name since; the episode is before this page again."""
        self.take(page, episode_id)
        by = self._said.get((page, episode_id), by)
        if not self._desk.unsay(episode_id, by=by):
            raise UsageError(f"there is no word of {by}'s on episode {episode_id} to take back")
        self._said.pop((page, episode_id), None)

    def _waits(self, episode_id: str) -> bool:
        return any(item.episode_id == episode_id for item in self._desk.waiting())
