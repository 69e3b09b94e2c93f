"""Runs of recipes, kept on disk per commit: an interrupted benchmark continues, and a new commit runs everything again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.bench.machine import commit
from dovetail.core.errors import FailureError

__all__ = ["CachedRuns", "run_command"]


class CachedRuns:
    """`runs.report("peg-0", "peg-insertion", ["run.seed=0"])` is the report of that run, which is run at most once."""

    def __init__(self, folder: Path = Path("runs/bench")) -> None:
        self.folder = folder / (commit() or "no-commit")

    def report(self, name: str, recipe: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
        run = self.folder / name
        if not (run / "report.json").exists():
            if (run / "config.yaml").exists():
                arguments = ["--resume", str(run)]
            else:
                arguments = [recipe, *overrides, "--runs-dir", str(run.parent), "--name", run.name]
            run_command(arguments, what=str(run))
        report: dict[str, Any] = json.loads((run / "report.json").read_text("utf-8"))
        return report


def run_command(arguments: Sequence[str], *, what: str) -> None:
    """`dovetail run ARGUMENTS` in a process; `what` names it in the error."""
    command = [sys.executable, "-m", "dovetail.cli", "run", *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise FailureError(f"{what} failed: {last}")
