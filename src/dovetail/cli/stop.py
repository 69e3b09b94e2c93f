"""`dovetail stop` and `dovetail acknowledge`: stop the arms of a run from any terminal, and release them."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli.episodes import Run
from dovetail.cli.run import RUNS_DIR, RunsDir

__all__ = ["register"]

Arm = Annotated[
    str, typer.Argument(metavar="[ARM]", help="Name of one arm. Default: all arms.", show_default=False)
]


def register(app: typer.Typer) -> None:
    app.command(epilog="Examples: dovetail stop first-try | dovetail stop first-try robot-1")(stop)
    app.command(epilog="Examples: dovetail acknowledge first-try | dovetail acknowledge first-try robot-1")(
        acknowledge
    )


def stop(run: Run, arm: Arm = "", runs_dir: RunsDir = RUNS_DIR) -> None:
    """EMERGENCY STOP of all arms of a running run, or of one arm, from any terminal of the machine that runs it.

    Prints which arms have stopped, and after how many milliseconds. Exit code 1: an arm has not confirmed within a second;
    then press the robot's own emergency stop. The arms stay stopped until `dovetail acknowledge`.
    """
    from dovetail.cli import _run_stop

    raise typer.Exit(_run_stop.stop(run, arm, runs_dir))


def acknowledge(run: Run, arm: Arm = "", runs_dir: RunsDir = RUNS_DIR) -> None:
    """Let arms continue after an emergency stop or a fault. Look at the arm first.

    It releases a stop from any source: the console, a device, `dovetail stop`. The person who pressed it may be somewhere
    else, so any person at the arm may acknowledge it. The console's button and the key c of the keyboard operator do the
    same. A press during the acknowledgement stays in force.
    """
    from dovetail.cli import _run_stop

    raise typer.Exit(_run_stop.acknowledge(run, arm, runs_dir))
