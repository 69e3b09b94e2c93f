"""Somebody has seen to an arm that had stopped: said in the run's folder, where whoever drives the run looks. So it can be
said of every arm, also of one that no console is attached to, and without a console."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

__all__ = ["acknowledge", "take_acknowledged"]

_FOLDER = ".acknowledged"


def acknowledge(run: Path, robot: str) -> Path:
    """The note, which is gone when it was taken."""
    note = run / _FOLDER / quote(robot, safe="")
    note.parent.mkdir(exist_ok=True)
    note.touch()
    return note


def take_acknowledged(run: Path) -> list[str]:
    """Names of the arms; each is given once."""
    notes = sorted((run / _FOLDER).glob("*"))
    for note in notes:
        note.unlink(missing_ok=True)
    return [unquote(note.name) for note in notes]
