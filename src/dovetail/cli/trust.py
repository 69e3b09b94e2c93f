"""`dovetail trust`: let the config of a run folder from elsewhere name code and servers."""

from __future__ import annotations

import typer

from dovetail.cli.episodes import Run
from dovetail.cli.run import RUNS_DIR, RunsDir

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail trust downloads/peg-run")(trust)


def trust(run: Run, runs_dir: RunsDir = RUNS_DIR) -> None:
    """Trust a run folder that was not made on this machine: its config may name your plugins and servers.

    Read its config.yaml first. Runs that you start yourself are trusted.
    """
    from dovetail.api.names import find_run
    from dovetail.config.trust import mark_trusted

    path = find_run(run, runs_dir)
    mark_trusted(path)
    typer.echo(f"{path} is trusted by you on this machine, as long as its config does not change")
