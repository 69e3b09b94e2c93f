"""Long measurements in pieces: runs of recipes, each in a folder that is named after the commit, so that a bench that
was stopped goes on where it was, and one of another commit starts anew."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.bench.machine import commit
from dovetail.core.errors import FailureError

__all__ = ["Shards"]


class Shards:
    """`shards.report("peg-0", "peg-insertion", ["run.seed=0"])`: the report of that run, which is done at most once."""

    def __init__(self, folder: Path = Path("runs/bench")) -> None:
        self.folder = folder / (commit() or "no-commit")

    def report(self, name: str, recipe: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
        run = self.folder / name
        if not (run / "report.json").exists():
            self._run(run, recipe, overrides)
        report: dict[str, Any] = json.loads((run / "report.json").read_text("utf-8"))
        return report

    def _run(self, run: Path, recipe: str, overrides: Sequence[str]) -> None:
        if (run / "config.yaml").exists():
            what = ["run", "--resume", str(run)]
        else:
            what = ["run", recipe, *overrides, "--runs-dir", str(run.parent), "--name", run.name]
        done = subprocess.run(
            [sys.executable, "-m", "dovetail.cli", *what, "--quiet"], capture_output=True, text=True
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise FailureError(f"{run} failed: {last}")
