"""`dovetail train reward-classifier`: progress, a table of scores and the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dovetail.api.names import check_name, find_run
from dovetail.cli._terminal import console, say, split_arguments
from dovetail.config.load import load_settings
from dovetail.core.errors import UsageError
from dovetail.labels.learned.training import TrainingConfig
from dovetail.rewards.classifier_training import Progress as OnProgress
from dovetail.rewards.classifier_training import SavedClassifier, train_classifier
from dovetail.runs.folder import RunFolder

__all__ = ["train_reward_classifier"]


def train_reward_classifier(
    arguments: Sequence[str], *, name: str | None, out: Path | None, runs_dir: Path, seed: int | None, quiet: bool
) -> int:
    torch.set_num_threads(1)
    sources, overrides = split_arguments(arguments)
    if not sources:
        raise UsageError(
            "name the runs to learn from: dovetail train reward-classifier RUN [RUN...]; their episodes need camera images "
            "(robot.images)"
        )
    if seed is not None:
        overrides.append(f"seed={seed}")
    config = load_settings(TrainingConfig, overrides)
    runs = [find_run(source, runs_dir) for source in sources]
    if out is None:
        task = RunFolder.open(runs[-1]).config.task
        out = Path("classifiers") / check_name(name or (task.type if task else runs[-1].name))
    elif name is not None:
        raise UsageError("use --name or --out, not both")
    if out.exists():
        raise UsageError(f"{out} exists already: choose another --name or --out, or remove it")
    with _bar(quiet=quiet) as progress:
        made = train_classifier(runs, config, out=out, on_progress=progress)
    _show(made, out)
    return 0


@contextmanager
def _bar(*, quiet: bool) -> Iterator[OnProgress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        tasks: dict[str, int] = {}

        def update(what: str, done: int, total: int) -> None:
            phase = what.partition(",")[0]
            if phase not in tasks:
                tasks[phase] = bar.add_task(what, total=total)
                if not quiet and not console.is_terminal:
                    say(f"{phase}: {total}")
            bar.update(tasks[phase], description=what, completed=done)  # type: ignore[arg-type]

        yield update


def _show(made: SavedClassifier, out: Path) -> None:
    trained = made.trained
    table = Table(box=None, header_style="bright_black", pad_edge=False)
    for heading in ("", "", "number", "true", "precision", "recall", "AUC", "mistakes"):
        table.add_column(heading, justify="left" if not heading else "right")
    for one in made.scores:
        table.add_row(
            one.what,
            "held out" if one.held_out else "trained on",
            str(one.num),
            str(one.num_true),
            f"{one.precision:.3f}",
            f"{one.recall:.3f}",
            f"{one.auc:.3f}",
            str(one.errors),
        )
    console.print(table)
    say(
        f"threshold for success {trained.threshold:.3f}; {trained.config.consecutive} frames in a row end an episode; "
        f"{trained.num_updates} updates"
    )
    best = next(one for one in made.scores if one.what == "frames" and one.held_out)
    if best.precision < trained.config.precision:
        say(
            f"warning: no threshold reaches the precision of {trained.config.precision:g}. Look at mistakes.png and collect "
            "more such episodes"
        )
    say(f"classifier {made.version} in {out}, with curves.png and mistakes.png")
    say(f"use it: labels=[{{type: classifier, folder: {out}}}]")
