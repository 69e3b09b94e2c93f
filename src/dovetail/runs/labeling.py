"""Dispatches episodes to labelers: fast ones answer at once, slow ones on threads, so that the caller never waits.

Labels go to the label store. `changed` finds them there, together with the labels of the console and of other processes.
Nothing here must survive a crash: every episode of the log without labels is pending.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from dovetail.config.schema import LabelingConfig
from dovetail.core.contracts import Labeler
from dovetail.core.errors import LabelError, one_line
from dovetail.core.types import Episode, Labels
from dovetail.labels.chain import ChainState
from dovetail.labels.queue import LabelQueue, Opinion, Reason
from dovetail.labels.store import Cursor, LabelStore

__all__ = ["AsksLabelers", "LabelDispatcher"]

_POLL_S = 0.2


class _Pending(NamedTuple):
    """An episode that a slow labeler has not labeled yet."""

    episode_id: str
    chain_state: ChainState


_Answer = tuple[_Pending, ChainState | BaseException]


class AsksLabelers(Protocol):
    """Labelers in order: see `labels.chain.LabelerChain`."""

    @property
    def labelers(self) -> Sequence[Labeler]: ...

    @property
    def max_concurrent(self) -> int | None: ...

    def ask(self, episode: Episode) -> ChainState: ...

    def resume(self, episode: Episode, chain_state: ChainState) -> ChainState: ...


class LabelDispatcher:
    """`label` each new episode, and read `changed` between two of them. `load` is called on other threads too."""

    def __init__(
        self,
        *,
        labelers: AsksLabelers,
        store: LabelStore,
        queue: LabelQueue,
        load: Callable[[str], Episode],
        settings: LabelingConfig | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._labelers, self._store, self._queue, self._load = labelers, store, queue, load
        self._settings = settings or LabelingConfig()
        self._now_s = now_s
        self._max_running = min(labelers.max_concurrent or 1, self._settings.max_labeling_episodes)
        self._waiting: deque[_Pending] = deque()
        self._running: set[str] = set()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._num_failed = 0  # in a row; while a labeler is unavailable, it is tried with one episode at a time
        self._not_before_s = 0.0
        self._cursor: Cursor | None = None
        self._reasons: dict[str, tuple[Reason, ...]] = {}  # of episodes in the queue, as far as they were read

    # ---- episodes

    def label(self, episode: Episode) -> Labels | None:
        """Return the labels if all labelers are fast; otherwise `changed` will name the episode later."""
        try:
            chain_state = self._labelers.ask(episode)
        except LabelError as error:
            self._retry_later(_Pending(episode.id, ChainState()), error)
            return None
        if chain_state.finished:
            return self._finish(episode.id, chain_state)
        self._waiting.append(_Pending(episode.id, chain_state))
        self._dispatch()
        return None

    def label_again(self, episode_id: str) -> Labels | None:
        """Label an older episode without labels, unless that is under way or a person is asked."""
        if episode_id in self._running or any(one.episode_id == episode_id for one in self._waiting):
            return None
        queued = self._queue.get(episode_id)
        if queued is not None and Reason.AWAY not in queued.reasons:
            return None
        return self.label(self._load(episode_id))

    def changed(self) -> list[str]:
        """Episodes whose labels changed since the last call, here or in another process."""
        self._dispatch()
        changed, self._cursor = self._store.changed(self._cursor)
        for episode_id in set(changed).intersection(self._queue.ids() if changed else ()):
            self._settle(episode_id)
        return changed

    # ---- pending episodes

    @property
    def num_under_way(self) -> int:
        """Episodes that labelers work on or will work on next; without those of an unavailable labeler."""
        return len(self._running) + (0 if self._num_failed else len(self._waiting))

    def waiting(self) -> Counter[str]:
        """Number of episodes without labels, or for a person to check, by reason."""
        ids = self._queue.ids()
        self._reasons = {
            episode_id: self._reasons.get(episode_id)
            or (item.reasons if (item := self._queue.get(episode_id)) else ())
            for episode_id in ids
        }
        counts = Counter(str(reason) for reasons in self._reasons.values() for reason in reasons[:1])
        under_way = {*self._running, *(one.episode_id for one in self._waiting)} - set(ids)
        if under_way:
            counts["under way"] = len(under_way)
        return counts

    def wait(self, limit_s: float, *, on_poll: Callable[[], None], down_to: int = 0) -> None:
        """Wait until at most `down_to` episodes are under way, or for `limit_s`. `on_poll` may end it by raising."""
        until_s = self._now_s() + limit_s
        self._dispatch()
        while self.num_under_way > down_to and self._now_s() < until_s:
            on_poll()
            self._dispatch(wait_s=_POLL_S)

    def close(self) -> None:
        """Abandon what is under way. Its threads end with their answers, or with the process."""
        self._waiting.clear()
        self._running.clear()
        self._answers = SimpleQueue()

    # ---- slow labelers

    def _dispatch(self, *, wait_s: float = 0.0) -> None:
        """Process the answers that have arrived and start the next episodes."""
        try:
            while True:
                self._process(*(self._answers.get(timeout=wait_s) if wait_s else self._answers.get_nowait()))
                wait_s = 0.0
        except Empty:
            pass
        limit = 1 if self._num_failed else self._max_running
        while self._waiting and len(self._running) < limit and self._now_s() >= self._not_before_s:
            pending = self._waiting.popleft()
            if self._store.current(pending.episode_id) is not None:  # a person was faster
                self._settle(pending.episode_id)
                continue
            self._running.add(pending.episode_id)
            name = f"labels of {pending.episode_id}"
            threading.Thread(target=self._ask, args=(pending, self._answers), name=name, daemon=True).start()

    def _ask(self, pending: _Pending, answers: SimpleQueue[_Answer]) -> None:
        result: ChainState | BaseException
        try:
            result = self._labelers.resume(self._load(pending.episode_id), pending.chain_state)
        except BaseException as error:  # a thread's border: the owner raises it
            result = error
        answers.put((pending, result))

    def _process(self, pending: _Pending, result: ChainState | BaseException) -> None:
        self._running.discard(pending.episode_id)
        if isinstance(result, LabelError):
            self._retry_later(pending, result)
        elif isinstance(result, BaseException):
            raise result
        else:
            self._num_failed = 0
            self._not_before_s = 0.0
            self._finish(pending.episode_id, result)

    def _retry_later(self, pending: _Pending, error: LabelError) -> None:
        """Put the episode behind the others: the labeler may have no answer for this one only."""
        settings = self._settings
        delay_s = min(settings.max_retry_s, settings.retry_s * 2.0 ** min(self._num_failed, 30))
        self._num_failed += 1
        self._not_before_s = self._now_s() + delay_s
        self._waiting.append(pending)
        opinions = [Opinion.of(labels) for labels in pending.chain_state.labels]
        self._enqueue(pending.episode_id, (Reason.AWAY,), opinions, note=one_line(error))

    # ---- results

    def _finish(self, episode_id: str, chain_state: ChainState) -> Labels | None:
        for opinion in chain_state.opinions:
            self._store.add(opinion)
        if chain_state.decided is not None:
            self._store.add(chain_state.decided)
        if chain_state.reasons:
            self._enqueue(episode_id, chain_state.reasons, [Opinion.of(labels) for labels in chain_state.labels])
        else:
            self._queue.done(episode_id)
        return chain_state.decided

    def _enqueue(
        self, episode_id: str, reasons: tuple[Reason, ...], opinions: list[Opinion], *, note: str = ""
    ) -> None:
        self._reasons[episode_id] = reasons
        self._queue.put(episode_id, reasons, opinions=opinions, note=note)

    def _settle(self, episode_id: str) -> None:
        """Remove an episode from the queue once it has labels; a process may have died between label and queue."""
        labels = self._store.current(episode_id)
        if labels is not None:
            self._queue.settle(labels)
