"""The plot of `benchmarks.residual`: success without help over robot time, a panel for each task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._residual_runs import METHODS, TASKS, Result

__all__ = ["draw"]

_COLORS = dict(zip(METHODS, ("#1d7f6e", "#4fb3a1", "#8a6fae", "#e0a03c", "#c8553d"), strict=True))
_TITLES = {"peg": "peg, hidden offset of 2 mm", "pick": "pick and place"}


def draw(results: Sequence[Result], path: Path) -> None:
    """A PNG. A thin line is a seed, a thick one the mean of the seeds, which were evaluated after equal steps."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.family": "DejaVu Sans", "font.size": 10}):
        figure = Figure(figsize=(8.4, 3.3), dpi=100, facecolor="white", layout="constrained")
        canvas: Any = FigureCanvasAgg(figure)
        for axes, task in zip(figure.subplots(1, len(TASKS), sharey=True), TASKS, strict=True):
            for method in METHODS:
                curves = [_curve(one) for one in results if (one.task, one.method) == (task, method)]
                for curve in curves:
                    axes.plot(*zip(*curve, strict=True), color=_COLORS[method], linewidth=0.7, alpha=0.6)
                if curves:
                    mean = [
                        tuple(sum(v) / len(v) for v in zip(*p, strict=True)) for p in zip(*curves, strict=False)
                    ]
                    axes.plot(*zip(*mean, strict=True), color=_COLORS[method], linewidth=2.2, label=method)
            axes.axhline(95, color="#6b7785", linewidth=0.8, linestyle=":")
            axes.set_title(_TITLES[task], fontsize=10, loc="left")
            axes.set_xlabel("robot time, s")
            axes.set_ylim(0, 102)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("success without help, %")
        known = {
            line.get_label(): line for axes in figure.axes for line in axes.lines if line.get_label() in METHODS
        }
        figure.axes[-1].legend(
            list(known.values()), [str(name) for name in known], frameon=False, loc="lower right"
        )
        canvas.print_png(str(path))


def _curve(result: Result) -> list[tuple[float, float]]:
    return [(one.robot_s, 100 * one.rate.rate) for one in (result.start, *result.later)]
