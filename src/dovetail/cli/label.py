"""`dovetail label`: label recorded episodes in bulk, and compare labelers."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from dovetail.cli.episodes import Filters, Run, filtered
from dovetail.cli.run import RUNS_DIR, RunsDir

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail label first-try --labeler vlm url=http://127.0.0.1:8000/v1")(label)


@partial(filtered, without=("labeler",))
def label(
    *,
    run: Run,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings of the labeler. Others are as in the run's config.",
            show_default=False,
        ),
    ] = None,
    labeler: Annotated[
        str | None, typer.Option("--labeler", help="vlm, classifier, outcome, ...", show_default=False)
    ] = None,
    opinion: Annotated[
        bool, typer.Option("--opinion", help="Store the labels for comparison only; they never train.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Also label episodes that this labeler has labeled already.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be labeled, and label nothing.")
    ] = False,
    agreement: Annotated[bool, typer.Option("--agreement", help="Only compare labels.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    runs_dir: RunsDir = RUNS_DIR,
    filters: Filters,
) -> None:
    """Label the episodes of a run, and show how often its labelers agree.

    Works while the run is running. After Ctrl-C, the same command continues. Exit code 1 if an episode could not be
    labeled.
    """
    from dovetail.cli import _label

    given = _label.LabelOptions(settings or (), labeler, opinion, again, dry_run, agreement, as_json)
    raise typer.Exit(_label.label(run, given, filters, runs_dir=runs_dir))
