"""Which episodes of a run a command is about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from dovetail.core.errors import StoreError, UsageError, did_you_mean
from dovetail.core.types import Labels, Outcome, Purpose
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.labels.store import LabelStore

__all__ = ["Filter", "Found", "LabelIs", "Mover", "Selection", "parse_filter", "parse_moment"]


class Mover(StrEnum):
    """Who moved the arm. Every episode is one of the two."""

    HUMAN = "human"  # a person, in at least one step
    POLICY = "policy"  # the policy alone, from beginning to end


class LabelIs(StrEnum):
    """What the label that counts says."""

    SUCCESS = "success"
    FAILURE = "failure"
    NONE = "none"  # nobody has said anything yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What is not said is not asked."""

    task: str | None = None
    robot: str | None = None
    purpose: Purpose | None = None
    outcome: Outcome | None = None
    source: Mover | None = None
    label: LabelIs | None = None
    labeler: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None  # the newest so many of those that match

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, field.name) is None for field in fields(self))

    @property
    def asks_labels(self) -> bool:
        return self.label is not None or self.labeler is not None

    def matches(self, info: EpisodeInfo, label: Labels | None) -> bool:
        """Whether an episode, with the label that counts for it, is one of those meant; `limit` counts elsewhere."""
        started = info.started_unix_ns / 1e9
        return (
            self.task in (None, info.task)
            and self.robot in (None, info.robot.name)
            and self.purpose in (None, info.purpose)
            and self.outcome in (None, info.outcome)
            and self.source in (None, Mover.HUMAN if info.num_human_steps else Mover.POLICY)
            and self.label in (None, _said(label))
            and self.labeler in (None, label.labeler if label else "")
            and (self.since is None or started >= self.since.timestamp())
            and (self.until is None or started < self.until.timestamp())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An episode that matches, and its number in the log, by which commands know it too."""

    number: int
    info: EpisodeInfo
    label: Labels | None


class Selection:
    """The episodes of a run that match, oldest first, read one at a time: there may be thousands.

    Damage never hides the rest: it is noted in `problems`, whole once the iteration is through.
    """

    def __init__(self, log: EpisodeLog, labels: LabelStore, wanted: Filter) -> None:
        self._log = log
        self._labels = labels
        self._wanted = wanted
        self.ids = log.ids()
        self.problems: list[str] = []
        self._labels_readable = True

    def __iter__(self) -> Iterator[Found]:
        numbered = list(enumerate(self.ids, start=1))
        if self._wanted.limit is None:
            yield from self._matching(iter(numbered))
            return
        newest = []
        for found in self._matching(reversed(numbered)):
            newest.append(found)
            if len(newest) == self._wanted.limit:
                break
        yield from reversed(newest)

    def _matching(self, numbered: Iterator[tuple[int, str]]) -> Iterator[Found]:
        for number, episode_id in numbered:
            try:
                info = self._log.manifest(episode_id)
            except StoreError as error:
                self.problems.append(str(error))
                continue
            label = self._label(episode_id)
            if self._wanted.matches(info, label):
                yield Found(number=number, info=info, label=label)

    def _label(self, episode_id: str) -> Labels | None:
        try:
            return self._labels.current(episode_id) if self._labels_readable else None
        except StoreError as error:
            if self._wanted.asks_labels:
                raise  # whoever asks for labels must not be answered without them
            self._labels_readable = False
            self.problems.append(str(error))
            return None


def _said(label: Labels | None) -> LabelIs:
    if label is None:
        return LabelIs.NONE
    return LabelIs.SUCCESS if label.success else LabelIs.FAILURE


def parse_filter(
    *,
    task: str | None = None,
    robot: str | None = None,
    purpose: str | None = None,
    outcome: str | None = None,
    source: str | None = None,
    label: str | None = None,
    labeler: str | None = None,
    since: str | None = None,
    until: str | None = None,
    limit: int | None = None,
) -> Filter:
    """A filter from the words of a command line."""
    return Filter(
        task=task.replace("-", "_") if task else task,  # as recipes are called
        robot=robot,
        purpose=_choice(Purpose, purpose, "purpose"),
        outcome=_choice(Outcome, outcome, "outcome"),
        source=_choice(Mover, source, "source"),
        label=_choice(LabelIs, label, "label"),
        labeler=labeler,
        since=None if since is None else parse_moment(since),
        until=None if until is None else parse_moment(until, ends=True),
        limit=limit,
    )


_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(m|min|h|d|w)")
_UNITS = {"m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_moment(text: str, *, ends: bool = False, now: datetime | None = None) -> datetime:
    """`2026-01-31`, `2026-01-31T09:30` in local time, or `90min`, `2h`, `3d`, `1w` ago; a day `ends` at midnight."""
    now = now or datetime.now().astimezone()
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago:
            return now - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        moment = datetime.fromisoformat(text.strip())
        if ends and re.fullmatch(r"\d{4}-?\d{2}-?\d{2}", text.strip()):
            moment += timedelta(days=1)
        return moment.astimezone()  # one without a zone is local
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"'{text}' is no date: write 2026-01-31, 2026-01-31T09:30, or how long ago, as 90min, 2h, 3d or 1w"
        ) from None


Choice = TypeVar("Choice", bound=StrEnum)


def _choice(kind: type[Choice], text: str | None, name: str) -> Choice | None:
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"no {name} '{text}'.{did_you_mean(text, [str(value) for value in kind])}") from None
