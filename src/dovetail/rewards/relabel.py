"""Labelling in bulk what was recorded: several episodes at once, and each label durable as soon as it is there, so that
whatever ends it, the next time goes on where it stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice

from dovetail.core.contracts import Labeler
from dovetail.core.errors import DovetailError, LabelError
from dovetail.core.types import Labels
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.queue import LabelQueue
from dovetail.labels.store import LabelStore

__all__ = ["Relabelled", "has_label", "relabel"]

_MOST_FAILURES = 5  # in a row: then nobody is there, and the others need not find it out one by one


@dataclass(slots=True, kw_only=True)
class Relabelled:
    """What came of it. What failed is asked for again the next time."""

    num_labelled: int = 0
    num_changed: int = 0  # of those, how many say something else than what counted until then
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
) -> Relabelled:
    """Ask a labeler about these, about as many at once as it may be (`max_concurrent`; one, if it does not say), and
    keep what it says: where that counts, an episode no longer waits in the `queue`. `on_done(id)` is called after each,
    said or failed; `should_stop` asked before each."""
    result, num_in_a_row = Relabelled(), 0
    for episode_id, future in _at_once(
        getattr(labeler, "max_concurrent", 1),
        episode_ids,
        lambda episode_id: labeler.label(log.load(episode_id)),
        should_stop=lambda: should_stop() or result.gave_up,
    ):
        try:
            labels = dataclasses.replace(future.result(), priority=priority)
        except DovetailError as error:
            result.failures[episode_id] = error
            num_in_a_row += isinstance(error, LabelError)
            result.gave_up |= num_in_a_row >= _MOST_FAILURES
        else:
            before = store.current(episode_id)
            store.add(labels)
            if queue is not None and (counts := store.current(episode_id)) is not None:
                queue.settle(counts)
            result.num_labelled += 1
            result.num_changed += before is not None and before.success != labels.success
            num_in_a_row = 0
        on_done(episode_id)
    return result


def has_label(store: LabelStore, episode_id: str, *, labeler: str, version: str, priority: int = 0) -> bool:
    """Whether this very labeler has said something about an episode that still stands."""
    said = (record.labels for record in store.history(episode_id) if not record.retracted)
    return any((one.labeler, one.version, one.priority) == (labeler, version, priority) for one in said)


def _at_once(
    num: int, episode_ids: Iterable[str], label: Callable[[str], Labels], *, should_stop: Callable[[], bool]
) -> Iterator[tuple[str, Future[Labels]]]:
    """Episodes as they are done. Never more than `num` are loaded: there may be thousands, and each has its pictures."""
    rest = iter(episode_ids)
    pool = ThreadPoolExecutor(num, thread_name_prefix="label")
    under_way: dict[Future[Labels], str] = {}
    try:
        while True:
            room = 0 if should_stop() else num - len(under_way)
            under_way |= {pool.submit(label, episode_id): episode_id for episode_id in islice(rest, room)}
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                yield under_way.pop(future), future
    finally:
        # whoever aborts does not wait for a server; what has been answered is in the store
        pool.shutdown(wait=not under_way, cancel_futures=True)
