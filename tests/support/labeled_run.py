"""A run with a queue of episodes to label, and helpers for tests of the page Label."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

from dovetail.labels.queue import LabelQueue, Opinion, Reason
from dovetail.labels.store import LabelStore
from support.live_run import until

__all__ = ["LabeledRun", "shown", "wait_shown"]


class LabeledRun:
    """The label store and the queue of a run, opened by another process than the console's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = LabelStore(path / "labels")
        self.queue = LabelQueue(path / "labels" / "queue")

    def enqueue(self, *episode_ids: str, reason: Reason = Reason.NEW, note: str = "") -> None:
        opinions = [Opinion(labeler="classifier", version="1", success=True, confidence=0.55)]
        for episode_id in episode_ids:
            self.queue.put(episode_id, [reason], opinions=opinions, note=note)

    def num_human_labels(self, episode_id: str) -> int:
        """Labels by people that are not retracted."""
        history = self.store.history(episode_id)
        return sum(record.labels.labeler == "human" and not record.retracted for record in history)

    def wait_labeled(self, *episode_ids: str) -> None:
        until(lambda: all(self.num_human_labels(episode_id) for episode_id in episode_ids), what="the labels")
        until(lambda: not set(episode_ids) & set(self.queue.ids()), what="the queue to be shorter")

    def empty_queue(self) -> None:
        for episode_id in self.queue.ids():
            self.queue.done(episode_id)


def shown(page: Page) -> str:
    """The episode on screen; empty while another one loads."""
    return str(page.evaluate("document.getElementById('dv-label').dataset.episode ?? ''"))


def wait_shown(page: Page, *episode_ids: str) -> str:
    """Wait until one of these is on screen; returns which."""
    page.wait_for_function(
        "ids => ids.includes(document.getElementById('dv-label')?.dataset.episode)", arg=list(episode_ids)
    )
    return shown(page)
