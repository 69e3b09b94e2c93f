"""A run with a queue, and what it takes to watch people label it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page

from dovetail.labels.queue import LabelQueue, Opinion, Reason
from dovetail.labels.store import LabelStore

__all__ = ["LabelledRun", "shown", "wait_shown", "wait_until"]


class LabelledRun:
    """The run's label store and queue as any other process sees them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = LabelStore(path / "labels")
        self.queue = LabelQueue(path / "labels" / "queue")

    def ask(self, *episode_ids: str, reason: Reason = Reason.NEW, note: str = "") -> None:
        opinions = [Opinion(labeler="classifier", version="1", success=True, confidence=0.55)]
        for episode_id in episode_ids:
            self.queue.put(episode_id, [reason], opinions=opinions, note=note)

    def human_words(self, episode_id: str) -> int:
        """How many of a person's words stand on it."""
        history = self.store.history(episode_id)
        return sum(record.labels.labeler == "human" and not record.retracted for record in history)

    def wait_labelled(self, *episode_ids: str) -> None:
        wait_until(lambda: all(self.human_words(episode_id) for episode_id in episode_ids))
        wait_until(lambda: not set(episode_ids) & set(self.queue.ids()))

    def empty_queue(self) -> None:
        for episode_id in self.queue.ids():
            self.queue.done(episode_id)


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "that never came"
        time.sleep(0.02)


def shown(page: Page) -> str:
    """The episode that is painted, or nothing while another is on its way."""
    return str(page.evaluate("document.getElementById('dv-label').dataset.episode ?? ''"))


def wait_shown(page: Page, *episode_ids: str) -> str:
    """Until one of these is painted; which."""
    page.wait_for_function(
        "ids => ids.includes(document.getElementById('dv-label')?.dataset.episode)", arg=list(episode_ids)
    )
    return shown(page)
