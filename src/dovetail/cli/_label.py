"""`dovetail label`: progress, the result, and the agreement between labelers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dovetail.api.episodes import Episodes, parse_filter
from dovetail.api.labeling import LabelingJob, labeling_job
from dovetail.api.names import find_run
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, number, percent, say
from dovetail.core.errors import UsageError
from dovetail.labels.agreement import Agreement, agreements, verdicts
from dovetail.labels.human import HUMAN
from dovetail.labels.queue import LabelQueue
from dovetail.rewards.relabel import RelabelResult, relabel
from dovetail.runs.folder import RunFolder

__all__ = ["LabelOptions", "label"]

_MOST_SHOWN = 5


class LabelOptions(NamedTuple):
    """The options of the command line."""

    settings: Sequence[str]
    labeler: str | None
    opinion: bool
    again: bool
    dry_run: bool
    agreement: bool
    as_json: bool

    def check(self) -> None:
        if self.agreement and (self.labeler or self.settings):
            raise UsageError("--agreement labels nothing: leave out --labeler and its settings, or --agreement")
        if not self.agreement and not self.labeler:
            raise UsageError("choose a labeler, e.g. --labeler vlm; or only compare labels with --agreement")
        wrong = [text for text in self.settings if "=" not in text]
        if wrong:
            raise UsageError(f"a setting should look like key=value, got '{wrong[0]}'")


def label(run: str, options: LabelOptions, filters: dict[str, Any], *, runs_dir: Path) -> int:
    options.check()
    wanted = parse_filter(**filters)
    folder = RunFolder.open(find_run(run, runs_dir))
    episodes = Episodes(folder.path, wanted)
    chosen = list(episodes)
    facts: dict[str, Any] = {}
    code = 0
    if options.labeler:
        job = labeling_job(
            folder,
            chosen,
            labeler=options.labeler,
            settings=options.settings,
            opinion=options.opinion,
            again=options.again,
        )
        code = _run(job, folder, episodes, options, facts)
    compared = agreements([verdicts(episode.label_history()) for episode in chosen])
    if options.as_json:
        typer.echo(json.dumps({**facts, "agreement": [_agreement_facts(one) for one in compared]}))
    else:
        for problem in episodes.problems:
            console.print(Text(f"damaged: {problem}", style="red"), soft_wrap=True)
        _print_agreement(compared)
    return code


def _run(
    job: LabelingJob, folder: RunFolder, episodes: Episodes, options: LabelOptions, facts: dict[str, Any]
) -> int:
    facts |= {"labeler": job.name, "version": job.version, "num_known": job.num_known, "num_todo": len(job.todo)}
    facts |= {"num_aborted": job.num_aborted}
    aborted = f", {job.num_aborted} were aborted and never train" if job.num_aborted else ""
    others = f"{job.num_known} had its label already{aborted}"
    quiet = options.as_json
    if options.dry_run:
        _say(f"{job.name} {job.version} would label {len(job.todo)} episodes; {others}", quiet=quiet)
        return 0
    with StopFlag() as stop:
        done = _label(job, folder, episodes, stop, quiet=quiet)
    left = len(job.todo) - done.num_labeled - len(done.failures)
    facts |= {"num_labelled": done.num_labeled, "num_changed": done.num_changed, "num_left": left}
    facts |= {"failures": {episode_id: str(error) for episode_id, error in done.failures.items()}}
    changed = f" ({done.num_changed} changed the verdict)" if done.num_changed else ""
    _say(f"{job.name} labeled {done.num_labeled} episodes{changed}; {others}", quiet=quiet)
    for episode_id, error in list(done.failures.items())[:_MOST_SHOWN]:
        _say(f"not labeled: {episode_id}: {error}", quiet=quiet)
    if len(done.failures) > _MOST_SHOWN:
        _say(f"and {len(done.failures) - _MOST_SHOWN} more", quiet=quiet)
    if done.gave_up:
        _say("stopped, because too many episodes failed in a row", quiet=quiet)
    if left:
        _say(f"{left} are left: run the same command again to continue", quiet=quiet)
    problems = list(done.failures.values())
    if len(problems) == len(job.todo) and problems and all(isinstance(one, UsageError) for one in problems):
        raise problems[0]
    return 130 if stop() else 1 if done.failures or left else 0


def _label(
    job: LabelingJob, folder: RunFolder, episodes: Episodes, stop: StopFlag, *, quiet: bool
) -> RelabelResult:
    columns = (TextColumn("labeling"), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("labeling", total=len(job.todo))
        return relabel(
            job.todo,
            labeler=job.labeler,
            log=episodes.log,
            store=episodes.labels,
            queue=LabelQueue(folder.label_queue),
            priority=job.priority,
            on_done=lambda _: progress.advance(task),
            should_stop=stop,
        )


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        say(text)


def _print_agreement(found: Sequence[Agreement]) -> None:
    if not found:
        say("no episode has labels of two labelers yet, so there is nothing to compare")
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    names = ("A", "B", "episodes", "both ✓", "both ✗", "only A ✓", "only B ✓", "agree", "kappa")
    with_person = any(one.second == HUMAN for one in found)
    for name in (*names, *(("precision", "recall") if with_person else ())):
        table.add_column(name, no_wrap=True, justify="left" if len(name) == 1 else "right")
    for one in found:
        counts = (one.num_episodes, one.both_success, one.both_failure, one.only_first, one.only_second)
        cells = [one.first, one.second, *map(str, counts), percent(one.share), number(one.kappa)]
        if with_person:
            against = one.second == HUMAN
            cells += [percent(one.precision), percent(one.recall)] if against else ["", ""]
        table.add_row(*cells)
    console.print(table)
    if any(one.kappa is None for one in found):
        say("kappa -: all episodes have the same verdict, so agreement means nothing")


def _agreement_facts(one: Agreement) -> dict[str, Any]:
    names = ("first", "second", "num_episodes", "both_success", "both_failure", "only_first", "only_second")
    measures = ("share", "kappa", *(("precision", "recall") if one.second == HUMAN else ()))
    return {name: getattr(one, name) for name in (*names, *measures)}
