"""Export episodes as a LeRobot dataset, and import a dataset as demonstrations."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dovetail.api.episodes import Episodes, Filter
from dovetail.api.names import RUNS_DIR, check_name, find_run
from dovetail.config.load import Overrides, load, plain_overrides
from dovetail.config.schema import RunConfig
from dovetail.core.errors import DovetailError, RunFolderError, SpecMismatch, UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.lerobot._checks import check_values
from dovetail.episodes.lerobot.export import ExportReport, export
from dovetail.episodes.lerobot.read import Dataset, RateMismatch, open_dataset
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.store import LabelStore
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.experience import image_codec
from dovetail.runs.folder import RunFolder

__all__ = ["Imported", "export_dataset", "import_dataset"]

OnProgress = Callable[[int, int], None]
"""Called with the number of episodes done and of episodes in all."""


def export_dataset(
    run: Path,
    out: Path,
    wanted: Filter,
    *,
    codec: str | None = None,
    fps: int | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> ExportReport:
    """Write the episodes that match as a LeRobot v3.0 dataset; a second call adds the new ones.

    Evaluations and aborted episodes are left out unless the filter asks for them; discarded episodes always. A dataset of
    demonstrations receives other episodes only if the filter names their purpose.
    """
    episodes = Episodes(run, dataclasses.replace(wanted, limit=None))
    ids = None
    if not wanted.is_empty:
        ids = [
            episode.id
            for episode in episodes
            if (episode.info.purpose is not Purpose.EVAL or wanted.purpose is Purpose.EVAL)
            and (episode.info.outcome is not Outcome.ABORTED or wanted.outcome is Outcome.ABORTED)
            and not (episode.label is not None and episode.label.discard)
        ]
        ids = ids[-wanted.limit :] if wanted.limit else ids
        if episodes.problems:
            raise UsageError(episodes.problems[0])
        if not ids:
            raise UsageError(f"no episode of {run} matches: `dovetail episodes ls {run}` lists them")
    return export(
        episodes.log,
        out,
        ids=ids,
        any_purpose=wanted.purpose is not None,
        labels=episodes.labels.current,
        codec=codec,
        fps=fps,
        on_episode=lambda _, done, total: on_progress(done, total),
    )


@dataclass(slots=True, kw_only=True)
class Imported:
    """The result of an import."""

    run: Path
    num_episodes: int = 0
    num_steps: int = 0
    num_failed: int = 0  # imported, but never trained on
    num_known: int = 0  # already in the run
    demos_set: int | None = None  # `run.demos` of a new run, if the import set it


def import_dataset(
    run: str,
    dataset: Path,
    *,
    recipe: str | None = None,
    overrides: Overrides = (),
    rename: Mapping[str, str] | None = None,
    ignore_names: bool = False,
    runs_dir: Path = RUNS_DIR,
    on_progress: OnProgress = lambda done, total: None,
) -> Imported:
    """Add the episodes of a LeRobot dataset to a run as demonstrations; with `recipe` and `overrides`, to a new run of that
    name.

    Episodes that the run has already are skipped. `run.demos` of a new run becomes the number of its imported
    demonstrations, so that it records none itself, unless the overrides set it.
    """
    if overrides and recipe is None:
        given = ", ".join(plain_overrides(overrides))
        raise UsageError(f"{given} can be set for a new run only: add --recipe RECIPE, or leave it out")
    existing = _existing(run, recipe, runs_dir)
    config = existing.config if existing else load([str(recipe)], overrides)
    robot, task = _robot_and_task(config)
    source = _open(
        dataset, config, robot, task=task, is_new=existing is None, rename=rename, ignore_names=ignore_names
    )
    sets_demos = existing is None and len(source) > 0 and "run.demos" not in plain_overrides(overrides)
    demos_before = config.run.demos
    if sets_demos:
        config = config.model_copy(update={"run": config.run.model_copy(update={"demos": len(source)})})
    folder = existing or RunFolder.create(runs_dir / check_name(run), config)
    folder.lock()
    log = EpisodeLog(folder.episodes, images=image_codec(config.images))
    try:
        result = _add_episodes(source, log, folder, on_progress=on_progress)
    except DovetailError:
        if existing is None and not log.ids():
            shutil.rmtree(folder.path)
        raise
    if sets_demos:
        num_good = result.num_episodes - result.num_failed
        result.demos_set = num_good or None  # without any, the run records its own
        if num_good != len(source):
            folder.change({"run.demos": num_good or demos_before})
    return result


def _open(
    dataset: Path,
    config: RunConfig,
    robot: RobotSpec,
    *,
    task: str,
    is_new: bool,
    rename: Mapping[str, str] | None,
    ignore_names: bool,
) -> Dataset:
    try:
        return open_dataset(dataset, robot=robot, task=task, rename=rename, ignore_names=ignore_names)
    except RateMismatch as error:
        if not hasattr(config.robot.config, "control_hz"):
            raise
        setting = f"robot.control_hz={error.dataset_hz:g}"
        todo = f"Set {setting}" if is_new else f"Import into a new run: add --recipe RECIPE {setting}"
        raise SpecMismatch(f"{error}. {todo}") from error


def _add_episodes(source: Dataset, log: EpisodeLog, folder: RunFolder, *, on_progress: OnProgress) -> Imported:
    result, labels = Imported(run=folder.path), LabelStore(folder.labels)
    for index in range(len(source)):
        on_progress(index, len(source))
        if source.episode_id(index) in log:
            result.num_known += 1
            continue
        # images are decoded one by one whenever they are read: a video of a still scene is far smaller than its images
        streams = source.image_streams(index)
        episode = dataclasses.replace(source.episode(index, images=False), purpose=Purpose.DEMO)
        label = source.labels(index)
        check_values(episode, label, name=f"episode {index} of the dataset", streams=streams)
        if label is not None:  # before the episode: an episode in the log is never imported again
            labels.add(label)
        log.commit(episode, streams=streams)
        result.num_episodes += 1
        result.num_steps += len(episode)
        result.num_failed += not (episode.outcome is Outcome.SUCCESS if label is None else label.success)
    return result


def _existing(run: str, recipe: str | None, runs_dir: Path) -> RunFolder | None:
    try:
        path = find_run(run, runs_dir)
    except RunFolderError as error:
        if recipe is None:
            raise UsageError(f"{error} To start a run with these demonstrations, add --recipe RECIPE") from error
        return None
    if recipe is not None:
        raise UsageError(f"run {path} exists already: leave out --recipe, or choose another name")
    return RunFolder.open(path)


def _robot_and_task(config: RunConfig) -> tuple[RobotSpec, str]:
    assembly = build_assembly(config)
    try:
        return assembly.robot.spec, assembly.task.spec.name
    finally:
        assembly.close()
