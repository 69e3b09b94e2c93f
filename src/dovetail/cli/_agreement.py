"""Agreement between labelers, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dovetail.cli._terminal import console, say
from dovetail.labels.agreement import Agreement
from dovetail.labels.human import HUMAN

__all__ = ["agreement_facts", "print_agreement"]


def print_agreement(found: Sequence[Agreement]) -> None:
    if not found:
        say("no episode has been judged by two labelers yet, so there is nothing to compare")
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    names = ("A", "B", "episodes", "both ✓", "both ✗", "only A ✓", "only B ✓", "agree", "kappa")
    with_person = any(one.second == HUMAN for one in found)
    for name in (*names, *(("precision", "recall") if with_person else ())):
        table.add_column(name, no_wrap=True, justify="left" if len(name) == 1 else "right")
    for one in found:
        counts = (one.num_episodes, one.both_success, one.both_failure, one.only_first, one.only_second)
        cells = [one.first, one.second, *map(str, counts), _percent(one.share), _number(one.kappa)]
        if with_person:
            against = one.second == HUMAN
            cells += [_percent(one.precision), _percent(one.recall)] if against else ["", ""]
        table.add_row(*cells)
    console.print(table)
    if any(one.kappa is None for one in found):
        say("kappa -: all episodes got one and the same verdict, so that agreeing shows nothing")


def agreement_facts(found: Sequence[Agreement]) -> list[dict[str, Any]]:
    return [
        {
            "first": one.first,
            "second": one.second,
            "num_episodes": one.num_episodes,
            "both_success": one.both_success,
            "both_failure": one.both_failure,
            "only_first": one.only_first,
            "only_second": one.only_second,
            "share": one.share,
            "kappa": one.kappa,
            **({"precision": one.precision, "recall": one.recall} if one.second == HUMAN else {}),
        }
        for one in found
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
