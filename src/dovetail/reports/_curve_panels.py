"""The panels of the learning curve below the first one: every episode, cycle time, and the operator's share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dovetail.core.figures import Performance
from dovetail.reports._curve_style import (
    BEFORE,
    FAINT,
    GRID,
    HELPED,
    HELPED_TEXT,
    LEARNED,
    QUIET,
    UNSOLVED,
    WINDOW,
    CurveEpisode,
    last_episodes,
    panel_title,
    running_mean,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_cycle_times", "draw_dots", "draw_operator"]


def draw_dots(axes: Axes, episodes: Sequence[CurveEpisode], *, has_operator: bool) -> None:
    panel_title(axes, ("every episode", QUIET))
    rows = [("solved", LEARNED, LEARNED), ("not solved", UNSOLVED, UNSOLVED)]
    if has_operator:
        rows[:1] = [("without help", LEARNED, LEARNED), ("with help", HELPED, HELPED_TEXT)]
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.tick_params(labelbottom=False, bottom=False)
    axes.spines["bottom"].set_visible(False)
    for (_, _, color), label in zip(rows, axes.get_yticklabels(), strict=True):
        label.set_color(color)
    kinds = [len(rows) - 1 if not e.score.success else int(e.human_share > 0) for e in episodes]
    size = 26 if len(episodes) <= 150 else 14 if len(episodes) <= 500 else 6
    for kind, (_, color, _) in enumerate(rows):
        minutes = [e.end_minutes for e, its in zip(episodes, kinds, strict=True) if its == kind]
        axes.scatter(minutes, [kind] * len(minutes), s=size, color=color, alpha=0.8, linewidth=0, clip_on=False)
        share = f"{len(minutes)}" if episodes else ""
        axes.text(1.012, kind, share, transform=axes.get_yaxis_transform(), color=QUIET, va="center", fontsize=10)


def draw_cycle_times(axes: Axes, episodes: Sequence[CurveEpisode], evaluations: Mapping[str, Performance]) -> None:
    """Time to success of each solved episode, their running median, and the medians of the evaluations."""
    solved = [e for e in episodes if e.score.success]
    panel_title(axes, (f"cycle time: seconds to success, median of {last_episodes(len(solved))}", QUIET))
    axes.tick_params(labelbottom=False, bottom=False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    minutes = np.array([e.end_minutes for e in solved])
    seconds = np.array([e.score.duration_s for e in solved])
    helped = np.array([e.human_share > 0 for e in solved], np.bool_)
    size = 10 if len(solved) <= 300 else 4
    for mask, color in ((~helped, LEARNED), (helped, HELPED)):
        axes.scatter(minutes[mask], seconds[mask], s=size, color=color, alpha=0.35, linewidth=0)
    if len(solved):
        median = [float(np.median(seconds[max(0, end - WINDOW) : end])) for end in range(1, len(seconds) + 1)]
        axes.plot(minutes, median, color=LEARNED, linewidth=1.8)
    known = {name: made.cycle_time_s for name, made in evaluations.items() if made.cycle_time_s is not None}
    top = max([*seconds, *(cycle.high for cycle in known.values())], default=1.0)
    axes.set_ylim(0.0, 1.1 * top)
    axes.set_yticks((0.0, top / 2, top), ("0 s", f"{top / 2:.1f} s", f"{top:.1f} s"))
    rows = []
    for name, color in (("untrained", FAINT), ("cloning", BEFORE), ("after", LEARNED)):
        if (cycle := known.get(name)) is not None:
            axes.axhline(cycle.median, color=color, linewidth=1.0, linestyle=(0, (5, 3)))
            rows.append((f"{name} {cycle.median:.1f} s ({cycle.low:.1f} to {cycle.high:.1f})", color))
    for number, (text, color) in enumerate(rows):
        y = 0.5 + 0.34 * ((len(rows) - 1) / 2 - number)
        axes.text(
            1.012,
            y,
            text,
            transform=axes.transAxes,
            color=QUIET if color == FAINT else color,
            va="center",
            fontsize=9.5,
        )


def draw_operator(axes: Axes, episodes: Sequence[CurveEpisode]) -> None:
    window = last_episodes(len(episodes))
    panel_title(axes, (f"share of steps by the operator, over {window} episodes", QUIET))
    shares = running_mean([episode.human_share for episode in episodes])
    top = max(0.1, float(np.ceil(10 * shares.max(initial=0.0)) / 10))
    axes.set_ylim(0.0, top)
    axes.set_yticks((0.0, top), ("0 %", f"{100 * top:.0f} %"))
    if episodes:
        minutes = [episode.end_minutes for episode in episodes]
        axes.fill_between(minutes, shares, color=HELPED, alpha=0.55, linewidth=0)
        axes.text(
            1.012,
            float(shares[-1]),
            f"{100 * shares[-1]:.0f} % at the end\n{_per_minute(episodes):.1f} interventions per min",
            transform=axes.get_yaxis_transform(),
            color=QUIET,
            va="bottom" if shares[-1] < 0.2 * top else "center",
            fontsize=10,
        )


def _per_minute(episodes: Sequence[CurveEpisode]) -> float:
    """Interventions per robot minute over the last episodes."""
    latest = [episode.score for episode in episodes[-WINDOW:]]
    return 60.0 * sum(one.interventions for one in latest) / max(sum(one.duration_s for one in latest), 1e-9)
