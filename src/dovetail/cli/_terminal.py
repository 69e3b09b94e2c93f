"""The console, and small drawings in text: intervals, sparklines, times."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dovetail.core.errors import printable
from dovetail.core.stats import Rate
from dovetail.learn.coach import Advice, Severity

__all__ = [
    "advice_block",
    "console",
    "duration",
    "interval",
    "number",
    "percent",
    "rate_line",
    "say",
    "sparkline",
    "split_arguments",
]


class _Console(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """Print without control characters, which a stored text may contain."""
        super().print(*(_printable(one) for one in objects), **options)

    def on_broken_pipe(self) -> None:
        """Continue without output when the reader of a pipe has gone. Rich would end the process."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _printable(thing: Any) -> Any:
    if isinstance(thing, str):
        return printable(thing)
    if isinstance(thing, Text):
        thing.plain = printable(thing.plain)  # as long as before, so styles stay in their places
    elif isinstance(thing, Table):
        for column in thing.columns:
            column._cells[:] = [_printable(cell) for cell in column._cells]
    return thing


# Output to a pipe is not cut to the width of a terminal.
console = _Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200)

_LEVELS = "▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 22


def say(text: str) -> None:
    """Print a line without markup and without wrapping."""
    console.print(text, markup=False, soft_wrap=True)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Recipes or files, and overrides: an argument with `=` is an override."""
    sources = [argument for argument in arguments if "=" not in argument]
    return sources, [argument for argument in arguments if "=" in argument]


def sparkline(values: Sequence[float], *, width: int, low: float | None = None, high: float | None = None) -> str:
    """A curve in `width` characters; each shows the mean of some values."""
    if not len(values):
        return ""
    num_buckets = min(width, len(values))
    edges = [len(values) * i // num_buckets for i in range(num_buckets + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    bottom = min(means) if low is None else low
    top = max(means) if high is None else high
    span = (top - bottom) or 1.0
    top_level = len(_LEVELS) - 1
    return "".join(_LEVELS[min(top_level, max(0, round((m - bottom) / span * top_level)))] for m in means)


def interval(rate: Rate, *, width: int = 40) -> Text:
    """A rate and its 95 % interval on a line from 0 to 100 %."""
    low, at, high = (round(share * (width - 1)) for share in (rate.low, rate.rate, rate.high))
    text = Text()
    for cell in range(width):
        if cell == at:
            text.append("●", style="bold " + _color(rate.rate))
        elif low <= cell <= high:
            text.append("━", style=_color(rate.rate))
        else:
            text.append("·", style="bright_black")
    return text


def rate_line(label: str, rate: Rate) -> Text:
    text = Text(f"  {label:<{_LABEL_WIDTH}}")
    text.append_text(interval(rate, width=max(10, min(40, console.width - 52))))
    text.append(f"  {100 * rate.rate:3.0f} %", style="bold")
    text.append(f"  [{100 * rate.low:.0f}, {100 * rate.high:.0f}] of {rate.episodes}", style="bright_black")
    return text


def advice_block(advice: Sequence[Advice], *, most: int) -> Table:
    """The coach's advice: the problem, and below it what to try."""
    grid = Table.grid(padding=(0, 1))
    for _ in range(2):
        grid.add_column(no_wrap=True)
    grid.add_column()
    for number, one in enumerate(advice[:most]):
        color = "yellow" if one.severity is Severity.WARNING else "cyan"
        label = Text("coach" if number == 0 else "", style="bright_black")
        grid.add_row(label, Text("●", style=color), Text(f"{one.message}."))
        grid.add_row("", "", Text(f"try: {one.command}", style="bright_black"))
    if len(advice) > most:
        grid.add_row("", "", Text(f"and {len(advice) - most} more, see events.jsonl", style="bright_black"))
    return grid


def duration(seconds: float) -> str:
    """90 -> `1 min 30 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _color(rate: float) -> str:
    return "green" if rate >= 0.9 else "yellow" if rate >= 0.5 else "red"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
