"""`dovetail robot`: look at a robot, move one axis of it, and set up a robot on another computer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.run import Arguments

__all__ = ["register"]

Arm = Annotated[
    str | None, typer.Option("--arm", help="Which arm, if the config has several.", show_default=False)
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Look at a robot, move one axis of it, or set up a robot on another computer.",
        epilog="Example: dovetail robot show my-arm.yaml",
    )
    group.command("show", epilog="Example: dovetail robot show my-arm.yaml --pictures seen")(show)
    group.command("move", epilog="Example: dovetail robot move my-arm.yaml --part arm --axis 3 --by 0.05")(move)
    group.command(
        "spec", epilog="Example: dovetail robot spec 192.168.1.5:7412 --token-file robot.token --out my-arm.yaml"
    )(spec)
    group.command("server-file", epilog="Example: dovetail robot server-file --out dovetail_robot.pyz")(
        server_file
    )
    app.add_typer(group, name="robot", no_args_is_help=True)


def show(
    arguments: Arguments = None,
    arm: Arm = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=0.1,
            help="Stop after this time. Default: at Ctrl-C; without a terminal, after a second.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Observe for a second, print once and exit.")] = False,
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--pictures", help="Folder for the newest picture of each camera, as PNG, and a page with all."
        ),
    ] = None,
) -> None:
    """Show the state of a robot, its cameras, rates and latency. It only observes: the robot does not move."""
    from dovetail.cli import _robot

    _robot.show(
        tuple(arguments or ()), arm=arm, seconds=1.0 if once else seconds, live=not once, pictures=pictures
    )


def move(
    arguments: Arguments = None,
    part: Annotated[str, typer.Option("--part", help="Action part, such as arm.")] = ...,  # type: ignore[assignment]
    axis: Annotated[str, typer.Option("--axis", help="Axis of the part: its number from 1, or its name.")] = ...,  # type: ignore[assignment]
    by: Annotated[float, typer.Option("--by", help="How far, in the unit of the part.")] = ...,  # type: ignore[assignment]
    speed: Annotated[float, typer.Option("--speed", help="Share of the axis' speed limit.")] = 0.1,
    arm: Arm = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """THE ROBOT MOVES: move one axis slowly, behind the safety filter, after a question. Ctrl-C stops it."""
    from dovetail.cli import _robot

    raise typer.Exit(
        _robot.move(tuple(arguments or ()), arm=arm, part=part, axis=axis, by=by, speed=speed, yes=yes)
    )


def spec(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Address of the robot's computer.")],
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="The robot's token. Default: the variable DOVETAIL_ROBOT_TOKEN."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write. Default: print it.")] = None,
) -> None:
    """Ask a robot's computer for its spec, and write it as a config file with a `robot` section."""
    from dovetail.cli import _robot

    _robot.write_spec(address, token_file=token_file, out=out)


def server_file(
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, for the robot's computer.")] = Path(
        "dovetail_robot.pyz"
    ),
) -> None:
    """Write the server for a robot's computer as one file. It needs Python 3.8 or newer and numpy there."""
    from dovetail.cli import _robot

    _robot.write_server_file(out)
