"""Names of runs and where they lie."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from dovetail.core.errors import RunFolderError, UsageError, did_you_mean

__all__ = ["check_name", "find_run", "list_runs", "new_name", "split_arguments"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MARK = "config.yaml"


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Sources and overrides: what holds a `=` is an override."""
    sources = [argument for argument in arguments if "=" not in argument]
    return sources, [argument for argument in arguments if "=" in argument]


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name for a run: letters, digits, '.', '_' and '-', starting with a letter or digit"
        )
    return name


def new_name(sources: Sequence[str], runs_dir: Path) -> str:
    """Recipe and time; a number after it, should two start in the same second."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(sources[0]).stem.replace("_", "-")).strip("-._") or "run"
    base = f"{stem[:60]}-{time.strftime('%Y%m%d-%H%M%S')}"
    name, number = base, 1
    while (runs_dir / name).exists():
        number += 1
        name = f"{base}-{number}"
    return name


def list_runs(runs_dir: Path) -> list[str]:
    if not runs_dir.is_dir():
        return []
    return sorted(path.parent.name for path in runs_dir.glob(f"*/{_MARK}"))


def find_run(text: str, runs_dir: Path) -> Path:
    """A run by its name or its path."""
    by_path, by_name = Path(text), runs_dir / text
    if len(by_path.parts) == 1 and by_path.name not in (".", "..") and (by_name / _MARK).is_file():
        return by_name
    if (by_path / _MARK).is_file():
        return by_path
    for path in (by_path, by_name):
        if path.exists():
            raise RunFolderError(f"{path} is not a run folder: it has no {_MARK}")
    raise RunFolderError(f"no run named '{text}' in {runs_dir}.{did_you_mean(text, list_runs(runs_dir)[-20:])}")
