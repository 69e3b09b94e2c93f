"""Progress of a run: a live panel in a terminal, else a line every few seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dovetail.cli._figures import evaluation_lines, rate_labels
from dovetail.cli._terminal import advice_block, duration, number, percent, sparkline
from dovetail.core.figures import Performance
from dovetail.learn.coach import Advice
from dovetail.runs.status import RECENT, RunStatus, StatusListener, ignore_status

__all__ = ["LinesView", "LiveView", "view_for"]

_REDRAW_S = 0.1
_LINE_EVERY_S = 10.0
_MOST_ADVICE = 3


def view_for(
    console: Console, *, quiet: bool, has_operator: bool = True
) -> AbstractContextManager[StatusListener]:
    """The view of a run. Without an operator it has no figures of help."""
    if quiet:
        return nullcontext(ignore_status)
    view = LiveView if console.is_terminal else LinesView
    return view(console, has_operator=has_operator)


class LiveView:
    """Redraws in place, at most ten times a second, when the run reports its status."""

    def __init__(self, console: Console, *, has_operator: bool = True) -> None:
        self._console = console
        self._has_operator = has_operator
        self._live = Live(console=console, auto_refresh=False)
        self._started_s = time.monotonic()
        self._drawn_s = 0.0
        self._last: RunStatus | None = None

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._last is not None:
            self._live.update(self._picture(self._last), refresh=True)
        self._live.__exit__(None, None, None)

    def __call__(self, status: RunStatus) -> None:
        self._last = status
        if time.monotonic() - self._drawn_s >= _REDRAW_S:
            self._live.update(self._picture(status), refresh=True)
            self._drawn_s = time.monotonic()

    def _picture(self, status: RunStatus) -> RenderableType:
        names = rate_labels(env_steps=status.env_steps)
        labels = {label: name for name, label in names.items() if name in status.evaluations}
        rates = evaluation_lines({label: status.evaluations[name] for label, name in labels.items()})
        parts: list[RenderableType] = [_progress(status)]
        if status.episodes and not status.evaluating:
            curve = _curve(status, width=max(20, self._console.width - 30))
            parts += [Text(), _figures(status, has_operator=self._has_operator), Text(), curve]
            if "inference_p50_ms" in status.telemetry:
                parts += [Text(), _loop(status.telemetry)]
            if status.advice:
                parts += [Text(), advice_block(status.advice, most=_MOST_ADVICE)]
        if rates:
            parts += [Text(), *rates]
        elapsed = duration(time.monotonic() - self._started_s)
        return Panel(
            Group(*parts),
            title=f"[bold]{status.name}[/bold]",
            subtitle=f"[bright_black]{elapsed}[/bright_black]",
            title_align="left",
            subtitle_align="right",
            border_style="cyan",
        )


def _progress(status: RunStatus) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    left = status.seconds_left
    done = min(status.done, status.total)
    right = f"{done} / {status.total}" + (f", {duration(left)} left" if left is not None and left > 0 else "")
    grid.add_row(
        Text(status.phase, style="bold"), ProgressBar(total=max(1, status.total), completed=done), Text(right)
    )
    return grid


def _figures(status: RunStatus, *, has_operator: bool) -> Table:
    grid = Table.grid(padding=(0, 3))
    for _ in range(3):
        grid.add_column()
    recent = status.performance()
    cells = [
        *_recent_cells(status, recent),
        *([("human share", percent(status.recent(status.recent_human)))] if has_operator else []),
        ("episodes", f"{status.episodes}"),
        ("env steps", f"{status.env_steps}"),
        ("updates", f"{status.updates}"),
        ("robot minutes", f"{status.robot_minutes:.1f}"),
        *([("interventions", _interventions(status, recent))] if has_operator else []),
    ]
    if status.waiting:
        cells.append(("waiting for labels", f"{sum(status.waiting.values())}"))
    if "q" in status.metrics:
        cells.append(("mean q", f"{status.metrics['q']:.2f}"))
    texts = [Text.assemble((f"{label} ", "bright_black"), (value, "bold")) for label, value in cells]
    for first in range(0, len(texts), 3):
        grid.add_row(*texts[first : first + 3])
    return grid


def _recent_cells(status: RunStatus, recent: Performance | None) -> list[tuple[str, str]]:
    """Success, cycle time, throughput and return of the last episodes; only the return where there is no success."""
    mean_return = number(status.recent(status.recent_return))
    if status.has_success is False:
        return [(f"return, last {min(RECENT, status.episodes)}", mean_return)]
    cycle = recent.cycle_time_s if recent else None
    per_minute = recent.per_minute if recent else None
    with_resets = recent.per_minute_with_resets if recent else None
    return [
        (f"success, last {min(RECENT, status.episodes)}", percent(status.recent(status.recent_success))),
        ("return", mean_return),
        ("cycle time", "-" if cycle is None else f"{cycle.median:.1f} s"),
        ("successes per minute", "-" if per_minute is None else f"{per_minute:.1f}"),
        ("with resets", "-" if with_resets is None else f"{with_resets:.1f}"),
    ]


def _interventions(status: RunStatus, recent: Performance | None) -> str:
    per_minute = recent.interventions_per_minute if recent else None
    return f"{status.interventions}" + ("" if per_minute is None else f" ({per_minute:.1f} per minute)")


def _curve(status: RunStatus, *, width: int) -> Text:
    if status.has_success is False:
        returns = [value for value in status.recent_return if not math.isnan(value)]
        return Text.assemble(("return over time  ", "bright_black"), (sparkline(returns, width=width), "green"))
    history = [value for value in status.recent_success if not math.isnan(value)]
    line = sparkline(history, width=width, low=0.0, high=1.0)
    return Text.assemble(("success over time  ", "bright_black"), (line, "green"))


def _loop(telemetry: Mapping[str, float]) -> Text:
    """Timing of the control loop, in one line."""
    parts = [
        f"late {telemetry['lateness_p50_ms']:.2f} ms, p99 {telemetry['lateness_p99_ms']:.1f}",
        f"overruns {telemetry['overruns']:.0f}",
        f"inference {telemetry['inference_p50_ms']:.0f} ms",
        f"delay {telemetry['delay_p50_ticks']:.0f} ticks",
        f"clipped {telemetry['clipped']:.0f}",
    ]
    if "chunk_jump_p99_share" in telemetry:
        parts.append(f"jump {100 * telemetry['chunk_jump_p99_share']:.0f} %")
    if telemetry.get("starved"):
        parts.append(f"out of actions {telemetry['starved']:.0f}")
    return Text.assemble(("control loop  ", "bright_black"), ", ".join(parts))


class LinesView:
    """For logs and pipes: a line when a phase begins, for each evaluation, and every few seconds."""

    def __init__(self, console: Console, *, has_operator: bool = True) -> None:
        self._console = console
        self._has_operator = has_operator
        self._phase = ""
        self._printed_s = 0.0
        self._known: set[str] = set()
        self._advice: tuple[Advice, ...] = ()

    def __enter__(self) -> LinesView:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, status: RunStatus) -> None:
        now_s = time.monotonic()
        if status.phase != self._phase or now_s - self._printed_s > _LINE_EVERY_S:
            self._phase, self._printed_s = status.phase, now_s
            self._print(_line(status, has_operator=self._has_operator))
        for name in [name for name in status.evaluations if name not in self._known]:
            self._known.add(name)
            self._print(f"{rate_labels(env_steps=status.env_steps).get(name, name)}: {status.evaluations[name]}")
        if status.advice != self._advice:
            self._print_changes(status.advice)
            self._advice = status.advice

    def _print_changes(self, advice: tuple[Advice, ...]) -> None:
        for one in advice:
            if one not in self._advice:
                self._print(f"coach: {one.message}. Try: {one.command}")
        still = {one.name for one in advice}
        for one in self._advice:
            if one.name not in still:
                self._print(f"coach: resolved: {one.message}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def _recent_text(status: RunStatus) -> str:
    latest = f"(last {min(RECENT, status.episodes)})"
    if status.has_success is False:
        return f"return {number(status.recent(status.recent_return))} {latest}"
    recent = status.performance()
    cycle = recent.cycle_time_s if recent else None
    text = f"success {percent(status.recent(status.recent_success))} {latest}"
    return text if cycle is None else f"{text}, cycle time {cycle.median:.1f} s"


def _line(status: RunStatus, *, has_operator: bool) -> str:
    parts = [f"{status.phase}: {min(status.done, status.total)}/{status.total}"]
    left = status.seconds_left
    if left is not None and left > 0:
        parts.append(f"{duration(left)} left")
    if status.episodes and not status.evaluating:
        parts += [
            _recent_text(status),
            *([f"human {percent(status.recent(status.recent_human))}"] if has_operator else []),
            f"{status.updates} updates",
            f"{status.robot_minutes:.1f} robot min",
        ]
    if status.waiting:
        parts.append(f"{sum(status.waiting.values())} waiting for labels")
    return ", ".join(parts)
