"""`dovetail acknowledge`: let an arm continue after a fault."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from dovetail.cli.episodes import Run
from dovetail.cli.run import RUNS_DIR, RunsDir

__all__ = ["register"]

_TIMEOUT_S, _POLL_S = 10.0, 0.05


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail acknowledge first-try robot-1")(acknowledge)


def acknowledge(
    run: Run,
    robot: Annotated[
        str | None, typer.Argument(metavar="ROBOT", help="Name of the arm. Default: all arms that have stopped.")
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Acknowledge a fault after you have fixed it: the arm continues.

    For runs with `runtime=ray`, on the machine that has the run's folder. Release an emergency stop where it was pressed.
    """
    from dovetail.api.names import find_run
    from dovetail.core.errors import UsageError, did_you_mean
    from dovetail.runs.acknowledgements import acknowledge as write_note
    from dovetail.runs.folder import RunFolder

    folder = RunFolder.open(find_run(run, runs_dir))
    if folder.config.runtime != "ray":
        raise UsageError(f"{folder.path.name} has runtime=inline: acknowledge its arm in its console")
    names = tuple(folder.config.cluster.named_robots())
    if robot is not None and robot not in names:
        raise UsageError(f"{folder.path.name} has no robot '{robot}'.{did_you_mean(robot, names)}")
    notes = [write_note(folder.path, name) for name in (names if robot is None else [robot])]
    deadline_s = time.monotonic() + _TIMEOUT_S
    while any(note.exists() for note in notes):  # the run deletes a note when it has read it
        if time.monotonic() > deadline_s:
            for note in notes:
                note.unlink(missing_ok=True)
            raise UsageError(f"no answer within {_TIMEOUT_S:.0f} s: {folder.path.name} is not running")
        time.sleep(_POLL_S)
    typer.echo(f"acknowledged: {robot or 'all arms that have stopped'} may continue")
