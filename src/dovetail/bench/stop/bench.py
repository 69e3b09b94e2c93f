"""Time from a press of STOP until the stop command arrives at every arm, wherever the run is stuck. See docs/safety.md.

Each case is a whole run in real processes with emulated arms, whose own clocks tell when a command arrived.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dovetail.bench.rows import Row
from dovetail.bench.stop._matrix import (
    ARMS,
    ENDING,
    LAYOUTS,
    PLACES,
    SOURCES,
    Case,
    impossible,
    pairwise,
    system_order,
)
from dovetail.bench.stop._places import NOT_STUCK
from dovetail.bench.stop._pool import SystemPool
from dovetail.bench.stop._press import Press

__all__ = ["AIM_MS", "bench", "every_place", "guarded_places", "measure", "relayed_places", "summary"]

AIM_MS = 100.0  # for the layouts with a guard
_RELAYED = (NOT_STUCK, "driver observe", "driver send", "paused control", "Ray call")
_WITH_STOP = ("driver observe", "driver send", "task reset", "paused control")  # the guard acts in them


def bench(*, quick: bool) -> Iterator[Row]:
    yield from summary(measure(pairwise() if quick else every_place(), driver="socket_arm:SocketArm"))
    if not quick:
        independent = measure(guarded_places(), driver="socket_arm:SocketArmWithStop")
        yield from summary(independent, suffix=", independent stop")
        yield from summary(measure(relayed_places(), driver="far_arm:FarSocketArm"), suffix=", relayed")


def every_place() -> list[Case]:
    """Each place and layout with every source that does not end the run and one that does. The arms take turns."""
    chosen = []
    for number, (place, layout) in enumerate(itertools.product((NOT_STUCK, *PLACES), LAYOUTS)):
        ending = ENDING[(number + number // len(LAYOUTS)) % len(ENDING)]  # each layout gets all of them
        for turn, source in enumerate(source for source in SOURCES if source not in ENDING or source == ending):
            arm = ARMS[(number // len(LAYOUTS) + turn) % len(ARMS)] if layout == "Ray" else ARMS[0]
            case = Case(place=place, source=source, layout=layout, arm=arm)
            if impossible(case) is None:
                chosen.append(case)
    return sorted(chosen, key=system_order)


def guarded_places() -> list[Case]:
    sources = [source for source in SOURCES if source not in (*ENDING, "keyboard")]
    some = itertools.product(_WITH_STOP, sources)
    return [Case(place=place, source=source, layout="processes", arm="one") for place, source in some]


def relayed_places() -> list[Case]:
    """Two arms as on other machines, with every source that does not end the run."""
    sources = [source for source in SOURCES if source not in (*ENDING, "keyboard")]
    some = enumerate(itertools.product(_RELAYED, sources))
    return [
        Case(place=place, source=source, layout="Ray", arm=ARMS[1 + number % 2])
        for number, (place, source) in some
    ]


def measure(cases: Sequence[Case], *, driver: str) -> Iterator[tuple[Case, Press]]:
    with SystemPool(driver=driver) as systems:
        for case in cases:
            yield case, systems.run(case)


def summary(results: Iterable[tuple[Case, Press]], *, suffix: str = "") -> Iterator[Row]:
    """The median and the worst time of each place and layout, and the start of `dovetail stop`."""
    delays: dict[tuple[str, str], list[float]] = defaultdict(list)
    starts: list[float] = []
    for case, press in results:
        delays[case.place, case.layout].append(press.worst_ms)
        if case.source == "dovetail stop" and not press.problem:
            starts.append(press.start_ms)
    for (place, layout), found in sorted(delays.items(), key=_order):
        row = Row(
            name=f"{place}, {layout}{suffix}: median",
            value=statistics.median(found),
            unit="ms",
            samples=tuple(round(value, 1) for value in found),
        )
        yield row
        worst = replace(row, name=f"{place}, {layout}{suffix}: worst", value=max(found), samples=())
        yield worst if layout == LAYOUTS[0] else replace(worst, aim=AIM_MS, met=max(found) <= AIM_MS)
    if starts:
        yield Row(name=f"start of `dovetail stop`{suffix}: median", value=statistics.median(starts), unit="ms")


def _order(item: tuple[tuple[str, str], list[float]]) -> tuple[int, int]:
    place, layout = item[0]
    return (NOT_STUCK, *PLACES).index(place), LAYOUTS.index(layout)
