"""Runs benches, shows their rows when they are measured, and writes them as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from dovetail.bench.machine import commit, machine_facts
from dovetail.bench.registry import BENCHES, Entry, load_bench
from dovetail.bench.rows import Row
from dovetail.cli._terminal import console, say
from dovetail.core.disk import write_atomic
from dovetail.core.errors import UsageError, did_you_mean

__all__ = ["bench"]


def bench(
    names: Sequence[str],
    *,
    quick: bool,
    json_file: Path | None,
    benches: Mapping[str, Entry] = BENCHES,
    command: str = "dovetail bench",
) -> None:
    """Run the named benches; list them all if there are no names. `all` and a common prefix name several."""
    if not names:
        _list(benches, command)
        return
    chosen = [name for given in names for name in _expand(given.replace("-", "_"), benches)]
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise UsageError(f"cannot write {json_file}: its folder does not exist")
    found: list[dict[str, Any]] = []
    for name in chosen:
        rows: list[Row] = []
        with console.status(f"measuring {name}") as status:
            for row in load_bench(benches[name])(quick=quick):
                rows.append(row)
                status.update(f"measuring {name}: {row.name} {_value(row)} {row.unit}")
                if not console.is_terminal:
                    say(f"{name}: {row.name} {_value(row)} {row.unit}")
        console.print(_table(name, rows))
        found += [{"bench": name, **row.to_json()} for row in rows]
        if json_file is not None:  # after each bench: an interrupted `all` keeps the rows it has
            facts = {"commit": commit(), "machine": machine_facts(), "quick": quick, "rows": found}
            try:
                write_atomic(json_file, json.dumps(facts, indent=2).encode() + b"\n")
            except OSError as error:
                raise UsageError(f"cannot write {json_file}: {error.strerror}") from error


def _expand(name: str, benches: Mapping[str, Entry]) -> list[str]:
    """`all` is every bench, `learn` is every bench whose name starts with `learn_`."""
    if name in benches:
        return [name]
    found = list(benches) if name == "all" else [one for one in benches if one.startswith(f"{name}_")]
    if not found:
        raise UsageError(f"there is no bench '{name}'.{did_you_mean(name, [*benches, 'all'])}")
    return found


def _list(benches: Mapping[str, Entry], command: str) -> None:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    table.add_column("bench", style="bold")
    table.add_column("what it measures")
    for name, entry in benches.items():
        table.add_row(name, entry.summary)
    console.print(table)
    say(f"\nrun one: {command} NAME [--quick]")


def _table(name: str, rows: Sequence[Row]) -> Table:
    table = Table(title=name, title_justify="left", title_style="bold", header_style="bright_black", box=None)
    for column in ("", "value", "unit", "against", "ratio", "aim", ""):
        table.add_column(column, justify="right" if column in ("value", "ratio", "aim") else "left")
    for row in rows:
        table.add_row(
            row.name,
            _value(row),
            row.unit,
            row.baseline or "",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            _aim(row),
            Text("") if row.met is None else Text("✓", "green") if row.met else Text("✗", "red"),
        )
    return table


def _aim(row: Row) -> str:
    if row.aim is None:
        return ""
    upwards = row.aim != 0 and row.met == (row.value >= row.aim)  # an aim of 0 is a limit for a count
    return f"{'≥' if upwards else '≤'} {row.aim:,g}"


def _value(row: Row) -> str:
    if row.interval is None:
        return _number(row.value)
    low, high = map(_number, row.interval)
    return f"{_number(row.value)} [{low}, {high}]"


def _number(value: float) -> str:
    if value != value or abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"
