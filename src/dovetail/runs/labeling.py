"""The label desk: episodes in, labels out, now or later, and nobody waits for it.

Quick labelers answer at once. Slow ones are asked on threads beside the robot, about so many episodes at a time; what
they say goes into the label store, where `news` finds it together with what people and other processes have put there.
Nothing here has to survive a crash: what waits is every episode of the log that has no labels.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from dovetail.config.schema import LabelingConfig
from dovetail.core.errors import LabelError, one_line
from dovetail.core.types import Episode, Labels
from dovetail.labels.panel import Hearing
from dovetail.labels.queue import LabelQueue, Opinion, Reason
from dovetail.labels.store import Cursor, LabelStore

__all__ = ["Hears", "LabelDispatcher"]

_LOOK_S = 0.2  # between two looks at what is under way, for those who wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """An episode that a slow labeler is still to be asked about."""

    episode_id: str
    hearing: Hearing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    case: _Case
    came: Hearing | BaseException


class Hears(Protocol):
    """Who gives rewards: see `labels.panel.Panel`."""

    @property
    def max_concurrent(self) -> int | None: ...

    def ask(self, episode: Episode) -> Hearing: ...

    def go_on(self, episode: Episode, hearing: Hearing) -> Hearing: ...


class LabelDispatcher:
    """`label` each new episode; `news` between two of them. `load` is called on other threads too."""

    def __init__(
        self,
        *,
        panel: Hears,
        store: LabelStore,
        queue: LabelQueue,
        load: Callable[[str], Episode],
        settings: LabelingConfig | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._panel, self._store, self._queue, self._load = panel, store, queue, load
        self._settings = settings or LabelingConfig()
        self._now_s = now_s
        self._max_under_way = min(panel.max_concurrent or 1, self._settings.max_under_way)
        self._line: deque[_Case] = deque()  # whose turn has not come
        self._under_way: set[str] = set()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._num_failed = 0  # in a row: while a labeler is away, it is asked about one episode now and then
        self._not_before_s = 0.0
        self._cursor: Cursor | None = None
        self._why: dict[str, tuple[Reason, ...]] = {}  # of those in the queue, as far as it was looked at

    # ---- an episode

    def label(self, episode: Episode) -> Labels | None:
        """Its labels, if they can be had at once; otherwise they will be news."""
        try:
            hearing = self._panel.ask(episode)
        except LabelError as error:
            self._put_off(_Case(episode_id=episode.id, hearing=Hearing()), error)
            return None
        if hearing.over:
            return self._close(episode.id, hearing)
        self._line.append(_Case(episode_id=episode.id, hearing=hearing))
        self._turn()
        return None

    def take_up(self, episode_id: str) -> Labels | None:
        """An episode that has no labels, from before: what waits for a person goes on waiting."""
        if episode_id in self._under_way or any(case.episode_id == episode_id for case in self._line):
            return None
        waiting = self._queue.get(episode_id)
        if waiting is not None and Reason.AWAY not in waiting.reasons:
            return None
        return self.label(self._load(episode_id))

    def news(self) -> list[str]:
        """Episodes about which something was said, here or in another process, since this was last asked."""
        self._turn()
        changed, self._cursor = self._store.changed(self._cursor)
        for episode_id in set(changed).intersection(self._queue.ids() if changed else ()):
            self._settle(episode_id)
        return changed

    # ---- what waits

    @property
    def num_under_way(self) -> int:
        """Episodes that a labeler is being asked about, or about to be; none of those it is away for."""
        return len(self._under_way) + (0 if self._num_failed else len(self._line))

    def waiting(self) -> Counter[str]:
        """How many episodes have no labels yet, or should be seen by a person, by why."""
        ids = self._queue.ids()
        self._why = {
            episode_id: self._why.get(episode_id)
            or (item.reasons if (item := self._queue.get(episode_id)) else ())
            for episode_id in ids
        }
        why = Counter(str(reason) for reasons in self._why.values() for reason in reasons[:1])
        under_way = {*self._under_way, *(case.episode_id for case in self._line)} - set(ids)
        if under_way:
            why["under way"] = len(under_way)
        return why

    def wait(self, limit_s: float, *, look_up: Callable[[], None], down_to: int = 0) -> None:
        """Until no more than that are under way, or time is up; `look_up` is called now and then, and may end it by
        raising."""
        until_s = self._now_s() + limit_s
        self._turn()
        while self.num_under_way > down_to and self._now_s() < until_s:
            look_up()
            self._turn(wait_s=_LOOK_S)

    def close(self) -> None:
        """What is under way is let go of: its threads end with their answers, or with the process."""
        self._line.clear()
        self._under_way.clear()
        self._answers = SimpleQueue()

    # ---- asking those that are slow

    def _turn(self, *, wait_s: float = 0.0) -> None:
        """Take what has come, and ask about the next ones."""
        try:
            while True:
                self._take(self._answers.get(timeout=wait_s) if wait_s else self._answers.get_nowait())
                wait_s = 0.0
        except Empty:
            pass
        limit = 1 if self._num_failed else self._max_under_way
        while self._line and len(self._under_way) < limit and self._now_s() >= self._not_before_s:
            case = self._line.popleft()
            if self._store.current(case.episode_id) is not None:  # somebody was quicker
                self._settle(case.episode_id)  # it may have been put off after they had spoken
                continue
            self._under_way.add(case.episode_id)
            name = f"labels of {case.episode_id}"
            threading.Thread(target=self._hear, args=(case, self._answers), name=name, daemon=True).start()

    def _hear(self, case: _Case, answers: SimpleQueue[_Answer]) -> None:
        came: Hearing | BaseException
        try:
            came = self._panel.go_on(self._load(case.episode_id), case.hearing)
        except BaseException as error:
            came = error
        answers.put(_Answer(case=case, came=came))

    def _take(self, answer: _Answer) -> None:
        case, came = answer.case, answer.came
        self._under_way.discard(case.episode_id)
        if isinstance(came, LabelError):
            self._put_off(case, came)
        elif isinstance(came, BaseException):
            raise came
        else:
            self._num_failed = 0
            self._not_before_s = 0.0
            self._close(case.episode_id, came)

    def _put_off(self, case: _Case, error: LabelError) -> None:
        """Until later, and behind the others: it may be this one episode that it has no answer for."""
        settings = self._settings
        delay_s = min(settings.max_retry_s, settings.retry_s * 2.0 ** min(self._num_failed, 30))
        self._num_failed += 1
        self._not_before_s = self._now_s() + delay_s
        self._line.append(case)
        said = [Opinion.of(labels) for labels in case.hearing.said]
        self._put(case.episode_id, (Reason.AWAY,), said, note=one_line(error))

    # ---- what came of it

    def _close(self, episode_id: str, hearing: Hearing) -> Labels | None:
        for opinion in hearing.opinions:
            self._store.add(opinion)
        if hearing.decided is not None:
            self._store.add(hearing.decided)
        if hearing.reasons:
            self._put(episode_id, hearing.reasons, [Opinion.of(labels) for labels in hearing.said])
        else:
            self._queue.done(episode_id)
        return hearing.decided

    def _put(self, episode_id: str, reasons: tuple[Reason, ...], said: list[Opinion], *, note: str = "") -> None:
        self._why[episode_id] = reasons
        self._queue.put(episode_id, reasons, opinions=said, note=note)

    def _settle(self, episode_id: str) -> None:
        """Take it out of the queue, once there is what it waited for; whoever said it may not have come that far."""
        labels = self._store.current(episode_id)
        if labels is not None:
            self._queue.settle(labels)
