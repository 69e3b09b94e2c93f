"""The list of recorded episodes, filtered and sorted."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dovetail.console.episode_details import summary_row, verdict
from dovetail.console.episode_labels import EpisodeLabels
from dovetail.console.recorded_episodes import RecordedEpisodes
from dovetail.core.errors import StoreError
from dovetail.core.specs import RobotSpec
from dovetail.episodes.log import EpisodeInfo

__all__ = ["EpisodeList", "EpisodeQuery"]

_ORDERS: dict[str, Callable[[EpisodeInfo], Any]] = {
    "number": lambda info: info.number,
    "time": lambda info: info.started_unix_ns,
    "steps": lambda info: info.num_steps,
    "human": lambda info: info.num_human_steps / max(1, info.num_steps),
    "task": lambda info: (info.task, info.number),
    "outcome": lambda info: (info.outcome.value, info.number),
    "version": lambda info: (max(info.policy_versions, default=0), info.number),
}


class EpisodeQuery(BaseModel):
    """An empty filter matches all."""

    model_config = ConfigDict(extra="forbid")

    outcome: str = Field(default="", max_length=32)
    purpose: str = Field(default="", max_length=32)
    task: str = Field(default="", max_length=200)
    operator: str = Field(default="", max_length=200)
    label: str = Field(default="", max_length=32)  # success, failure, discard, none
    labeler: str = Field(default="", max_length=200)
    text: str = Field(default="", max_length=200)  # part of its id, task, prompt or operator
    sort: str = Field(default="number", pattern=f"^({'|'.join(_ORDERS)})$")
    descending: bool = True
    offset: int = Field(default=0, ge=0, le=10_000_000)
    limit: int = Field(default=50, ge=1, le=200)

    def matches(self, info: EpisodeInfo) -> bool:
        text = self.text.casefold()
        return (
            self.outcome in ("", info.outcome.value)
            and self.purpose in ("", info.purpose.value)
            and self.task in ("", info.task)
            and self.operator in ("", info.operator)
            and any(text in part.casefold() for part in (info.id, info.task, info.prompt, info.operator))
        )


class EpisodeList:
    """Reads each summary once, because a recorded episode never changes."""

    def __init__(self, episodes: RecordedEpisodes, labels: EpisodeLabels) -> None:
        self._episodes = episodes
        self._labels = labels
        self._known: dict[str, EpisodeInfo] = {}
        self._robots: dict[str, RobotSpec] = {}  # by their JSON
        self._listed: tuple[list[str], list[EpisodeInfo], list[str]] | None = None  # ids, summaries, problems
        self._lock = threading.Lock()

    def page(self, query: EpisodeQuery) -> dict[str, Any]:
        """The rows of one page, the number of matches, and the possible values of the filters."""
        infos, problems = self._all()
        found = sorted(
            (info for info in infos if query.matches(info)), key=_ORDERS[query.sort], reverse=query.descending
        )
        if query.label or query.labeler:  # labels of all episodes are read only if needed
            found = [info for info in found if self._has_label(info, query)]
        shown = found[query.offset : query.offset + query.limit]
        return {
            "total": len(infos),
            "matching": len(found),
            "rows": [summary_row(info, self._labels.current(info.id)) for info in shown],
            "tasks": _unique(info.task for info in infos),
            "operators": _unique(info.operator for info in infos),
            "problems": problems[:5],
        }

    def _has_label(self, info: EpisodeInfo, query: EpisodeQuery) -> bool:
        label = self._labels.current(info.id)
        if label is None:
            return query.label == "none" and not query.labeler
        return query.label in ("", verdict(label)) and query.labeler in ("", label.labeler)

    def _all(self) -> tuple[list[EpisodeInfo], list[str]]:
        problems: list[str] = []
        with self._lock:
            ids = self._episodes.ids()
            if self._listed is not None and self._listed[0] is ids and not self._listed[2]:
                return self._listed[1], []
            known: dict[str, EpisodeInfo] = {}
            for episode_id in ids:
                try:
                    known[episode_id] = self._known.get(episode_id) or self._summary(episode_id)
                except StoreError as error:
                    problems.append(str(error))
            self._known = known
            self._listed = (ids, list(known.values()), problems)
            return self._listed[1], problems

    def _summary(self, episode_id: str) -> EpisodeInfo:
        """Episodes share equal robots: the garbage collector stops all threads while it examines each object in memory."""
        info = self._episodes.summary(episode_id)
        robot = self._robots.setdefault(json.dumps(info.robot.to_json()), info.robot)
        return dataclasses.replace(info, robot=robot)


def _unique(values: Iterable[str]) -> list[str]:
    return sorted(set(values))
