"""The option `--rename` of commands that read datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from dovetail.core.errors import UsageError

__all__ = ["IgnoreNames", "Rename", "rename_pairs"]

Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="THEIRS=OURS,...",
        help="Names of the dataset and of the robot: 'observation.images.top=front,observation.state[0:7]=joint_pos'. "
        "May be repeated.",
    ),
]
IgnoreNames = Annotated[
    bool, typer.Option("--ignore-names", help="Ignore the names of joints; only their order counts.")
]


def rename_pairs(texts: Sequence[str]) -> dict[str, str]:
    """Read `THEIRS=OURS,THEIRS=OURS`; the option may be repeated."""
    pairs: dict[str, str] = {}
    for text in (part.strip() for joined in texts for part in joined.split(",")):
        old, _, new = (part.strip() for part in text.partition("="))
        if not old or not new:
            raise UsageError(f"--rename should look like THEIRS=OURS or THEIRS=OURS,THEIRS=OURS, got '{text}'")
        pairs[old] = new
    return pairs
