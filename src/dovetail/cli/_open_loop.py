"""`dovetail eval RUN --open-loop DATASET`: a progress bar, then the errors per axis and per step of the chunk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dovetail.api.open_loop import OpenLoop, evaluate_open_loop
from dovetail.cli._rename import rename_pairs
from dovetail.cli._session import STOPPED
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, say
from dovetail.core.errors import Interrupted

__all__ = ["show_open_loop"]

_MAX_STEP_ROWS = 8


def show_open_loop(
    target: str, dataset: Path, *, out: Path | None, rename: Sequence[str], quiet: bool, **options: Any
) -> int:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    pairs = rename_pairs(rename)
    try:
        with (
            StopFlag() as stop,
            Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar,
        ):
            task = bar.add_task("loading", total=None)

            def show(what: str, done: float, total: int) -> None:
                text = f"{what}, episode {min(int(done) + 1, total)} of {total}" if total else what
                bar.update(task, completed=done, total=total or None, description=text)

            found = evaluate_open_loop(
                target, dataset, rename=pairs, on_progress=show, should_stop=stop, **options
            )
    except Interrupted:
        say("stopped; nothing was written")
        return STOPPED
    folder = found.save(out)
    if not quiet:
        console.print(_axes_table(found))
        if len(found.errors.num_compared) > 1:
            console.print(_steps_table(found))
    chunks = sum(len(one.starts) for one in found.episodes)
    say(
        f"{found.weights}: error {_number(found.relative)} of the spread of the actions, in {len(found.episodes)} "
        f"episodes and {chunks} chunks"
    )
    say(f"{folder}: errors.json, error_by_step.png and plots of episodes")
    return 0


def _axes_table(found: OpenLoop) -> Table:
    table = Table(title="error per axis", title_justify="left", header_style="bright_black", box=None)
    for name in ("axis", "unit"):
        table.add_column(name)
    for name in ("mean absolute", "RMSE", "spread", "RMSE / spread"):
        table.add_column(name, justify="right")
    errors = found.errors
    columns = (errors.mae, errors.rmse, errors.spread, errors.relative)
    for index, (name, unit) in enumerate(zip(found.axes, found.units, strict=True)):
        table.add_row(name, unit, *(_number(float(column[index])) for column in columns))
    return table


def _steps_table(found: OpenLoop) -> Table:
    """Some steps of the chunk, the first and the last among them: the mean of the relative errors of all axes."""
    table = Table(title="error per step ahead", title_justify="left", header_style="bright_black", box=None)
    for name in ("step", "seconds", "compared", "RMSE / spread, mean", "worst axis"):
        table.add_column(name, justify="right")
    num_compared, relative = found.errors.num_compared, found.errors.relative_by_step
    moving = np.flatnonzero(np.isfinite(found.errors.relative))
    last = int(np.flatnonzero(num_compared)[-1])
    for step in sorted({round(at) for at in np.linspace(0, last, _MAX_STEP_ROWS)}):
        values = relative[step, moving]
        worst = f"{found.axes[moving[values.argmax()]]} {_number(float(values.max()))}" if len(moving) else "-"
        mean = _number(float(values.mean())) if len(moving) else "-"
        table.add_row(str(step + 1), f"{step / found.steps_per_s:.2f}", str(int(num_compared[step])), mean, worst)
    return table


def _number(value: float) -> str:
    return "-" if not np.isfinite(value) else f"{value:.3g}"
