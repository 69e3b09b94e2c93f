"""Which episodes a person wants to see, and in which order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dovetail.console.details import row, word
from dovetail.console.episode_handles import Desk, Episodes, Summary
from dovetail.core.errors import StoreError

__all__ = ["Listing", "Wanted"]

_ORDERS: dict[str, Callable[[Summary], Any]] = {
    "number": lambda info: info.number,
    "time": lambda info: info.started_unix_ns,
    "steps": lambda info: info.num_steps,
    "human": lambda info: info.num_human_steps / max(1, info.num_steps),
    "task": lambda info: (info.task, info.number),
    "outcome": lambda info: (info.outcome.value, info.number),
    "version": lambda info: (max(info.policy_versions, default=0), info.number),
}


class Wanted(BaseModel):
    """What is not said is not asked."""

    model_config = ConfigDict(extra="forbid")

    outcome: str = Field(default="", max_length=32)
    purpose: str = Field(default="", max_length=32)
    task: str = Field(default="", max_length=200)
    operator: str = Field(default="", max_length=200)
    label: str = Field(default="", max_length=32)  # success, failure, discard, none
    labeler: str = Field(default="", max_length=200)
    text: str = Field(default="", max_length=200)  # somewhere in its id, task, prompt or operator
    sort: str = Field(default="number", pattern=f"^({'|'.join(_ORDERS)})$")
    descending: bool = True
    offset: int = Field(default=0, ge=0, le=10_000_000)
    limit: int = Field(default=50, ge=1, le=200)

    def matches(self, info: Summary) -> bool:
        text = self.text.casefold()
        return (
            self.outcome in ("", info.outcome.value)
            and self.purpose in ("", info.purpose.value)
            and self.task in ("", info.task)
            and self.operator in ("", info.operator)
            and any(text in part.casefold() for part in (info.id, info.task, info.prompt, info.operator))
        )


class Listing:
    """Summaries are read once each: an episode that is there never changes."""

    def __init__(self, episodes: Episodes, desk: Desk) -> None:
        self._episodes = episodes
        self._desk = desk
        self._known: dict[str, Summary] = {}
        self._lock = threading.Lock()

    def page(self, wanted: Wanted) -> dict[str, Any]:
        """Rows of one page of the list, how many there are in all, and what could be asked for."""
        infos, problems = self._all()
        found = sorted(
            (info for info in infos if wanted.matches(info)), key=_ORDERS[wanted.sort], reverse=wanted.descending
        )
        if wanted.label or wanted.labeler:  # only then is it worth reading the labels of all
            found = [info for info in found if self._is_labelled(info, wanted)]
        shown = found[wanted.offset : wanted.offset + wanted.limit]
        return {
            "total": len(infos),
            "matching": len(found),
            "rows": [row(info, self._desk.current(info.id)) for info in shown],
            "tasks": _each(info.task for info in infos),
            "operators": _each(info.operator for info in infos),
            "problems": problems[:5],
        }

    def _is_labelled(self, info: Summary, wanted: Wanted) -> bool:
        label = self._desk.current(info.id)
        if label is None:
            return wanted.label == "none" and not wanted.labeler
        return wanted.label in ("", word(label)) and wanted.labeler in ("", label.labeler)

    def _all(self) -> tuple[list[Summary], list[str]]:
        problems: list[str] = []
        with self._lock:
            known: dict[str, Summary] = {}
            for episode_id in self._episodes.ids():
                try:
                    known[episode_id] = self._known.get(episode_id) or self._episodes.summary(episode_id)
                except StoreError as error:
                    problems.append(str(error))
            self._known = known
            return list(known.values()), problems


def _each(values: Iterable[str]) -> list[str]:
    return sorted(set(values))
