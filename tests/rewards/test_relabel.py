"""When relabeling stops after failures, and when it continues."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.core.errors import LabelError
from dovetail.core.types import Labels
from dovetail.labels.chain import OPINION
from dovetail.labels.queue import LabelQueue, Reason
from dovetail.labels.store import LabelStore
from dovetail.rewards.relabel import relabel

LOG: Any = types.SimpleNamespace(load=lambda episode_id: episode_id)  # the labeler needs only the id


class FaultyLabeler:
    """Labels all episodes but those in `fails`."""

    def __init__(self, fails: set[int]) -> None:
        self._fails = fails

    def label(self, episode: Any) -> Labels:
        if int(episode) in self._fails:
            raise LabelError("not now")
        ones = np.ones(2, np.float32)
        return Labels(
            episode_id=episode,
            rewards=ones,
            discounts=ones,
            success=True,
            confidence=1.0,
            labeler="faulty",
            version="1",
        )


def test_separate_failures_do_not_stop_relabeling(tmp_path: Path) -> None:
    done = relabel(
        map(str, range(20)), labeler=FaultyLabeler(set(range(0, 20, 2))), log=LOG, store=LabelStore(tmp_path)
    )
    assert (done.num_labeled, len(done.failures), done.gave_up) == (10, 10, False)


def test_valid_labels_remove_episode_from_queue(tmp_path: Path) -> None:
    """Opinions and, if a person must label, machine labels keep an episode in the queue."""
    store, queue = LabelStore(tmp_path), LabelQueue(tmp_path / "queue")
    for name, reason in (("0", Reason.AWAY), ("1", Reason.NEW), ("2", Reason.UNCERTAIN), ("3", Reason.AWAY)):
        queue.put(name, (reason,))
    relabel(("0", "1", "2"), labeler=FaultyLabeler(set()), log=LOG, store=store, queue=queue, priority=OPINION)
    assert queue.ids() == ["0", "1", "2", "3"]
    relabel(map(str, range(4)), labeler=FaultyLabeler({3}), log=LOG, store=store, queue=queue)
    assert queue.ids() == ["1", "3"]


def test_five_failures_in_a_row_stop_relabeling(tmp_path: Path) -> None:
    done = relabel(
        map(str, range(20)), labeler=FaultyLabeler(set(range(3, 20))), log=LOG, store=LabelStore(tmp_path)
    )
    assert (done.num_labeled, list(done.failures), done.gave_up) == (3, ["3", "4", "5", "6", "7"], True)


def test_unexpected_error_is_raised(tmp_path: Path) -> None:
    """A programming error in a labeler is raised; earlier labels are kept."""

    class Broken(FaultyLabeler):
        def label(self, episode: Any) -> Labels:
            if episode == "2":
                raise ZeroDivisionError
            return super().label(episode)

    store = LabelStore(tmp_path)
    with pytest.raises(ZeroDivisionError):
        relabel(map(str, range(20)), labeler=Broken(set()), log=LOG, store=store)
    assert store.ids() == ["0", "1"]
