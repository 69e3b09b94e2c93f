"""Plots of a trained success classifier: its curves, and its worst mistakes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dovetail.labels.learned.calibration import auc, curve, precision_recall
from dovetail.labels.learned.report import Mistake, frames_of, mistakes
from dovetail.labels.learned.training import Trained

__all__ = ["classifier_curves", "contact_sheet"]

_INK, _QUIET, _GRID = "#1f2a37", "#6b7785", "#e8ebef"
_GOOD, _BAD, _LINE = "#1d7f6e", "#c8553d", "#8a6fae"
_MAX_MISTAKES = 24


def classifier_curves(trained: Trained, *, title: str) -> bytes:
    """A PNG: the ROC curve, precision against recall, and the held-out frames by probability, each with the threshold."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    p, truth = frames_of(trained, trained.held_out)
    found = curve(p, truth)
    predicted = p >= trained.threshold
    precision, recall = precision_recall(predicted, truth)
    false_rate = float((predicted & ~truth).sum() / max(1, int((~truth).sum())))
    style: Any = {"font.family": "DejaVu Sans", "font.size": 11, "text.color": _INK, "axes.edgecolor": _QUIET}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(13, 4.8), dpi=120, facecolor="white")
        canvas: Any = FigureCanvasAgg(figure)
        roc, precision_axes, histogram = figure.subplots(
            1, 3, gridspec_kw={"left": 0.055, "right": 0.985, "top": 0.79, "bottom": 0.13, "wspace": 0.24}
        )
        figure.text(0.055, 0.955, title, fontsize=16, fontweight="bold", va="top")
        roc.plot(found.false_positive_rate, found.recall, color=_LINE, linewidth=2.2, drawstyle="steps-post")
        roc.plot([false_rate], [recall], "o", color=_GOOD, markersize=9)
        _axes(roc, f"ROC, area {auc(p, truth):.3f}", "false positive rate", "recall (true positive rate)")
        precision_axes.plot(found.recall, found.precision, color=_LINE, linewidth=2.2)
        precision_axes.plot([recall], [precision], "o", color=_GOOD, markersize=9)
        note = f"threshold {trained.threshold:.2f}:\nprecision {precision:.3f}\nrecall {recall:.3f}"
        precision_axes.text(0.05, 0.08, note, color=_GOOD, transform=precision_axes.transAxes, va="bottom")
        _axes(precision_axes, "precision and recall", "recall", "precision")
        bins = np.linspace(0.0, 1.0, 41)
        histogram.hist(p[~truth], bins, color=_BAD, alpha=0.75)
        histogram.hist(p[truth], bins, color=_GOOD, alpha=0.75)
        histogram.axvline(trained.threshold, color=_INK, linewidth=1.2, linestyle=(0, (4, 3)))
        histogram.set_yscale("log")
        _axes(histogram, "probability of held-out frames", "", "frames", square=False)
        histogram.text(
            0.3, 0.95, f"no success: {int((~truth).sum())}", color=_BAD, transform=histogram.transAxes, va="top"
        )
        histogram.text(
            0.3, 0.88, f"success: {int(truth.sum())}", color=_GOOD, transform=histogram.transAxes, va="top"
        )
        file = io.BytesIO()
        canvas.print_png(file)
    return file.getvalue()


def _axes(axes: Any, title: str, x: str, y: str, *, square: bool = True) -> None:
    axes.set_title(title, loc="left", fontsize=12, color=_INK)
    axes.set_xlabel(x, color=_QUIET)
    axes.set_ylabel(y, color=_QUIET)
    axes.grid(color=_GRID)
    axes.set_axisbelow(True)
    if square:
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.03)


def contact_sheet(trained: Trained, *, columns: int = 8, side_px: int = 128) -> bytes:
    """A PNG of the frames with the largest errors: predicted probability and truth of each, one row per camera."""
    worst = mistakes(trained, most=_MAX_MISTAKES)
    cameras = list(trained.net.cameras)
    num_wrong = sum(_is_wrong(one, trained) for one in worst)
    wrong = f"{num_wrong} wrong, the worst first; then" if num_wrong else "none wrong;"
    heads = [f"{wrong} those nearest to the threshold"]
    heads.append(f"threshold {trained.threshold:.2f}; cameras: {', '.join(cameras)}; * held out")
    gap, caption, top = 8, 32, 52
    cell_height = len(cameras) * side_px + caption + gap
    num_rows = -(-max(1, len(worst)) // columns)
    sheet = Image.new("RGB", (columns * (side_px + gap) + gap, top + num_rows * cell_height), "white")
    draw = ImageDraw.Draw(sheet)
    large, small = ImageFont.load_default(16), ImageFont.load_default(12)
    for number, text in enumerate(heads):
        draw.text(
            (gap, 6 + 22 * number),
            text,
            fill=_INK if number == 0 else _QUIET,
            font=large if number == 0 else small,
        )
    for number, one in enumerate(worst):
        x, y = gap + (number % columns) * (side_px + gap), top + (number // columns) * cell_height
        for camera in cameras:
            image = Image.fromarray(trained.episodes[one.episode].frames[camera][one.frame])
            sheet.paste(image.resize((side_px, side_px), Image.Resampling.NEAREST), (x, y))
            y += side_px
        color = _BAD if _is_wrong(one, trained) else _GOOD
        lines = (
            f"{100 * one.probability:.0f} %, is {'success' if one.truth else 'none'}{'*' if one.held_out else ''}",
            f"frame {int(trained.episodes[one.episode].rows[one.frame])} of …{trained.episodes[one.episode].id[-6:]}",
        )
        for line, text in enumerate(lines):
            draw.text((x, y + 1 + 14 * line), text, fill=color if line == 0 else _QUIET, font=small)
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _is_wrong(one: Mistake, trained: Trained) -> bool:
    return (one.probability >= trained.threshold) != one.truth
