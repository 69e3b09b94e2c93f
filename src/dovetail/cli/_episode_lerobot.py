"""Episodes of a run to a LeRobot dataset, and demonstrations from one into a run."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from dovetail.cli._episode_filter import Selection, parse_filter
from dovetail.cli._runs import check_name, find_run
from dovetail.cli._terminal import console, say
from dovetail.config.load import load
from dovetail.config.schema import RunConfig
from dovetail.core.errors import DovetailError, RunFolderError, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.lerobot.export import ExportReport
from dovetail.episodes.lerobot.export import export as write_dataset
from dovetail.episodes.lerobot.read import Dataset, open_dataset
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.store import LabelStore
from dovetail.runs.assembly.build import build_station
from dovetail.runs.experience import image_codec
from dovetail.runs.folder import RunFolder

__all__ = ["export", "import_dataset"]


def export(
    run: str, filters: Mapping[str, Any], *, out: Path | None, codec: str | None, fps: int | None, runs_dir: Path
) -> None:
    path = find_run(run, runs_dir)
    out = out or path / "lerobot"
    log, labels = EpisodeLog(path / "episodes"), LabelStore(path / "labels")
    wanted = parse_filter(**filters)
    ids = None
    if not wanted.is_empty:
        selection = Selection(log, labels, dataclasses.replace(wanted, limit=None))
        ids = [
            found.info.id
            for found in selection
            if (found.info.purpose is not Purpose.EVAL or wanted.purpose is Purpose.EVAL)
            and (found.info.outcome is not Outcome.ABORTED or wanted.outcome is Outcome.ABORTED)
            and not (found.label is not None and found.label.discard)
        ]
        ids = ids[-wanted.limit :] if wanted.limit else ids  # the newest of those that are exported at all
        if selection.problems:
            raise UsageError(selection.problems[0])
        if not ids:
            raise UsageError(f"no episode of {path} is one of those: `dovetail episodes ls {path}` lists them")
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("exporting", total=None)

        def done(_: str, count: int, total: int) -> None:
            progress.update(task, completed=count, total=total)

        report = write_dataset(log, out, ids=ids, labels=labels.current, codec=codec, fps=fps, on_episode=done)
    _say_exported(report, out)


def _say_exported(report: ExportReport, out: Path) -> None:
    for key, why in report.not_exported.items():
        say(f"left out: observation '{key}', {why}")
    there = f", {len(report.already_there)} were there already" if report.already_there else ""
    say(f"{len(report.exported)} episodes exported{there}")
    say(f"{out}: {report.num_episodes} episodes, {report.num_frames} frames, LeRobot v3.0")


def import_dataset(
    run: str, dataset: Path, *, recipe: str | None, rename: Sequence[str], ignore_names: bool, runs_dir: Path
) -> None:
    existing = _existing(run, recipe, runs_dir)
    config = existing.config if existing else load([str(recipe)])
    robot, task = _who_and_what(config)
    source = open_dataset(dataset, robot=robot, task=task, rename=_pairs(rename), ignore_names=ignore_names)
    theirs = source.episode(0).task if len(source) else task
    if theirs != task:
        raise UsageError(f"{dataset} is of task '{theirs}', but run '{run}' is of task '{task}'")
    folder = existing or RunFolder.create(runs_dir / check_name(run), config)  # now that all fits
    folder.lock()
    log, labels = EpisodeLog(folder.episodes, images=image_codec(config.images)), LabelStore(folder.labels)
    try:
        _take_in(source, log, labels, folder=folder, task=task)
    except DovetailError:
        if existing is None and not log.ids():
            shutil.rmtree(folder.path)  # ours, made a moment ago: a refusal leaves nothing behind
        raise


def _take_in(source: Dataset, log: EpisodeLog, labels: LabelStore, *, folder: RunFolder, task: str) -> None:
    num_new = num_steps = num_failed = 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for index in progress.track(range(len(source)), description="importing"):
            if source.episode_id(index) in log:
                continue
            # prior data, whatever it was where it comes from: it is not this run's own practice
            episode = dataclasses.replace(source.episode(index), purpose=Purpose.DEMO)
            if episode.task != task:
                raise UsageError(f"episode {index} is of task '{episode.task}', but run {folder.path} of '{task}'")
            said = source.labels(index)
            if said is not None:  # before the episode: with it there, nobody would ask for them again
                labels.add(said)
            log.commit(episode)
            num_new, num_steps = num_new + 1, num_steps + len(episode)
            num_failed += not (episode.outcome is Outcome.SUCCESS if said is None else said.success)
    there = f", {len(source) - num_new} were there already" if num_new < len(source) else ""
    say(f"{num_new} demonstrations imported ({num_steps} steps){there}")
    if num_failed:
        say(f"{num_failed} of them did not succeed: they are kept, and not learned from")
    say(f"learn from them: dovetail run --resume {folder.path}")


def _existing(run: str, recipe: str | None, runs_dir: Path) -> RunFolder | None:
    try:
        path = find_run(run, runs_dir)
    except RunFolderError as error:
        if recipe is None:
            raise UsageError(f"{error} To start one with these demonstrations, add --recipe RECIPE") from error
        return None
    if recipe is not None:
        raise UsageError(f"run {path} is there already: leave --recipe out, or choose another name")
    return RunFolder.open(path)


def _who_and_what(config: RunConfig) -> tuple[RobotSpec, str]:
    station = build_station(config)
    try:
        return station.robot.spec, station.task.spec.name
    finally:
        station.close()


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = dict(text.partition("=")[::2] for text in texts)
    for theirs, ours in pairs.items():
        if not theirs or not ours:
            raise UsageError(f"--rename wants THEIRS=OURS, got '{theirs}={ours}'")
    return pairs
