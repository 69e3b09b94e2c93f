"""Relabel recorded episodes, several concurrently. Each label is stored at once, so an interrupted job can continue."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice

from dovetail.core.abilities import SlowLabeler
from dovetail.core.contracts import Labeler
from dovetail.core.errors import DovetailError, LabelError
from dovetail.core.types import Labels
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.queue import LabelQueue
from dovetail.labels.store import LabelStore

__all__ = ["RelabelResult", "has_label", "relabel"]

_MAX_FAILURES_IN_A_ROW = 5  # then the labeler is probably unreachable, and the job stops


@dataclass(slots=True, kw_only=True)
class RelabelResult:
    """Result of a relabeling job. Failed episodes are labeled in the next job."""

    num_labeled: int = 0
    num_changed: int = 0  # labeled episodes whose success differs from before
    failures: dict[str, DovetailError] = field(default_factory=dict)  # by episode
    gave_up: bool = False  # too many failures in a row


def relabel(
    episode_ids: Iterable[str],
    *,
    labeler: Labeler,
    log: EpisodeLog,
    store: LabelStore,
    queue: LabelQueue | None = None,
    priority: int = 0,
    on_done: Callable[[str], None] = lambda episode_id: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RelabelResult:
    """Label these episodes and store the labels. Episodes with valid labels leave the `queue`.

    A `SlowLabeler` labels several episodes concurrently. `on_done(id)` is called after each episode, labeled or failed.
    """
    result, num_in_a_row = RelabelResult(), 0
    for episode_id, future in _label_concurrently(
        labeler.max_concurrent if isinstance(labeler, SlowLabeler) else 1,
        episode_ids,
        lambda episode_id: labeler.label(log.load(episode_id)),
        should_stop=lambda: should_stop() or result.gave_up,
    ):
        try:
            labels = dataclasses.replace(future.result(), priority=priority)
        except DovetailError as error:
            result.failures[episode_id] = error
            num_in_a_row += isinstance(error, LabelError)
            result.gave_up |= num_in_a_row >= _MAX_FAILURES_IN_A_ROW
        else:
            before = store.current(episode_id)
            store.add(labels)
            if queue is not None and (valid := store.current(episode_id)) is not None:
                queue.settle(valid)
            result.num_labeled += 1
            result.num_changed += before is not None and before.success != labels.success
            num_in_a_row = 0
        on_done(episode_id)
    return result


def has_label(store: LabelStore, episode_id: str, *, labeler: str, version: str, priority: int = 0) -> bool:
    """Whether this labeler, in this version and priority, has labeled the episode."""
    given = (record.labels for record in store.history(episode_id) if not record.retracted)
    return any((one.labeler, one.version, one.priority) == (labeler, version, priority) for one in given)


def _label_concurrently(
    num: int, episode_ids: Iterable[str], label: Callable[[str], Labels], *, should_stop: Callable[[], bool]
) -> Iterator[tuple[str, Future[Labels]]]:
    """Yield episodes as they are done. At most `num` are loaded at a time, because images need memory."""
    rest = iter(episode_ids)
    pool = ThreadPoolExecutor(num, thread_name_prefix="label")
    running: dict[Future[Labels], str] = {}
    try:
        while True:
            num_free = 0 if should_stop() else num - len(running)
            running |= {pool.submit(label, episode_id): episode_id for episode_id in islice(rest, num_free)}
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future
    finally:
        # do not wait for a server when the job is aborted; finished labels are in the store
        pool.shutdown(wait=not running, cancel_futures=True)
