"""What the console works on. It opens no run folder itself: whoever starts it hands these in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dovetail.console.episode_handles import Desk, Downloads, Episodes
from dovetail.core.types import Array, Event

__all__ = ["Driver", "Handles", "LiveState", "Robot", "Run", "Version", "Weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The running robot at one moment: plain values, ready for JSON."""

    control: str  # policy, human, holding, paused, fault, or idle between episodes
    reason: str = ""  # why it holds, is paused or stopped
    driver: int = 0  # the session that drives; 0: none
    may_drive: bool = True  # nobody drives in an evaluation
    episode: Mapping[str, Any] = field(default_factory=dict)  # id, purpose, number
    step: int = 0
    prompt: str = ""
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)  # what the robot feels, by name
    executed: Sequence[float] = ()
    health: Mapping[str, float] = field(
        default_factory=dict
    )  # ticks, overruns, late_ms, worst_late_ms, thinking_ms
    policy_version: int = 0
    weights_age_s: float | None = None  # since the newest weights were published
    mode: str = ""  # how it acts: sequential, rtc...
    hint: Mapping[str, Any] | None = None  # when to take over: text, and for how many seconds
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the run: its phase, figures


class Robot(Protocol):
    """The robot of a run that may be running now, in another process."""

    def refresh(self) -> None:
        """Called now and then: look whether the run has started, ended, or acts anew; say that a console is there."""
        ...

    def state(self) -> LiveState | None:
        """Now; None while nothing runs."""
        ...

    @property
    def axes(self) -> Sequence[str]:
        """Names of what a person can move, in the order in which `Driver.drive` wants them."""
        ...

    def cameras(self) -> Sequence[str]: ...

    def frame(self, camera: str, newer_than: int) -> tuple[int, Array] | None:
        """The newest picture, uint8 [H, W, 3], and its number; None if there is none newer. Called by one thread."""
        ...

    def close(self) -> None:
        """At the end, by that thread too."""
        ...


class Driver(Protocol):
    """Where driving goes. Nothing here waits: the arm's own loop decides what it heeds."""

    def drive(self, *, session: int, sequence: int, held: bool, axes: Sequence[float]) -> None:
        """Each axis -1 to 1 of the fastest allowed. Not `held`: given back. Raises UsageError for nonsense."""
        ...

    def lose(self, *, session: int, sequence: int) -> None:
        """The page, the network or the focus has gone away while driving: the arm holds."""
        ...

    def post(self, event: Event, *, session: int) -> None: ...


class Run(Protocol):
    """What is known of a run by its folder, whether it runs or not."""

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> Mapping[str, str]:
        """Task, robot, policy, algorithm and so on, for people."""
        ...

    def events(self, start: int) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Lines of events.jsonl from this place on, and the place after them."""
        ...

    def curves(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """The learner's curves by name: (env steps, value). May take a moment."""
        ...

    def acknowledge(self, robot: str) -> None:
        """Somebody has seen to this arm, one of several: it may go on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    number: int
    published_s: float  # unix time
    num_bytes: int


class Weights(Protocol):
    def versions(self) -> Sequence[Version]:
        """Those that can be loaded, oldest first."""
        ...

    def pinned(self) -> int | None: ...

    def pin(self, version: int | None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Handles:
    """All of them."""

    run: Run
    robot: Robot
    driver: Driver
    weights: Weights
    episodes: Episodes
    desk: Desk
    downloads: Downloads
