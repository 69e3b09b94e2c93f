"""What the pages about recorded episodes work on: the log, the people's desk, and what makes files to download."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, Labels, Outcome, Purpose

__all__ = ["VERDICTS", "Desk", "Downloads", "Episodes", "Marked", "Said", "Summary", "Waits"]

VERDICTS = ("success", "failure", "discard")


class Summary(Protocol):
    """What is known of an episode without reading its steps."""

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def prompt(self) -> str: ...
    @property
    def robot(self) -> RobotSpec: ...
    @property
    def operator(self) -> str: ...
    @property
    def purpose(self) -> Purpose: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def judgement(self) -> Outcome | None: ...
    @property
    def started_unix_ns(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def num_human_steps(self) -> int: ...
    @property
    def policy_versions(self) -> tuple[int, ...]: ...


class Episodes(Protocol):
    """The log of a run. Called from several threads; an episode that is there never changes."""

    def ids(self) -> list[str]:
        """In the order of their commits."""
        ...

    def has(self, episode_id: str) -> bool: ...

    def summary(self, episode_id: str) -> Summary: ...

    def steps(self, episode_id: str) -> Episode:
        """All but the pictures."""
        ...

    def cameras(self, episode_id: str) -> Mapping[str, int]:
        """Which pictures there are, and how many of each: one a step, and mostly one of the end."""
        ...

    def frames(self, episode_id: str, camera: str) -> Iterator[Array]: ...

    def last_frame(self, episode_id: str, camera: str) -> Array: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """An episode that waits for a person, and why."""

    episode_id: str
    reasons: tuple[str, ...]
    detail: str
    since_unix_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said of an episode, and when."""

    labels: Labels
    unix_ns: int
    counts: bool
    retracted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """Steps that a person gave a reward, the last included."""

    first: int
    last: int
    reward: float


class Desk(Protocol):
    """Where people label. Called from several threads, by several people."""

    def waiting(self) -> Sequence[Waits]:
        """The longest first."""
        ...

    def said(self, episode_id: str) -> Sequence[Said]:
        """Oldest first."""
        ...

    def current(self, episode_id: str) -> Labels | None:
        """What counts."""
        ...

    def say(self, episode_id: str, verdict: str, marks: Sequence[Marked], *, by: str) -> None:
        """A person's word, durably; the episode waits no longer."""
        ...

    def unsay(self, episode_id: str, *, by: str) -> bool:
        """Take back that person's last word, and wait again for one if it did before; whether there was any."""
        ...


class Downloads(Protocol):
    """Makes files of episodes. `heard(done, total)` is told how far it has come, and may raise to give it up."""

    def video(self, episode_id: str, target: Path, heard: Callable[[int, int], None]) -> None:
        """All cameras side by side."""
        ...

    def lerobot(self, episode_ids: Sequence[str], target: Path, heard: Callable[[int, int], None]) -> None:
        """A dataset, in a zip."""
        ...
