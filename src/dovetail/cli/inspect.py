"""`recipes`, `plugins`, `config` and `doctor`: what there is, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.run import RUNS_DIR, Arguments, RunsDir

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail recipes")(recipes)
    app.command(epilog="Example: dovetail plugins --kind task")(plugins)
    app.command(epilog="Example: dovetail doctor peg-insertion")(doctor)
    group = typer.Typer(
        help="The config's schema, and configs as they resolve.",
        epilog="Example: dovetail config show peg-insertion",
    )
    group.command("schema", epilog="Example: dovetail config schema --out dovetail.schema.json")(schema)
    group.command("show", epilog="Example: dovetail config show peg-insertion run.seed=3")(show)
    app.add_typer(group, name="config", no_args_is_help=True)


def recipes() -> None:
    """List the recipes that ship with Dovetail."""
    from dovetail.cli import _inspect

    _inspect.recipes()


def plugins(
    kind: Annotated[str | None, typer.Option("--kind", help="Only task, robot, policy, ...")] = None,
) -> None:
    """List every task, robot, policy and so on: built in, or installed."""
    from dovetail.cli import _inspect

    _inspect.plugins(kind)


def schema(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file; default: the terminal.")] = None,
) -> None:
    """A JSON Schema of config files, for completion in an editor."""
    from dovetail.cli import _inspect

    _inspect.schema(out)


def show(arguments: Arguments = None) -> None:
    """A config with every default spelt out, as a run would use it."""
    from dovetail.cli import _inspect

    _inspect.show(tuple(arguments or ()))


def doctor(
    arguments: Arguments = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Check this machine, and with a recipe that its robot, task and policy fit: before anything moves."""
    from dovetail.cli import _doctor

    raise typer.Exit(_doctor.doctor(tuple(arguments or ()), runs_dir=runs_dir))
