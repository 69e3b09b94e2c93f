"""`dovetail label`: rewards for what was recorded, in bulk, and how far those who gave them agree."""

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
            help="The labeler's settings; what is not said is as in the run's own config.",
            show_default=False,
        ),
    ] = None,
    labeler: Annotated[
        str | None, typer.Option("--labeler", help="vlm, classifier, outcome, ...", show_default=False)
    ] = None,
    opinion: Annotated[
        bool, typer.Option("--opinion", help="To compare only: what it says is kept, and trains nothing.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Also what this labeler has labelled already.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be labelled, and label nothing.")
    ] = False,
    agreement: Annotated[bool, typer.Option("--agreement", help="Label nothing, only compare.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for other programs.")] = False,
    runs_dir: RunsDir = RUNS_DIR,
    filters: Filters,
) -> None:
    """Label the episodes of a run, and show how far its labelers agree.

    Several at once, also while the run goes on. Ctrl-C loses nothing: the same command goes on where it stopped. Exit code 1
    if some could not be labelled.
    """
    from dovetail.cli import _label

    request = _label.Request(
        settings=tuple(settings or ()),
        labeler=labeler,
        opinion=opinion,
        again=again,
        dry_run=dry_run,
        agreement=agreement,
        as_json=as_json,
    )
    raise typer.Exit(_label.label(run, request, filters, runs_dir=runs_dir))
