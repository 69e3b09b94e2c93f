"""The STOP matrix: where a system can be stuck, what presses STOP, the layout and the arm. See docs/safety.md.

`cases()` is the whole matrix. `pairwise()` is a subset in which every two values meet at least once, where they can meet.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

__all__ = [
    "ARMS",
    "LAYOUTS",
    "MISSING",
    "PAUSED",
    "PLACES",
    "SOURCES",
    "Case",
    "Missing",
    "cases",
    "impossible",
    "pairwise",
    "system_order",
]

PAUSED = ("paused control", "paused inference", "paused recorder", "paused guard", "paused supervisor")
PLACES = (
    "driver observe",
    "driver send",
    "task reset",
    "homing",
    "inference",
    "full disk",
    "hanging disk",
    "labeler",
    "console",
    *PAUSED,
    "Ray call",
)
ENDING = ("Ctrl-C", "SIGTERM", "SIGHUP")  # these sources also end the run
DEVICES = ("keyboard", "gamepad", "pedal")
SOURCES = ("console", *DEVICES, *ENDING, "dovetail stop")
LAYOUTS = ("one process", "processes", "Ray")
ARMS = ("one", "first of two", "second of two")


Pair = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell. `arm` is the arm whose part is stuck."""

    place: str
    source: str
    layout: str
    arm: str

    def __str__(self) -> str:
        return "-".join(value.replace(" ", "_") for value in astuple(self))

    @property
    def num_arms(self) -> int:
        return 1 if self.arm == "one" else 2

    @property
    def arm_index(self) -> int:
        return ARMS.index(self.arm) // 2

    @property
    def ends_run(self) -> bool:
        """A run without space on its disk ends, too."""
        return self.source in ENDING or self.place == "full disk"


class Missing(NamedTuple):
    """Cells that do not exist, in words, and why."""

    cells: str
    reason: str
    matches: Callable[[Case], bool]


MISSING = (
    Missing(
        "two arms, without Ray",
        "a run without Ray has one arm",
        lambda case: case.layout != "Ray" and case.num_arms > 1,
    ),
    Missing(
        "Ray call, without Ray",
        "a run without Ray makes none",
        lambda case: case.layout != "Ray" and case.place == "Ray call",
    ),
    Missing(
        "a paused process, one process",
        "nothing is left that could send a stop. The arm's own watchdog must stop it",
        lambda case: case.layout == "one process" and case.place in PAUSED,
    ),
    Missing(
        "keyboard, on Ray",
        "the terminal's keyboard needs a run without Ray",
        lambda case: case.layout == "Ray" and case.source == "keyboard",
    ),
    Missing(
        "console stuck, console as the source",
        "use another source",
        lambda case: case.place == case.source == "console",
    ),
)


def impossible(case: Case) -> str | None:
    """Why a cell of the matrix does not exist, or None."""
    return next((one.reason for one in MISSING if one.matches(case)), None)


def cases(places: Sequence[str] = PLACES) -> Iterator[Case]:
    """All cells that exist."""
    for place, source, layout, arm in itertools.product(places, SOURCES, LAYOUTS, ARMS):
        case = Case(place=place, source=source, layout=layout, arm=arm)
        if impossible(case) is None:
            yield case


def pairwise() -> list[Case]:
    """Greedy all-pairs, sorted so that cases on one system follow each other. The paused processes count as one place."""
    left = list(cases())
    uncovered = {pair for case in left for pair in _pairs(case)}
    chosen: list[Case] = []
    while uncovered:
        best = max(left, key=lambda case: (_score(case, uncovered), -_uses(case, chosen)))
        uncovered -= _pairs(best)
        chosen.append(best)
    return sorted(chosen, key=system_order)


def system_order(case: Case) -> tuple[object, ...]:
    """Cases on the same system are neighbors; those that end the run come last."""
    return (
        LAYOUTS.index(case.layout),
        case.num_arms,
        case.place == "homing",
        case.source == "keyboard",
        case.ends_run,
        SOURCES.index(case.source),
    )


def _pairs(case: Case) -> set[Pair]:
    place = "paused" if case.place in PAUSED else case.place
    return set(itertools.combinations(enumerate((place, case.source, case.layout, case.arm)), 2))


def _score(case: Case, uncovered: set[Pair]) -> tuple[float, bool]:
    """New pairs per cost. A source that ends the run needs a new one. Processes come first: real arms use them."""
    start_s = {"one process": 5.0, "processes": 8.0, "Ray": 25.0}[case.layout]
    if not case.ends_run:
        start_s *= 0.3 * (case.place == "homing")  # few cases share such a system
    return len(uncovered & _pairs(case)) / (3.0 + start_s) ** 0.8, case.layout == "processes"


def _uses(case: Case, chosen: Sequence[Case]) -> int:
    return sum(one.place == case.place for one in chosen)
