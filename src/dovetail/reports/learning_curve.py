"""The plot of the learning curve. Labels are beside the curves, so it needs no legend."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.core.figures import Mean, Performance, short
from dovetail.core.stats import Rate
from dovetail.reports._curve_panels import draw_cycle_times, draw_dots, draw_operator
from dovetail.reports._curve_style import (
    BEFORE,
    FAINT,
    GRID,
    HELPED,
    HELPED_TEXT,
    INK,
    LEARNED,
    QUIET,
    WINDOW,
    CurveEpisode,
    last_episodes,
    panel_title,
    running_mean,
)

if TYPE_CHECKING:  # imported when the first plot is drawn, because it takes a second
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CurveEpisode", "learning_curve"]

_EVALUATIONS = (
    ("untrained", "untrained", FAINT),
    ("cloning", "cloning", BEFORE),
    ("after", "after learning", LEARNED),
)


def learning_curve(
    episodes: Sequence[CurveEpisode],
    *,
    title: str,
    subtitle: str,
    evaluations: Mapping[str, Performance],
    scheduled: Sequence[tuple[float, Performance]] = (),
    has_operator: bool = True,
) -> bytes:
    """A PNG: success over robot time, every episode as a dot, cycle time, and the share of steps by an operator.

    Where the environment has no success, the return takes its place. `evaluations` are by name: untrained, cloning, after.
    Without an operator, nothing is said about help.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 11,
        "axes.edgecolor": FAINT,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "text.color": INK,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(12, 8), dpi=150, facecolor="white")
        canvas: Any = FigureCanvasAgg(figure)
        figure.text(0.095, 0.97, title, fontsize=19, fontweight="bold", va="top")
        figure.text(0.095, 0.917, subtitle, fontsize=11.5, color=QUIET, va="top")
        has_success = _has_success(episodes, [*evaluations.values(), *(made for _, made in scheduled)])
        heights = (5.0, 1.15, 1.3) if has_success else (7.4,)
        curve, *others = panels = _panels(figure, (*heights, 0.9) if has_operator else heights)
        if has_success:
            _draw_success(curve, episodes, has_operator=has_operator)
            draw_dots(others[0], episodes, has_operator=has_operator)
            draw_cycle_times(others[1], episodes, evaluations)
        else:
            _draw_returns(curve, episodes, _means(evaluations, scheduled))
        _draw_evaluations(curve, evaluations)
        _draw_scheduled(curve, scheduled)
        if has_operator:
            draw_operator(panels[-1], episodes)
        last = max([e.end_minutes for e in episodes[-1:]] + [minutes for minutes, _ in scheduled], default=1.0)
        panels[-1].tick_params(labelbottom=True)
        panels[-1].set_xlim(0.0, last * 1.015)
        panels[-1].set_xlabel("robot minutes of online learning", color=QUIET, labelpad=6)
        file = io.BytesIO()
        canvas.print_png(file)
    return file.getvalue()


def _panels(figure: Figure, heights: Sequence[float]) -> list[Axes]:
    grid: Any = {
        "height_ratios": heights,
        "hspace": 0.36 if len(heights) > 2 else 0.16,
        "left": 0.095,
        "right": 0.79,
        "top": 0.85,
        "bottom": 0.075,
    }
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw=grid)
    return list(axes[:, 0])


def _has_success(episodes: Sequence[CurveEpisode], made: Sequence[Performance]) -> bool:
    """Whether any figure has a success rate. A run without figures is drawn with the axis for success."""
    judged = [one.success is not None for one in made] + [e.score.success is not None for e in episodes]
    return any(judged) or not judged


# ---- the first panel: success or return


def _draw_success(axes: Axes, episodes: Sequence[CurveEpisode], *, has_operator: bool) -> None:
    help_or_not = (("without help", LEARNED), ("and", QUIET), ("with help", HELPED_TEXT)) if has_operator else ()
    panel_title(axes, (f"share of {last_episodes(len(episodes))} episodes solved", QUIET), *help_or_not)
    axes.set_ylim(-0.02, 1.035)
    axes.set_yticks((0.0, 0.25, 0.5, 0.75, 1.0), ("0 %", "25 %", "50 %", "75 %", "100 %"))
    _prepare(axes, empty=not episodes)
    if not episodes:
        return
    minutes = np.array([episode.end_minutes for episode in episodes])
    solved = running_mean([float(bool(episode.score.success)) for episode in episodes])
    autonomous = running_mean([float(bool(e.score.success) and not e.human_share) for e in episodes])
    width = 2.6 if len(episodes) <= 300 else 1.8
    # until the window is full, the mean is noisy and is drawn faintly
    full = min(WINDOW, len(episodes)) - 1
    for part, strength in ((slice(0, full + 1), 0.4), (slice(full, None), 1.0)):
        x, upper, lower = minutes[part], solved[part], autonomous[part]
        axes.fill_between(x, lower, upper, color=HELPED, alpha=0.22 * strength, linewidth=0, zorder=3)
        axes.plot(x, upper, color=HELPED, alpha=strength, linewidth=0.5 * width, zorder=4)
        axes.plot(x, lower, color=LEARNED, alpha=strength, linewidth=width, solid_capstyle="butt", zorder=5)
    axes.plot(minutes[-1], autonomous[-1], "o", color=LEARNED, markersize=6, clip_on=False, zorder=6)


def _draw_returns(axes: Axes, episodes: Sequence[CurveEpisode], evaluated: Sequence[Mean]) -> None:
    """Where there is no success: the return of each episode, and the mean of the last ones."""
    known = [e for e in episodes if e.score.total_reward is not None]
    mean = f"the mean of {last_episodes(len(known))}"
    panel_title(axes, ("return of each episode, and", QUIET), (mean, LEARNED))
    _prepare(axes, empty=not known)
    minutes = np.array([e.end_minutes for e in known])
    returns = np.array([e.score.total_reward for e in known], np.float64)
    values = [*returns, *(mean.low for mean in evaluated), *(mean.high for mean in evaluated)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    margin = 0.05 * ((high - low) or max(1.0, abs(high)))
    axes.set_ylim(low - margin, high + margin)
    if not known:
        return
    helped = np.array([e.human_share > 0 for e in known], np.bool_)
    size = 26 if len(known) <= 150 else 14 if len(known) <= 500 else 6
    for mask, color in ((~helped, LEARNED), (helped, HELPED)):
        axes.scatter(minutes[mask], returns[mask], s=size, color=color, alpha=0.35, linewidth=0, zorder=3)
    axes.plot(minutes, running_mean(list(returns)), color=LEARNED, linewidth=2.4, zorder=5)


def _prepare(axes: Axes, *, empty: bool) -> None:
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.tick_params(labelbottom=False)
    if empty:
        axes.text(0.5, 0.375, "no online episodes yet", transform=axes.transAxes, ha="center", color=QUIET)


# ---- evaluations


def _draw_evaluations(axes: Axes, evaluations: Mapping[str, Performance]) -> None:
    """Evaluations without help: a line for the figure, a band for its 95 % interval, text at the right edge."""
    bottom, top = axes.get_ylim()
    labels: list[tuple[float, str, Performance, str]] = []
    for key, name, color in _EVALUATIONS:
        made = evaluations.get(key)
        if made is None or (main := made.main) is None:
            continue
        if key != "untrained":
            axes.axhspan(main.low, main.high, color=color, alpha=0.13, linewidth=0, zorder=1)
        axes.axhline(_value(main), color=color, linewidth=1.2, linestyle=(0, (5, 3)), zorder=2)
        height = (_value(main) - bottom) / (top - bottom)
        labels.append((height, name, made, QUIET if key == "untrained" else color))
    labels.sort(key=lambda label: label[0])
    lowest = 0.08
    for index, (height, name, made, color) in enumerate(labels):
        space_above = 0.19 * (len(labels) - 1 - index)
        y = min(max(height, lowest), 0.97 - space_above)
        lowest = y + 0.19
        _draw_label(axes, y, name, made, color)


def _draw_label(axes: Axes, y: float, name: str, made: Performance, color: str) -> None:
    main = made.main
    assert main is not None
    if isinstance(main, Rate):
        figure = f"{100 * main.rate:.0f} %"
        interval = f"{100 * main.low:.0f} to {100 * main.high:.0f} %, {main.episodes} episodes"
    else:
        figure = short(main.mean)
        interval = f"{short(main.low)} to {short(main.high)}, {main.count} episodes"
    lines = [interval]
    if made.per_minute is not None:
        with_resets = made.per_minute_with_resets
        resets = "" if with_resets is None else f", {with_resets:.1f} with resets"
        lines.append(f"{made.per_minute:.1f} per min{resets}")
    place: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center"}
    axes.annotate(f"{name}  {figure}", (1.012, y), xytext=(0, 0), color=color, fontweight="bold", **place)
    for number, line in enumerate(lines, start=1):
        axes.annotate(line, (1.012, y), xytext=(0, -14 * number), color=QUIET, fontsize=9.5, **place)


def _draw_scheduled(axes: Axes, scheduled: Sequence[tuple[float, Performance]]) -> None:
    """Scheduled evaluations without help: points with their 95 % intervals."""
    known = [(minutes, main) for minutes, made in scheduled if (main := made.main) is not None]
    if not known:
        return
    minutes = [at for at, _ in known]
    values = np.array([_value(main) for _, main in known])
    below = np.maximum(values - [main.low for _, main in known], 0.0)
    above = np.maximum([main.high for _, main in known] - values, 0.0)
    axes.errorbar(
        minutes, values, yerr=(below, above), fmt="D", color=INK, markersize=5, elinewidth=1.2, capsize=3, zorder=7
    )
    axes.annotate(
        "evaluated",
        (minutes[0], float(values[0])),
        xytext=(7, -4),
        textcoords="offset points",
        color=INK,
        fontsize=10,
        va="top",
        zorder=7,
    )


def _means(evaluations: Mapping[str, Performance], scheduled: Sequence[tuple[float, Performance]]) -> list[Mean]:
    made = [*evaluations.values(), *(one for _, one in scheduled)]
    return [one.returns for one in made if one.returns is not None]


def _value(main: Rate | Mean) -> float:
    return main.rate if isinstance(main, Rate) else main.mean
