"""The plot of the learning curve. Labels are beside the curves, so it needs no legend."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core.stats import Rate

if TYPE_CHECKING:  # imported when the first plot is drawn, because it takes a second
    from matplotlib.axes import Axes

__all__ = ["WINDOW", "CurveEpisode", "learning_curve", "running_mean"]

WINDOW = 20  # episodes

_INK, _QUIET, _FAINT, _GRID = "#1f2a37", "#6b7785", "#aab4bf", "#e8ebef"
_LEARNED, _BEFORE = "#1d7f6e", "#8a6fae"
_HELPED, _HELPED_TEXT, _UNSOLVED = "#e0a03c", "#b0760f", "#c8553d"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveEpisode:
    """One online episode in the plot."""

    end_minutes: float  # robot time from the first online step to this episode's end
    success: bool
    human_share: float  # share of its steps by an operator


def running_mean(values: Sequence[float], window: int = WINDOW) -> NDArray[np.float64]:
    """At each index, the mean of the last `window` values, or of all if there are fewer."""
    sums = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def learning_curve(
    episodes: Sequence[CurveEpisode],
    *,
    title: str,
    subtitle: str,
    untrained: Rate | None,
    before: Rate | None,
    after: Rate | None,
    scheduled: Sequence[tuple[float, Rate]] = (),
) -> bytes:
    """A PNG: success over robot time, every episode as a dot, and the share of steps by an operator."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 11,
        "axes.edgecolor": _FAINT,
        "xtick.color": _QUIET,
        "ytick.color": _QUIET,
        "text.color": _INK,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(12, 7), dpi=150, facecolor="white")
        canvas: Any = FigureCanvasAgg(figure)
        curve, dots, operator = figure.subplots(
            3,
            1,
            sharex=True,
            gridspec_kw={
                "height_ratios": (5.4, 1.15, 0.9),
                "hspace": 0.30,
                "left": 0.095,
                "right": 0.805,
                "top": 0.83,
                "bottom": 0.085,
            },
        )
        figure.text(0.095, 0.965, title, fontsize=19, fontweight="bold", va="top")
        figure.text(0.095, 0.905, subtitle, fontsize=11.5, color=_QUIET, va="top")
        _draw_curve(curve, episodes)
        _draw_rates(curve, untrained=untrained, before=before, after=after)
        _draw_scheduled(curve, scheduled)
        _draw_dots(dots, episodes)
        _draw_operator(operator, episodes)
        last = max([e.end_minutes for e in episodes[-1:]] + [minutes for minutes, _ in scheduled], default=1.0)
        operator.set_xlim(0.0, last * 1.015)
        operator.set_xlabel("robot minutes of online learning", color=_QUIET, labelpad=6)
        file = io.BytesIO()
        canvas.print_png(file)
    return file.getvalue()


def _draw_curve(axes: Axes, episodes: Sequence[CurveEpisode]) -> None:
    _title(
        axes,
        (f"share of the last {WINDOW} episodes solved", _QUIET),
        ("without help", _LEARNED),
        ("and", _QUIET),
        ("with help", _HELPED_TEXT),
    )
    axes.set_ylim(-0.02, 1.035)
    axes.set_yticks((0.0, 0.25, 0.5, 0.75, 1.0), ("0 %", "25 %", "50 %", "75 %", "100 %"))
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.tick_params(labelbottom=False)
    if not episodes:
        axes.text(0.5, 0.375, "no online episodes yet", transform=axes.transAxes, ha="center", color=_QUIET)
        return
    minutes = np.array([episode.end_minutes for episode in episodes])
    solved = running_mean([float(episode.success) for episode in episodes])
    autonomous = running_mean([float(episode.success and not episode.human_share) for episode in episodes])
    width = 2.6 if len(episodes) <= 300 else 1.8
    # until the window is full, the mean is noisy and is drawn faintly
    full = min(WINDOW, len(episodes)) - 1
    for part, strength in ((slice(0, full + 1), 0.4), (slice(full, None), 1.0)):
        x, upper, lower = minutes[part], solved[part], autonomous[part]
        axes.fill_between(x, lower, upper, color=_HELPED, alpha=0.22 * strength, linewidth=0, zorder=3)
        axes.plot(x, upper, color=_HELPED, alpha=strength, linewidth=0.5 * width, zorder=4)
        axes.plot(x, lower, color=_LEARNED, alpha=strength, linewidth=width, solid_capstyle="butt", zorder=5)
    axes.plot(minutes[-1], autonomous[-1], "o", color=_LEARNED, markersize=6, clip_on=False, zorder=6)


def _draw_rates(axes: Axes, *, untrained: Rate | None, before: Rate | None, after: Rate | None) -> None:
    """Evaluations without help: a line for the rate, a band for its 95 % interval, text at the right edge."""
    labels = []
    for name, rate, color in (
        ("untrained", untrained, _FAINT),
        ("cloning", before, _BEFORE),
        ("after learning", after, _LEARNED),
    ):
        if rate is None:
            continue
        if name != "untrained":
            axes.axhspan(rate.low, rate.high, color=color, alpha=0.13, linewidth=0, zorder=1)
        axes.axhline(rate.rate, color=color, linewidth=1.2, linestyle=(0, (5, 3)), zorder=2)
        labels.append((rate, name, _QUIET if name == "untrained" else color))
    labels.sort(key=lambda label: label[0].rate)
    lowest = 0.0
    for index, (rate, name, color) in enumerate(labels):
        space_above = 0.125 * (len(labels) - 1 - index)
        y = min(max(rate.rate, lowest), 1.0 - space_above)
        lowest = y + 0.125
        across = axes.get_yaxis_transform()
        percent = f"{100 * rate.rate:.0f} %"
        interval = f"{100 * rate.low:.0f} to {100 * rate.high:.0f} %, {rate.episodes} episodes"
        axes.text(1.012, y, f"{name}  {percent}", transform=across, color=color, va="center", fontweight="bold")
        axes.text(1.012, y - 0.054, interval, transform=across, color=_QUIET, va="center", fontsize=9.5)


def _draw_scheduled(axes: Axes, scheduled: Sequence[tuple[float, Rate]]) -> None:
    """Scheduled evaluations without help: points with their 95 % intervals."""
    if not scheduled:
        return
    minutes = [at for at, _ in scheduled]
    rates = np.array([rate.rate for _, rate in scheduled])
    below = np.maximum(rates - [rate.low for _, rate in scheduled], 0.0)
    above = np.maximum([rate.high for _, rate in scheduled] - rates, 0.0)
    axes.errorbar(
        minutes, rates, yerr=(below, above), fmt="D", color=_INK, markersize=5, elinewidth=1.2, capsize=3, zorder=7
    )
    axes.annotate(
        "evaluated",
        (minutes[0], float(rates[0])),
        xytext=(7, -4),
        textcoords="offset points",
        color=_INK,
        fontsize=10,
        va="top",
        zorder=7,
    )


def _draw_dots(axes: Axes, episodes: Sequence[CurveEpisode]) -> None:
    _title(axes, ("every episode", _QUIET))
    rows = (
        ("without help", _LEARNED, _LEARNED),
        ("with help", _HELPED, _HELPED_TEXT),
        ("not solved", _UNSOLVED, _UNSOLVED),
    )
    axes.set_ylim(2.6, -0.6)
    axes.set_yticks(range(3), [name for name, _, _ in rows])
    axes.tick_params(labelbottom=False, bottom=False)
    axes.spines["bottom"].set_visible(False)
    for (_, _, color), label in zip(rows, axes.get_yticklabels(), strict=True):
        label.set_color(color)
    kinds = [2 if not e.success else int(e.human_share > 0) for e in episodes]
    size = 26 if len(episodes) <= 150 else 14 if len(episodes) <= 500 else 6
    for kind, (_, color, _) in enumerate(rows):
        minutes = [e.end_minutes for e, its in zip(episodes, kinds, strict=True) if its == kind]
        axes.scatter(minutes, [kind] * len(minutes), s=size, color=color, alpha=0.8, linewidth=0, clip_on=False)
        share = f"{len(minutes)}" if episodes else ""
        axes.text(1.012, kind, share, transform=axes.get_yaxis_transform(), color=_QUIET, va="center", fontsize=10)


def _draw_operator(axes: Axes, episodes: Sequence[CurveEpisode]) -> None:
    _title(axes, (f"share of steps by the operator, over the last {WINDOW} episodes", _QUIET))
    shares = running_mean([episode.human_share for episode in episodes])
    top = max(0.1, float(np.ceil(10 * shares.max(initial=0.0)) / 10))
    axes.set_ylim(0.0, top)
    axes.set_yticks((0.0, top), ("0 %", f"{100 * top:.0f} %"))
    if episodes:
        minutes = [episode.end_minutes for episode in episodes]
        axes.fill_between(minutes, shares, color=_HELPED, alpha=0.55, linewidth=0)
        axes.text(
            1.012,
            float(shares[-1]),
            f"{100 * shares[-1]:.0f} % at the end",
            transform=axes.get_yaxis_transform(),
            color=_QUIET,
            va="bottom" if shares[-1] < 0.2 * top else "center",
            fontsize=10,
        )


def _title(axes: Axes, *parts: tuple[str, str]) -> None:
    """The title of a panel, above its left corner; each part has the color of its curve. Only the x axis has a line."""
    from matplotlib.offsetbox import AnnotationBbox, HPacker, TextArea

    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, pad=6)
    pieces = [
        TextArea(
            text,
            textprops={"color": color, "fontsize": 10.5, "fontweight": "normal" if color == _QUIET else "bold"},
        )
        for text, color in parts
    ]
    line = HPacker(children=list(pieces), align="baseline", pad=0, sep=4)
    box = AnnotationBbox(
        line,
        (0.0, 1.0),
        xycoords="axes fraction",
        xybox=(0.0, 6.0),
        boxcoords="offset points",
        box_alignment=(0.0, 0.0),
        frameon=False,
        pad=0.0,
        annotation_clip=False,
    )
    axes.add_artist(box)
