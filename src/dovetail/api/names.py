"""Names of runs, and their folders."""

from __future__ import annotations

import re
import time
from pathlib import Path

from dovetail.core.errors import RunFolderError, UsageError, did_you_mean
from dovetail.runs.contents import check_run_folder

__all__ = ["RUNS_DIR", "check_name", "find_run", "list_runs", "new_name"]

RUNS_DIR = Path("runs")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CONFIG = "config.yaml"


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name for a run: letters, digits, '.', '_' and '-', starting with a letter or digit"
        )
    return name


def new_name(source: str, runs_dir: Path) -> str:
    """The name of the recipe and the time, with a number if the name is taken."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).stem.replace("_", "-")).strip("-._") or "run"
    base = f"{stem[:60]}-{time.strftime('%Y%m%d-%H%M%S')}"
    name, number = base, 1
    while (runs_dir / name).exists():
        number += 1
        name = f"{base}-{number}"
    return name


def list_runs(runs_dir: Path) -> list[str]:
    if not runs_dir.is_dir():
        return []
    return sorted(path.parent.name for path in runs_dir.glob(f"*/{_CONFIG}"))


def find_run(target: str | Path, runs_dir: Path = RUNS_DIR) -> Path:
    """The folder of a run, by its name or its path."""
    by_path, by_name = Path(target), runs_dir / target
    if len(by_path.parts) == 1 and by_path.name not in (".", "..") and (by_name / _CONFIG).is_file():
        check_run_folder(by_name)
        return by_name
    if (by_path / _CONFIG).is_file():
        check_run_folder(by_path)
        return by_path
    for path in (by_path, by_name):
        if (path / "config.json").is_file():
            raise RunFolderError(
                f"{path} is not a run folder; its config.json looks like published weights. Name a run, and the folder in "
                f"its policy: 'policy={{type: pi0, checkpoint: {path}, ...}}' (docs/vla.md)"
            )
        if path.exists():
            raise RunFolderError(f"{path} is not a run folder: it has no {_CONFIG}")
    hint = did_you_mean(str(target), list_runs(runs_dir)[-20:])
    raise RunFolderError(f"no run named '{target}' in {runs_dir}.{hint}")
