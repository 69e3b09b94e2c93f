"""`dovetail cluster`: this machine joins the others, sees them, and leaves them."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["register"]

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="The file with the `cluster` section, the same on every machine."),
]
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="MACHINE",
        help="Which of cluster.machines this is. Default: by its host name or address.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Machines that work together: each joins by the same file.", no_args_is_help=True)
    group.command(epilog="Example: dovetail cluster join lab.yaml")(join)
    group.command(epilog="Example: dovetail cluster status lab.yaml")(status)
    group.command(epilog="Example: dovetail cluster leave lab.yaml")(leave)
    app.add_typer(group, name="cluster")


def join(
    files: Files,
    name: As = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay, and leave when interrupted.")] = False,
) -> None:
    """Join the cluster, or start it on its head; in the background, until `dovetail cluster leave`.

    A machine whose link was cut comes back by itself.
    """
    from dovetail.cli import _cluster

    _cluster.join(files, name, wait=wait)


def status(
    files: Files,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for other programs.")] = False,
) -> None:
    """Show who is there, who is missing, and what runs. Exit code 1 if a machine of the file is missing."""
    from dovetail.cli import _cluster

    raise typer.Exit(_cluster.status(files, as_json=as_json))


def leave(files: Files, name: As = None) -> None:
    """Leave the cluster: ends what runs on this machine, and on its head the whole of it."""
    from dovetail.cli import _cluster

    _cluster.leave(files, name)
