"""Labelling in bulk, with progress, and the comparison at its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from dovetail.cli._agreement import agreement_facts, print_agreement
from dovetail.cli._episode_filter import Found, Selection, parse_filter
from dovetail.cli._runs import find_run
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import console, say
from dovetail.config.load import load_saved
from dovetail.config.plugins import locate, resolve
from dovetail.config.schema import PluginSection
from dovetail.core.contracts import Labeler
from dovetail.core.errors import UsageError
from dovetail.core.types import Outcome
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.labels.agreement import agreements, verdicts
from dovetail.labels.panel import OPINION
from dovetail.labels.queue import LabelQueue
from dovetail.labels.store import LabelStore
from dovetail.rewards.relabel import Relabelled, has_label, relabel
from dovetail.runs.assembly.build import build_labeler
from dovetail.runs.folder import RunFolder

__all__ = ["Request", "label"]

_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    settings: tuple[str, ...]
    labeler: str | None
    opinion: bool
    again: bool
    dry_run: bool
    agreement: bool
    as_json: bool

    def check(self) -> None:
        if self.agreement and (self.labeler or self.settings):
            raise UsageError("--agreement labels nothing: leave --labeler and its settings out, or leave it out")
        if not self.agreement and not self.labeler:
            raise UsageError("say who labels with --labeler, e.g. --labeler vlm; or only compare with --agreement")
        wrong = [text for text in self.settings if "=" not in text]
        if wrong:
            raise UsageError(f"a setting should look like key=value, got '{wrong[0]}'")


def label(run: str, request: Request, filters: dict[str, Any], *, runs_dir: Path) -> int:
    request.check()
    wanted = parse_filter(**filters)
    folder = RunFolder.open(find_run(run, runs_dir))
    log, store = EpisodeLog(folder.episodes), LabelStore(folder.labels)
    selection = Selection(log, store, wanted)
    found = list(selection)
    facts: dict[str, Any] = {}
    code = 0
    if request.labeler:
        job = _Job(folder, request, store, found)
        code = job.run(log, facts)
    compared = agreements([verdicts(store.history(one.info.id)) for one in found])
    if request.as_json:
        typer.echo(json.dumps({**facts, "agreement": agreement_facts(compared)}))
    else:
        for problem in selection.problems:
            console.print(Text(f"damaged: {problem}", style="red"), soft_wrap=True)
        print_agreement(compared)
    return code


class _Job:
    """One labeler on the chosen episodes."""

    def __init__(self, folder: RunFolder, request: Request, store: LabelStore, found: Sequence[Found]) -> None:
        self._request = request
        self._store = store
        self._queue = LabelQueue(folder.label_queue)
        self._priority = OPINION if request.opinion else 0
        section = _section(folder, request)
        self._labeler = _build(section, request, folder)
        self._name: str = getattr(self._labeler, "name", section.type)
        self._chosen = [one.info.id for one in found if not _is_aborted(one.info)]
        self._num_aborted = len(found) - len(self._chosen)

    def run(self, log: EpisodeLog, facts: dict[str, Any]) -> int:
        version = str(self._labeler.version)  # type: ignore[attr-defined]
        todo = [one for one in self._chosen if self._request.again or not self._has_label(one, version)]
        num_known = len(self._chosen) - len(todo)
        facts |= {"labeler": self._name, "version": version, "num_known": num_known, "num_todo": len(todo)}
        facts |= {"num_aborted": self._num_aborted}
        if self._request.dry_run:
            self._say(f"{self._name} {version} would label {len(todo)} episodes; {self._aside(num_known)}")
            return 0
        with StopFlag() as stop:
            done = self._label(todo, log, stop)
        left = len(todo) - done.num_labelled - len(done.failures)
        facts |= {"num_labelled": done.num_labelled, "num_changed": done.num_changed, "num_left": left}
        facts |= {"failures": {episode_id: str(error) for episode_id, error in done.failures.items()}}
        self._tell(done, num_known=num_known, left=left)
        problems = list(done.failures.values())
        if len(problems) == len(todo) and problems and all(isinstance(one, UsageError) for one in problems):
            raise problems[0]  # no episode of them all could be labelled: wrong use
        return 130 if stop() else 1 if done.failures or left else 0

    def _has_label(self, episode_id: str, version: str) -> bool:
        return has_label(self._store, episode_id, labeler=self._name, version=version, priority=self._priority)

    def _label(self, todo: Sequence[str], log: EpisodeLog, stop: StopFlag) -> Relabelled:
        columns = (TextColumn("labelling"), MofNCompleteColumn(), TimeRemainingColumn())
        shown = console.is_terminal and not self._request.as_json
        with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
            task = progress.add_task("labelling", total=len(todo))
            return relabel(
                todo,
                labeler=self._labeler,
                log=log,
                store=self._store,
                queue=self._queue,
                priority=self._priority,
                on_done=lambda _: progress.advance(task),
                should_stop=stop,
            )

    def _tell(self, done: Relabelled, *, num_known: int, left: int) -> None:
        changed = f" ({done.num_changed} otherwise than what counted)" if done.num_changed else ""
        self._say(f"{self._name} labelled {done.num_labelled} episodes{changed}; {self._aside(num_known)}")
        for episode_id, error in list(done.failures.items())[:_MOST_SHOWN]:
            self._say(f"not labelled: {episode_id}: {error}")
        if len(done.failures) > _MOST_SHOWN:
            self._say(f"and {len(done.failures) - _MOST_SHOWN} more")
        if done.gave_up:
            self._say("gave up, because too many failed in a row")
        if left:
            self._say(f"{left} are left: the same command goes on with them")

    def _aside(self, num_known: int) -> str:
        aborted = f", {self._num_aborted} were aborted and never train" if self._num_aborted else ""
        return f"{num_known} had its label already{aborted}"

    def _say(self, text: str) -> None:
        if not self._request.as_json:
            say(text)


def _is_aborted(info: EpisodeInfo) -> bool:
    """Such an episode gets no labels."""
    return Outcome.ABORTED in (info.outcome, info.judgement) or not info.num_steps


def _section(folder: RunFolder, request: Request) -> PluginSection:
    """The labeler with its settings: the run's own, where it has this one, and what the command line says over them."""
    name = locate("labeler", request.labeler or "").name
    ours = [place for place, section in enumerate(folder.config.labels) if section.type == name]
    place = ours[0] if ours else 0
    first = [] if ours else [f"labels=[{{type: {json.dumps(name)}}}]"]
    overrides = [*first, *(f"labels.{place}.{setting}" for setting in request.settings)]
    return load_saved(folder.path, overrides, quiet=True).config.labels[place]


def _build(section: PluginSection, request: Request, folder: RunFolder) -> Labeler:
    """With what it keeps in the run, such as answers that were given before; not where a folder is named."""
    if getattr(resolve("labeler", section.type), "asks_person", False):
        raise UsageError("a person labels in the browser: `dovetail console RUN`")
    named = any(setting.startswith("folder=") for setting in request.settings)
    labeler = build_labeler(section, None if named else folder.labels)
    if request.again and hasattr(labeler, "ask_again"):
        labeler.ask_again()
    if not hasattr(labeler, "version"):
        raise UsageError(f"labeler '{section.type}' has no `version` to tell its labels by")
    return labeler
