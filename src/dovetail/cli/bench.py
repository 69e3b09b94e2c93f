"""`dovetail bench`: measurements of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail bench sim --quick --json sim.json")(bench)


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Benches to run; `all` runs all. Without names: list them."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A rough answer within a minute.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")] = None,
) -> None:
    """Measure this machine and compare with our aims. A missed aim is shown; it is not an error."""
    from dovetail.cli import _bench

    _bench.bench(names or [], quick=quick, json_file=json_file)
