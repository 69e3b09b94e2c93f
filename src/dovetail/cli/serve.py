"""`serve`: a policy for robots whose own machine has nothing to think with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.run import RUNS_DIR, RunsDir

__all__ = ["register"]

PORT = 7411


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail serve first-try --host 0.0.0.0")(serve)


def serve(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CHECKPOINT", help="A run, RUN/checkpoints/last or RUN/weights/v00000009.json."
        ),
    ],
    version: Annotated[
        int | None, typer.Option("--version", help="Weights of this version, and no others.", show_default=False)
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; other machines reach 0.0.0.0 and not the default.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = PORT,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", help="What robots must know. Default: RUN/serve.token, made if it is not there."
        ),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only address and token.")] = False,
) -> None:
    """Answer robots that use policy `remote`; a run's newest weights are followed while it learns.

    Ctrl-C ends it. Robots need the token, and a copy of it travels to them by other ways than this.
    """
    from dovetail.cli._terminal import console

    with console.status("loading torch"):
        from dovetail.cli import _serve

    _serve.serve(
        target,
        version=version,
        host=host,
        port=port,
        token_file=token_file,
        runs_dir=runs_dir,
        quiet=quiet,
    )
