"""`dovetail cluster`: join a cluster, show it, leave it."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["register"]

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="File with the `cluster` section, the same on every machine."),
]
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="MACHINE",
        help="Name of this machine in cluster.machines. Default: found by host name or address.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Connect several machines. Every machine joins with the same file.", no_args_is_help=True
    )
    group.command(epilog="Example: dovetail cluster join lab.yaml")(join)
    group.command(epilog="Example: dovetail cluster status lab.yaml")(status)
    group.command(epilog="Example: dovetail cluster leave lab.yaml")(leave)
    app.add_typer(group, name="cluster")


def join(
    files: Files,
    name: As = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay in the foreground; Ctrl-C leaves the cluster.")
    ] = False,
) -> None:
    """Join the cluster, or start it on the head, in the background until `dovetail cluster leave`.

    A machine that loses its connection joins again by itself.
    """
    from dovetail.cli import _cluster

    _cluster.join(files, name, wait=wait)


def status(
    files: Files,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show connected machines, missing machines and runs. Exit code 1 if a machine of the file is missing."""
    from dovetail.cli import _cluster

    raise typer.Exit(_cluster.status(files, as_json=as_json))


def leave(files: Files, name: As = None) -> None:
    """Leave the cluster. This ends its roles on this machine; on the head, it ends the cluster."""
    from dovetail.cli import _cluster

    _cluster.leave(files, name)
