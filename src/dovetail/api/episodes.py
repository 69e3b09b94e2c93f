"""The recorded episodes of a run: iterate, filter, and read arrays, images and labels."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from dovetail.core.errors import StoreError, UsageError, did_you_mean
from dovetail.core.types import Array, Episode, Labels, Outcome, Purpose
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.labels.store import LabelRecord, LabelStore

__all__ = ["Episodes", "Filter", "LabelIs", "Mover", "RecordedEpisode", "parse_filter", "parse_time"]

_DATE_CHARS = 8  # an id begins with a date; a shorter number is an episode's number
_MIN_PART_CHARS = 6  # of a part of an id that is not its start


class Mover(StrEnum):
    """Who moved the arm. Every episode is one of the two."""

    HUMAN = "human"  # a person, in at least one step
    POLICY = "policy"  # the policy, in every step


class LabelIs(StrEnum):
    """The content of an episode's current label."""

    SUCCESS = "success"
    FAILURE = "failure"
    NONE = "none"  # not labeled yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions that an episode must meet. None: any."""

    task: str | None = None
    robot: str | None = None
    purpose: Purpose | None = None
    outcome: Outcome | None = None
    source: Mover | None = None
    label: LabelIs | None = None
    labeler: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None  # only the newest of those that match

    @property
    def is_empty(self) -> bool:
        return self == Filter()

    @property
    def needs_labels(self) -> bool:
        return self.label is not None or self.labeler is not None

    def matches(self, info: EpisodeInfo, label: Labels | None) -> bool:
        """Check an episode and its current label. `limit` is applied by `Episodes`."""
        started = info.started_unix_ns / 1e9
        return (
            self.task in (None, info.task)
            and self.robot in (None, info.robot.name)
            and self.purpose in (None, info.purpose)
            and self.outcome in (None, info.outcome)
            and self.source in (None, Mover.HUMAN if info.num_human_steps else Mover.POLICY)
            and self.label in (None, _label_is(label))
            and self.labeler in (None, label.labeler if label else "")
            and (self.since is None or started >= self.since.timestamp())
            and (self.until is None or started < self.until.timestamp())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEpisode:
    """One episode. `info` and `label` are read already; arrays and images are read when asked for."""

    number: int  # its position in the log, from 1
    info: EpisodeInfo
    label: Labels | None  # the current label
    log: EpisodeLog = dataclasses.field(repr=False)
    store: LabelStore = dataclasses.field(repr=False)

    @property
    def id(self) -> str:
        return self.info.id

    def load(self, *, images: bool = True) -> Episode:
        return self.log.load(self.id, images=images)

    def arrays(self) -> dict[str, Array]:
        """Every column but images, [T, ...]: `observation/<key>`, `executed`, `reward/<name>`, `source` and others."""
        episode = self.load(images=False)
        return {name: episode.column(name) for name in episode.segments[0].columns}

    def images(self, camera: str) -> Array:
        """The images of a camera, one per step, [T, H, W, 3] uint8. `info.cameras` has the names."""
        return self.log.images(self.id, camera)[:-1]

    def label_history(self) -> list[LabelRecord]:
        """Every label that the episode ever received, oldest first."""
        return self.store.history(self.id)


class Episodes:
    """The episodes of a run that match a filter, oldest first. They are read one at a time: there may be thousands.

    A damaged episode is skipped and noted in `problems` while iterating.
    """

    def __init__(self, run: Path, wanted: Filter | None = None) -> None:
        self.path = run
        self.log, self.labels = EpisodeLog(run / "episodes"), LabelStore(run / "labels")
        self._wanted = wanted or Filter()
        self.ids: Sequence[str] = self.log.ids()  # of all episodes, whether or not they match
        self.problems: list[str] = []
        self._labels_readable = True

    def filter(self, **conditions: Any) -> Episodes:
        """The episodes that also match these conditions: `purpose="online", outcome="success", since="2h", limit=10`.

        task, robot, labeler: a name. purpose: demo, online, eval. outcome: success, failure, timeout, aborted.
        source: human, policy. label: success, failure, none. since, until: a date or `90min`, `2h`, `3d`, `1w` ago.
        """
        added = parse_filter(**conditions)
        given = {field.name: getattr(added, field.name) for field in fields(Filter) if field.name in conditions}
        return Episodes(self.path, dataclasses.replace(self._wanted, **given))

    def __len__(self) -> int:
        return len(self.ids) if self._wanted.is_empty else sum(1 for _ in self)

    def __getitem__(self, key: int | str) -> RecordedEpisode:
        """By position (`episodes[0]`, `episodes[-1]`), or by `find` (`episodes["last"]`)."""
        if isinstance(key, str):
            return self._read(self.find(key))
        if self._wanted.is_empty:
            return self._read(self.ids[key])
        return list(self)[key]

    def __iter__(self) -> Iterator[RecordedEpisode]:
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

    def find(self, text: str) -> str:
        """The id of an episode, from its id, the start or a part of it, its number, `first` or `last`."""
        ids = self.ids
        if not ids:
            raise UsageError(f"run {self.path} has no episodes yet")
        if text in ids:
            return text
        if text in ("first", "last"):
            return ids[0] if text == "first" else ids[-1]
        if text.isdecimal() and len(text) < _DATE_CHARS:
            if not 1 <= int(text) <= len(ids):
                raise UsageError(f"there is no episode {text} in {self.path}: they are numbered 1 to {len(ids)}")
            return ids[int(text) - 1]
        found = [episode_id for episode_id in ids if episode_id.startswith(text)]
        if len(text) >= _MIN_PART_CHARS:
            found = found or [episode_id for episode_id in ids if text in episode_id]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(
                f"'{text}' matches {len(found)} episodes, e.g. {found[0]} and {found[1]}: write more of it"
            )
        raise UsageError(f"no episode '{text}' in {self.path}: `dovetail episodes ls {self.path}` lists them")

    def _read(self, episode_id: str) -> RecordedEpisode:
        info, number = self.log.manifest(episode_id), self.ids.index(episode_id) + 1
        return RecordedEpisode(
            number=number, info=info, label=self._label(episode_id), log=self.log, store=self.labels
        )

    def _matching(self, numbered: Iterator[tuple[int, str]]) -> Iterator[RecordedEpisode]:
        for number, episode_id in numbered:
            try:
                info = self.log.manifest(episode_id)
            except StoreError as error:
                self.problems.append(str(error))
                continue
            label = self._label(episode_id)
            if self._wanted.matches(info, label):
                yield RecordedEpisode(number=number, info=info, label=label, log=self.log, store=self.labels)

    def _label(self, episode_id: str) -> Labels | None:
        try:
            return self.labels.current(episode_id) if self._labels_readable else None
        except StoreError as error:
            if self._wanted.needs_labels:
                raise
            self._labels_readable = False
            self.problems.append(str(error))
            return None


def _label_is(label: Labels | None) -> LabelIs:
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
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    limit: int | None = None,
) -> Filter:
    """A filter from text, as on the command line."""
    return Filter(
        task=task.replace("-", "_") if task else task,  # `peg-insertion`, as recipes are named
        robot=robot,
        purpose=_choice(Purpose, purpose, "purpose"),
        outcome=_choice(Outcome, outcome, "outcome"),
        source=_choice(Mover, source, "source"),
        label=_choice(LabelIs, label, "label"),
        labeler=labeler,
        since=parse_time(since) if isinstance(since, str) else since,
        until=parse_time(until, ends=True) if isinstance(until, str) else until,
        limit=limit,
    )


_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(m|min|h|d|w)")
_UNITS = {"m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_time(text: str, *, ends: bool = False, now: datetime | None = None) -> datetime:
    """`2026-01-31`, `2026-01-31T09:30` in local time, or `90min`, `2h`, `3d`, `1w` ago. With `ends`, a date means the
    end of that day."""
    now = now or datetime.now().astimezone()
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago:
            return now - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        moment = datetime.fromisoformat(text.strip())
        if ends and re.fullmatch(r"\d{4}-?\d{2}-?\d{2}", text.strip()):
            moment += timedelta(days=1)
        return moment.astimezone()  # without a zone: local time
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"'{text}' is not a date: write 2026-01-31, 2026-01-31T09:30, or how long ago: 90min, 2h, 3d or 1w"
        ) from None


Choice = TypeVar("Choice", bound=StrEnum)


def _choice(kind: type[Choice], text: str | None, name: str) -> Choice | None:
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"no {name} '{text}'.{did_you_mean(text, [str(value) for value in kind])}") from None
