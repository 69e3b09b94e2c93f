"""Tables of recipes and plugins; configs and their schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from dovetail.cli._terminal import console, say, split_arguments
from dovetail.config.describe import describe
from dovetail.config.json_schema import json_schema
from dovetail.config.load import config_hash, load
from dovetail.config.load import recipes as shipped_recipes
from dovetail.config.plugins import KINDS, list_plugins
from dovetail.core.disk import write_atomic
from dovetail.core.errors import UsageError, did_you_mean

__all__ = ["plugins", "recipes", "schema", "show"]


def recipes() -> None:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    table.add_column("recipe", style="bold", no_wrap=True)
    table.add_column("task", no_wrap=True)
    table.add_column("what it does")
    for recipe in shipped_recipes():
        table.add_row(recipe.name, recipe.task, recipe.description)
    console.print(table)
    say("\nrun one: dovetail run NAME")


def plugins(kind: str | None) -> None:
    if kind is not None and kind not in KINDS:
        raise UsageError(f"there is no plugin kind '{kind}'.{did_you_mean(kind, KINDS)}")
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    table.add_column("kind", no_wrap=True)
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("from", no_wrap=True)
    table.add_column("what it is")
    for plugin in list_plugins():
        if kind in (None, plugin.kind):
            what = Text(plugin.error, style="red") if plugin.error else Text(plugin.doc)
            table.add_row(plugin.kind, plugin.name, plugin.origin, what)
    console.print(table)
    say("\nto use your own class, write `type: package.module:Class` in a config")


def schema(out: Path | None) -> None:
    text = json.dumps(json_schema(), indent=2) + "\n"
    if out is None:
        console.out(text, end="", highlight=False)
        return
    try:
        write_atomic(out, text.encode())
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error
    say(f"{out}: write `# yaml-language-server: $schema={out}` as the first line of a config")


def show(arguments: Sequence[str], *, all_settings: bool) -> None:
    sources, overrides = split_arguments(arguments)
    config = load(sources, overrides)
    text = describe(config, all_settings=all_settings)
    note = f"hash: {config_hash(config)}" if all_settings else "The basic settings. `--all` shows all of them."
    console.out(f"# {note}\n{text}", end="", highlight=False)
