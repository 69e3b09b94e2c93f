"""`recipes`, `plugins`, `config` and `doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from dovetail.cli._terminal import console, say, split_arguments
from dovetail.cli.run import RUNS_DIR, Arguments, ConsolePort, Gym, RunsDir
from dovetail.core.disk import write_atomic
from dovetail.core.errors import UsageError, did_you_mean

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
    from dovetail.config import load

    table = _table("recipe", "task", "what it does")
    for recipe in load.recipes():
        table.add_row(Text(recipe.name, "bold"), recipe.task, recipe.description)
    console.print(table)
    say("\nrun one: dovetail run NAME")


def plugins(
    kind: Annotated[str | None, typer.Option("--kind", help="Only task, robot, policy, ...")] = None,
) -> None:
    """List every task, robot, policy and other plugin, built in or installed."""
    from dovetail.config.plugins import KINDS, list_plugins

    if kind is not None and kind not in KINDS:
        raise UsageError(f"there is no plugin kind '{kind}'.{did_you_mean(kind, KINDS)}")
    table = _table("kind", "name", "from", "what it is")
    for plugin in list_plugins():
        if kind in (None, plugin.kind):
            what = Text(plugin.error, style="red") if plugin.error else Text(plugin.doc)
            table.add_row(plugin.kind, Text(plugin.name, "bold"), plugin.origin, what)
    console.print(table)
    say("\nto use your own class, write `type: package.module:Class` in a config")


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for name in names:
        table.add_column(name, no_wrap=name != names[-1])
    return table


def schema(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write. Default: print it.")] = None,
) -> None:
    """Print a JSON Schema of config files, for completion in an editor."""
    from dovetail.config.json_schema import json_schema

    text = json.dumps(json_schema(), indent=2) + "\n"
    if out is None:
        console.out(text, end="", highlight=False)
        return
    try:
        write_atomic(out, text.encode())
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error
    say(f"{out}: write `# yaml-language-server: $schema={out}` as the first line of a config")


def show(
    arguments: Arguments = None,
    gym: Gym = None,
    all_settings: Annotated[bool, typer.Option("--all", help="Print every setting, with its default.")] = False,
) -> None:
    """Print the basic settings of a config, each with its meaning. The output is a valid config file."""
    from dovetail.cli._gym import gym_sources
    from dovetail.config.describe import describe
    from dovetail.config.load import config_hash, load

    sources, overrides = split_arguments(arguments or ())
    config = load(gym_sources(gym, sources, overrides), overrides)
    note = f"hash: {config_hash(config)}" if all_settings else "The basic settings. `--all` shows all of them."
    text = describe(config, all_settings=all_settings)
    console.out(f"# {note}\n{text}", end="", highlight=False)


def doctor(
    arguments: Arguments = None,
    gym: Gym = None,
    runs_dir: RunsDir = RUNS_DIR,
    console_port: ConsolePort = None,
) -> None:
    """Check this machine; with a recipe or a run, also everything that it needs. Lists all problems. Nothing moves."""
    from dovetail.cli import _doctor

    raise typer.Exit(_doctor.doctor(tuple(arguments or ()), gym=gym, runs_dir=runs_dir, console_port=console_port))
