"""The files of an open-loop check: errors.json, the error by step of the chunk, and chunks next to recorded actions."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.core.disk import write_atomic
from dovetail.core.errors import UsageError
from dovetail.reports._curve_style import FAINT, GRID, INK, LEARNED, QUIET, UNSOLVED, panel_title
from dovetail.runs.open_loop import OpenLoopErrors, Predicted

if TYPE_CHECKING:  # imported when the first plot is drawn, because it takes a second
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["write_open_loop"]

_MAX_EPISODES = 3  # with a plot of their own
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "axes.labelcolor": QUIET,
}


def write_open_loop(
    folder: Path,
    facts: Mapping[str, Any],
    episodes: Sequence[Predicted],
    errors: OpenLoopErrors,
    *,
    title: str,
) -> None:
    """Write all files. `facts` is the content of errors.json."""
    title = _plain_text(title)
    axes = [_plain_text(f"{one['name']} [{one['unit']}]" if one["unit"] else one["name"]) for one in facts["axes"]]
    rate = facts["steps_per_s"]
    files = {
        "errors.json": json.dumps(facts, indent=2, allow_nan=False).encode() + b"\n",
        "error_by_step.png": _error_by_step(errors, axes, title=title),
    }
    chosen = sorted({round(at) for at in np.linspace(0, len(episodes) - 1, _MAX_EPISODES)})
    for number, index in enumerate(chosen, start=1):
        files[f"episode_{number}.png"] = _episode(episodes[index], axes, steps_per_s=rate, title=title)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, _MAX_EPISODES + 1):  # those of an earlier check
            (folder / f"episode_{number}.png").unlink(missing_ok=True)
        for name, data in files.items():
            write_atomic(folder / name, data)
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror}. Choose another folder with --out"
        ) from error


def _error_by_step(errors: OpenLoopErrors, axes: Sequence[str], *, title: str) -> bytes:
    """The relative error of each axis over the steps of the chunk, and the mean of all axes."""
    from matplotlib.ticker import MaxNLocator

    relative = errors.relative_by_step  # [H, A]
    moving = np.isfinite(errors.relative)
    steps = np.arange(1, len(relative) + 1)
    mark = "o" if len(steps) == 1 else ""
    with _Png(width=9.0, height=5.2, title=title) as png:
        panel = png.figure.add_axes((0.08, 0.12, 0.68, 0.72))
        for axis in np.flatnonzero(moving).tolist():
            panel.plot(steps, relative[:, axis], linewidth=1.2, marker=mark, label=axes[axis])
        if moving.any():
            mean = relative[:, moving].mean(axis=1)
            panel.plot(steps, mean, color=INK, linewidth=2.4, marker=mark, label="mean")
            panel.legend(
                loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=9, labelcolor=QUIET
            )
        panel.axhline(1.0, color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)))
        panel.set_ylim(bottom=0.0)
        panel.set_xlabel("step of the chunk")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        _grid(panel)
        panel_title(panel, ("RMSE / spread of the recorded actions; dashed: always the mean action", QUIET))
    return png.data


def _episode(one: Predicted, axes: Sequence[str], *, steps_per_s: float, title: str) -> bytes:
    """A panel per axis: the recorded actions, and each chunk from the step at which it was computed."""
    num_columns = 1 if len(axes) == 1 else 2
    num_rows = -(-len(axes) // num_columns)
    seconds = np.arange(len(one.recorded)) / steps_per_s
    horizon = one.chunks.shape[1]
    with _Png(width=12.0, height=1.2 + 1.5 * num_rows, title=f"{title}: episode {one.episode_id}") as png:
        panels = png.figure.subplots(num_rows, num_columns, squeeze=False, sharex=True)
        png.figure.subplots_adjust(
            left=0.06, right=0.985, top=1 - 0.85 / png.height, bottom=0.55 / png.height, wspace=0.14, hspace=0.6
        )
        for axis, panel in enumerate(panels.flat):
            if axis >= len(axes):
                panel.set_visible(False)
                continue
            panel.plot(seconds, one.recorded[:, axis], color=INK, linewidth=1.6)
            for start, chunk in zip(one.starts, one.chunks, strict=True):
                shown = chunk[: max(0, min(horizon, len(one.recorded) - int(start))), axis]
                times = (start + np.arange(len(shown))) / steps_per_s
                panel.plot(times, shown, color=UNSOLVED, linewidth=1.1, marker="." if len(shown) == 1 else "")
                panel.plot(times[:1], shown[:1], ".", color=LEARNED, markersize=4)
            _grid(panel)
            if axis == 0:
                panel_title(
                    panel, (axes[axis], QUIET), ("recorded", INK), ("chunks", UNSOLVED), ("starts", LEARNED)
                )
            else:
                panel_title(panel, (axes[axis], QUIET))
            panel.margins(x=0.01)
            panel.set_xlabel("s" if axis >= len(axes) - num_columns else "")
    return png.data


def _plain_text(text: str) -> str:
    return text.replace("$", r"\$")  # matplotlib reads formulas between dollars, and refuses invalid ones


def _grid(panel: Axes) -> None:
    panel.grid(color=GRID)
    panel.set_axisbelow(True)


class _Png:
    """A figure with a title, as a PNG in `data` when the block ends."""

    def __init__(self, *, width: float, height: float, title: str) -> None:
        self.height, self._width, self._title = height, width, title
        self.data = b""
        self.figure: Figure

    def __enter__(self) -> _Png:
        import matplotlib
        from matplotlib.figure import Figure

        self._context = matplotlib.rc_context(_STYLE)
        self._context.__enter__()
        self.figure = Figure(figsize=(self._width, self.height), dpi=120, facecolor="white")
        self.figure.text(0.02, 1 - 0.12 / self.height, self._title, fontsize=12, fontweight="bold", va="top")
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        try:
            if kind is None:
                canvas: Any = FigureCanvasAgg(self.figure)
                file = io.BytesIO()
                canvas.print_png(file)
                self.data = file.getvalue()
        finally:
            self._context.__exit__(None, None, None)
