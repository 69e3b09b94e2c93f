"""`dovetail emulate`: an emulated robot or camera on this machine, to try a driver without hardware."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail emulate franka port=5000")(emulate)


def emulate(
    name: Annotated[str, typer.Argument(help="The emulator; `list` lists them.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the emulator.", show_default=False),
    ] = None,
) -> None:
    """Emulate a robot or a camera on loopback until Ctrl-C. It speaks the wire protocol of the original."""
    import time

    from pydantic import ValidationError

    from dovetail.cli._stop import StopFlag
    from dovetail.config.load import plain_overrides
    from dovetail.core.errors import UsageError
    from dovetail.emulators.emulator import EMULATORS, READY, find_emulator

    if name == "list":
        typer.echo("\n".join(sorted(EMULATORS)))
        return
    emulator = find_emulator(name)
    try:
        config = emulator.Config.from_mapping(plain_overrides(settings or ()))
    except ValidationError as error:
        first = error.errors()[0]
        valid = ", ".join(emulator.Config.model_fields)
        raise UsageError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}. Settings of {name}: {valid}"
        ) from error
    with StopFlag() as stop, emulator(config) as running:
        for line in running.describe():
            typer.echo(line)
        typer.echo(READY)
        while not stop():
            time.sleep(0.2)
