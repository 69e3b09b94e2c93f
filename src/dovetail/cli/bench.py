"""`dovetail bench`: one runner for every measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail bench sim --quick --json sim.json")(bench)


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Which; none lists them, `all` runs all.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A rough answer within a minute.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")] = None,
) -> None:
    """Measure, and compare with what we aim for. Aims that are missed are shown; they are no error."""
    from dovetail.cli import _bench

    _bench.bench(names or [], quick=quick, json_file=json_file)
