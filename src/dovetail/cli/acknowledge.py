"""`acknowledge`: an arm that had stopped goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli.episodes import Run
from dovetail.cli.run import RUNS_DIR, RunsDir

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail acknowledge first-try robot-1")(acknowledge)


def acknowledge(
    run: Run,
    robot: Annotated[
        str | None, typer.Argument(metavar="ROBOT", help="An arm by its name; none: all that have stopped.")
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Say that somebody has seen to an arm that had stopped: it goes on.

    For runs with `runtime=ray`, on the machine of the run's folder. An emergency stop is taken back where it was given.
    """
    from dovetail.cli import _acknowledge

    _acknowledge.acknowledge(run, robot, runs_dir=runs_dir)
