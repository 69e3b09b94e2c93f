"""The table at the end of a loop that improved a served policy."""

from __future__ import annotations

from rich.table import Table

from dovetail.api.improvement import IMPROVEMENT, STEPS, describe
from dovetail.cli._terminal import console
from dovetail.reports.improvement import FIGURE
from dovetail.runs.folder import RunFolder

__all__ = ["show_improvement"]


def show_improvement(folder: RunFolder) -> None:
    done = folder.read_json(IMPROVEMENT)
    if done is None:
        return
    table = Table("step", "result", "minutes", box=None, title_justify="left")
    for name in STEPS:
        if name in done["steps"]:
            table.add_row(name, describe(done["steps"][name]), f"{done['seconds'][name] / 60:.1f}")
    table.add_row("together", "", f"{sum(done['seconds'].values()) / 60:.1f}")
    console.print()
    console.print(table)
    console.print(f"\n{folder.path / IMPROVEMENT}\n{folder.path / FIGURE}")
