"""`dovetail episodes export` and `import`: progress and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import Progress

from dovetail.api import datasets
from dovetail.api.episodes import parse_filter
from dovetail.api.names import find_run
from dovetail.cli._rename import rename_pairs
from dovetail.cli._terminal import console, say

__all__ = ["export", "import_dataset"]


def export(
    run: str, filters: Mapping[str, Any], *, out: Path | None, codec: str | None, fps: int | None, runs_dir: Path
) -> None:
    path = find_run(run, runs_dir)
    out = out or path / "lerobot"
    with _bar("exporting") as show:
        report = datasets.export_dataset(
            path, out, parse_filter(**filters), codec=codec, fps=fps, on_progress=show
        )
    for key, why in report.not_exported.items():
        say(f"left out: observation '{key}', {why}")
    known = f", {len(report.already_there)} were there already" if report.already_there else ""
    say(f"{len(report.exported)} episodes exported{known}")
    say(f"{out}: {report.num_episodes} episodes, {report.num_frames} frames, LeRobot v3.0")


def import_dataset(run: str, dataset: Path, *, rename: Sequence[str], **options: Any) -> None:
    with _bar("importing") as show:
        done = datasets.import_dataset(run, dataset, rename=rename_pairs(rename), on_progress=show, **options)
    known = f", {done.num_known} were there already" if done.num_known else ""
    say(f"{done.num_episodes} demonstrations imported ({done.num_steps} steps){known}")
    if done.num_failed:
        say(f"{done.num_failed} of them did not succeed: they are kept, but not trained on")
    if done.demos_set is not None:
        say(f"run.demos={done.demos_set}: the run records no demonstrations itself")
    say(f"learn from them: dovetail run --resume {done.run}")


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
