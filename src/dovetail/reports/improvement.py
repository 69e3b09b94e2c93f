"""The plot of a loop that improved a served policy: success after each step, with 95 % intervals."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.core.disk import write_atomic
from dovetail.core.stats import Rate
from dovetail.reports._curve_style import BEFORE, GRID, HELPED, INK, LEARNED, QUIET, UNSOLVED

__all__ = ["FIGURE", "LABELS", "draw_improvement"]

FIGURE = "improvement.png"
LABELS: Mapping[str, tuple[str, str]] = {  # step: what is measured, color
    "base": ("base", BEFORE),
    "residual": ("base and residual", HELPED),
    "distilled": ("distilled, alone", LEARNED),
    "bad candidate": ("bad candidate", UNSOLVED),
    "deployed": ("deployed, served", LEARNED),
}


def draw_improvement(steps: Mapping[str, Mapping[str, Any]], path: Path, *, title: str) -> None:
    """Write the plot of `improvement.json`. A step without episodes is left out."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rates = {
        name: Rate(successes=steps[name]["successes"], episodes=steps[name]["episodes"])
        for name in LABELS
        if "successes" in steps.get(name, {})
    }
    style: Any = {"font.family": "DejaVu Sans", "font.size": 10.5, "text.color": INK, "axes.edgecolor": QUIET}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7.6, 3.4), dpi=110, facecolor="white")
        canvas: Any = FigureCanvasAgg(figure)
        axes = figure.add_axes((0.08, 0.16, 0.9, 0.66))
        figure.text(0.08, 0.95, title, fontsize=13, fontweight="bold", va="top")
        for place, (name, rate) in enumerate(rates.items()):
            label, color = LABELS[name]
            percent = 100 * rate.rate
            axes.bar(place, percent, color=color, width=0.55, alpha=0.85)
            axes.plot([place, place], [100 * rate.low, 100 * rate.high], color=INK, linewidth=1.6)
            axes.annotate(f"{percent:.0f} %", (place + 0.06, percent), (2, 3), textcoords="offset points")
            axes.annotate(
                label,
                (place, 0),
                (0, -8),
                textcoords="offset points",
                ha="center",
                va="top",
                annotation_clip=False,
            )
        axes.set_ylim(0, 112)
        axes.set_yticks([0, 25, 50, 75, 100])
        axes.set_xticks([])
        axes.grid(axis="y", color=GRID)
        axes.set_axisbelow(True)
        axes.set_ylabel("success, %")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        data = io.BytesIO()
        canvas.print_png(data)
    write_atomic(path, data.getvalue())
