"""`recipes`, `plugins`, `config` and `doctor`."""

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
        help="Show the settings of a recipe, or the schema of config files.",
        epilog="Example: dovetail config show peg-insertion",
    )
    group.command("schema", epilog="Example: dovetail config schema --out dovetail.schema.json")(schema)
    group.command("show", epilog="Example: dovetail config show peg-insertion run.seed=3")(show)
    app.add_typer(group, name="config", no_args_is_help=True)


def recipes() -> None:
    """List the recipes of Dovetail."""
    from dovetail.cli import _inspect

    _inspect.recipes()


def plugins(
    kind: Annotated[str | None, typer.Option("--kind", help="Only task, robot, policy, ...")] = None,
) -> None:
    """List every task, robot, policy and other plugin, built in or installed."""
    from dovetail.cli import _inspect

    _inspect.plugins(kind)


def schema(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write. Default: print it.")] = None,
) -> None:
    """Print a JSON Schema of config files, for completion in an editor."""
    from dovetail.cli import _inspect

    _inspect.schema(out)


def show(
    arguments: Arguments = None,
    all_settings: Annotated[bool, typer.Option("--all", help="Print every setting, with its default.")] = False,
) -> None:
    """Print the basic settings of a config, each with its meaning. The output is a valid config file."""
    from dovetail.cli import _inspect

    _inspect.show(tuple(arguments or ()), all_settings=all_settings)


def doctor(
    arguments: Arguments = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Check this machine; with a recipe, also check that its robot, task and policy fit. Nothing moves."""
    from dovetail.cli import _doctor

    raise typer.Exit(_doctor.doctor(tuple(arguments or ()), runs_dir=runs_dir))
