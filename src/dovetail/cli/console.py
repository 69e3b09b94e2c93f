"""`dovetail console`: the web console of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.run import RUNS_DIR, RunsDir

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail console first-try")(console)


def console(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run by name or path, running or finished.")],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 lets other machines connect.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port.")] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="File with the token. Default: a new token each time."),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the console in the browser.")
    ] = True,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Watch a run in the browser, take over its arm, and label its episodes. Ctrl-C ends the console, not the run."""
    from dovetail.cli._terminal import console as terminal

    with terminal.status("loading the console"):
        from dovetail.cli import _console

    _console.console(
        run, host=host, port=port, token_file=token_file, open_browser=open_browser, runs_dir=runs_dir
    )
