"""What the console works on. It opens no run folder itself: whoever starts it hands these in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dovetail.core.types import Array, Event

__all__ = ["Driver", "Handles", "LiveState", "Robot", "Run", "Version", "Weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The running robot at one moment."""

    control: str  # who moves it: policy, human, held, paused, waiting, fault
    reason: str = ""  # why it is held, or what the fault is
    prompt: str = ""
    purpose: str = ""  # of the episode: demo, online, eval
    episode: str = ""
    step: int = 0
    policy_version: int = 0
    driver: str = ""  # who drives, by name
    hint: str = ""  # when to intervene, and how long
    health: Mapping[str, float] = field(default_factory=dict)  # of the control loop
    state: Mapping[str, Sequence[float]] = field(default_factory=dict)  # what the robot feels, by name
    takes_over: bool = True  # whether a person at the console may


class Robot(Protocol):
    """The robot of a run that may be running now, in another process."""

    def state(self) -> LiveState | None:
        """Now; None while nothing runs."""
        ...

    def cameras(self) -> Sequence[str]: ...

    def frame(self, camera: str, newer_than: int) -> tuple[int, Array] | None:
        """Number and picture uint8 [H, W, 3] of the newest frame, a copy; None if there is none newer."""
        ...


class Driver(Protocol):
    """Where driving goes. Nothing here waits: the arm's own loop decides what it heeds."""

    def drive(self, *, name: str, sequence: int, motion: Sequence[float], gripper: float, held: bool) -> None:
        """`motion`: x, y, z and turns about them, each -1 to 1 of the fastest allowed. `held`: the dead-man key."""
        ...

    def lost(self) -> None:
        """The page, the network or the focus has gone away while driving: the arm holds."""
        ...

    def event(self, event: Event) -> None: ...

    def emergency_stop(self, who: str) -> None: ...


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
        """Learner's curves by name: (env steps, value)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    number: int
    published_s: float  # unix time
    num_bytes: int


class Weights(Protocol):
    def versions(self) -> Sequence[Version]: ...

    def pinned(self) -> int | None: ...

    def pin(self, version: int | None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Handles:
    """All of them."""

    run: Run
    robot: Robot
    driver: Driver
    weights: Weights
