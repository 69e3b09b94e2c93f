"""Acknowledgements of stopped arms, as files in the run's folder. They work for every arm, with and without a console."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

__all__ = ["acknowledge", "take_acknowledged"]

_FOLDER = ".acknowledged"


def acknowledge(run: Path, robot: str) -> Path:
    """Acknowledge a stopped arm; return the file, which the run deletes when it has read it."""
    file = run / _FOLDER / quote(robot, safe="")
    file.parent.mkdir(exist_ok=True)
    file.touch()
    return file


def take_acknowledged(run: Path) -> list[str]:
    """Names of the acknowledged arms; each is returned once."""
    files = sorted((run / _FOLDER).glob("*"))
    for file in files:
        file.unlink(missing_ok=True)
    return [unquote(file.name) for file in files]
