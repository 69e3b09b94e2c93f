"""Digests of a run's final weights, episodes and report figures, without names and times.

`python -m support.run_digests RUN...` prints them as JSON. It reads only files, so it works with folders of any version.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from safetensors.numpy import load_file

TIMES = {"wall_s", "phase_s", "config_hash"}


def run_digests(run: Path) -> dict[str, Any]:
    return {"weights": weight_digests(run), "episodes": episode_digests(run), "report": _report(run)}


def weight_digests(run: Path) -> list[str]:
    """One digest per array of the newest version, sorted, so that renamed components compare equal."""
    newest = json.loads(max((run / "weights").glob("v*.json")).read_text())
    files = [run / "weights" / "components" / f"{name}.safetensors" for name in newest["components"].values()]
    return sorted(_digest(array) for file in files for array in load_file(file).values())


def episode_digests(run: Path) -> list[str]:
    """One digest per episode, in the order of the log, over all its columns but time stamps."""
    manifests = [json.loads(path.read_text()) for path in (run / "episodes").glob("*/manifest.json")]
    return [_episode(run / "episodes" / info["id"]) for info in sorted(manifests, key=lambda info: info["number"])]


def _episode(folder: Path) -> str:
    columns = []
    for name in ("steps.parquet", "last.parquet"):
        table = parquet.read_table(folder / name)
        for column in table.column_names:
            if "time" not in column:
                columns.append(_digest(np.asarray(table.column(column).to_pylist())))
    return hashlib.sha256("".join(sorted(columns)).encode()).hexdigest()[:16]


def _report(run: Path) -> dict[str, float]:
    numbers: dict[str, float] = {}

    def collect(at: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key not in TIMES:
                    collect(f"{at}/{key}", inner)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                collect(f"{at}/{index}", inner)
        elif isinstance(value, int | float):
            numbers[at] = value

    collect("", json.loads((run / "report.json").read_text()))
    return numbers


def _digest(array: np.ndarray) -> str:
    array = np.ascontiguousarray(array)
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    print(json.dumps({Path(run).name: run_digests(Path(run)) for run in sys.argv[1:]}, indent=1))  # noqa: T201
