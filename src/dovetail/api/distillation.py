"""Distill a run: its successful episodes become demonstrations, and a policy is fine-tuned on them in a new run."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.api.contenders import check_same
from dovetail.api.launch import RunOptions, train
from dovetail.api.names import RUNS_DIR, check_name, find_run
from dovetail.api.opened_run import Run
from dovetail.api.policy_export import export_run
from dovetail.api.weights import WeightSource
from dovetail.config.load import Overrides, load, plain_overrides
from dovetail.config.trust import is_trusted
from dovetail.core.errors import RunFolderError, UsageError
from dovetail.core.proposals import OF_BASE, without_proposal
from dovetail.core.types import Episode, Observation, Purpose
from dovetail.episodes.lerobot._checks import check_values
from dovetail.episodes.lerobot._rows import imported
from dovetail.episodes.log import EpisodeLog
from dovetail.labels.store import LabelStore
from dovetail.policies.vla.settings import VlaConfig
from dovetail.runs.folder import RunFolder
from dovetail.weights.store import DiskWeightStore

if TYPE_CHECKING:
    from dovetail.runs.status import StatusListener

__all__ = ["LINEAGE", "Distilled", "distill", "prepare_distillation"]

LINEAGE = "lineage.json"
EXPORTS = "exports"  # LeRobot folders of a run's weights
DEFAULT_UPDATES = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """The new run, and how many episodes it learned from."""

    run: Run
    num_episodes: int


def distill(
    run: Run | str | Path,
    into: str | Path,
    overrides: Overrides = (),
    *,
    name: str,
    num_updates: int = DEFAULT_UPDATES,
    runs_dir: Path | str = RUNS_DIR,
    evaluate: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
    on_progress: StatusListener | None = None,
) -> Distilled:
    """Fine-tune a policy on the successful episodes of a run: those of base, residual and people.

    `into` is a run, whose policy starts from its newest weights, or a recipe or file, whose policy starts untrained. The
    new run `name` has the same task, robot and safety limits. Evaluations are left out: they stay unseen. `lineage.json`
    in the new run records where the episodes and the weights came from.
    """
    folder, num_episodes = prepare_distillation(
        run, into, overrides, name=name, num_updates=num_updates, runs_dir=runs_dir
    )
    options: RunOptions = {"resume": folder.path, "runs_dir": runs_dir, "should_stop": should_stop}
    if on_progress is not None:
        options["on_progress"] = on_progress
    trained = train(evaluate=evaluate, **options)
    return Distilled(run=trained, num_episodes=num_episodes)


def prepare_distillation(
    run: Run | str | Path,
    into: str | Path,
    overrides: Overrides = (),
    *,
    name: str,
    num_updates: int,
    runs_dir: Path | str,
) -> tuple[RunFolder, int]:
    """Make the new run with its demonstrations, and return it with their number. `lineage.json` is written last."""
    runs = Path(runs_dir)
    source = RunFolder.open(find_run(run.path if isinstance(run, Run) else run, runs))
    student = _student(into, runs)
    settings = [
        *student.start,
        "operator.type=none",
        "algorithm.type=imitation",
        "learner.bc_updates=0",
        f"learner.warmup_updates={num_updates}",
        "run.env_steps=0",
        *(f"{key}={value}" for key, value in plain_overrides(overrides).items()),
    ]
    config = load([student.config_file], settings)
    check_same([WeightSource(folder=source), WeightSource(folder=source)], [source.config, config])
    ids = _successful(source)
    if not ids:
        raise UsageError(f"run {source.path} has no successful episode to distill. Let it learn first")
    config = config.model_copy(update={"run": config.run.model_copy(update={"demos": len(ids)})})
    folder = RunFolder.create(runs / check_name(name), config)
    try:
        lineage = _lineage(source, student) | _copy(source, ids, folder)
    except BaseException:  # half of the episodes would look like all
        shutil.rmtree(folder.path)
        raise
    folder.event("distill", **lineage)
    folder.write_json(LINEAGE, lineage)
    return folder, len(ids)


def _copy(source: RunFolder, ids: list[str], folder: RunFolder) -> dict[str, Any]:
    """Copy episodes as demonstrations, one after another: images of all would not fit in memory. Returns their facts.

    A run from elsewhere is an import: its values are checked, and its labels never outrank a person."""
    read, log = EpisodeLog(source.episodes), EpisodeLog(folder.episodes)
    known, labels = LabelStore(source.labels), LabelStore(folder.labels)
    foreign = not is_trusted(source.path)
    num_human_steps = num_steps = 0
    for one in ids:
        episode, label = _as_demonstration(read.load(one)), known.current(one)
        if foreign:
            label = None if label is None else imported(label)
            check_values(episode, label, name=f"episode {one} of {source.path}")
        if label is not None:
            labels.add(label)
        log.commit(episode)
        num_human_steps, num_steps = num_human_steps + episode.num_human_steps, num_steps + len(episode)
    return {"episodes": ids, "num_human_steps": num_human_steps, "num_steps": num_steps}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Student:
    """The policy to fine-tune: its config, its weights, and the settings that let a run start from them; none if it is
    untrained."""

    config_file: str | Path
    weights: Path | None = None
    version: int | None = None
    start: tuple[str, ...] = ()


def _student(into: str | Path, runs: Path) -> _Student:
    try:
        folder = RunFolder.open(find_run(into, runs))
    except RunFolderError:
        return _Student(config_file=into)  # a recipe or file, or an error that names what exists
    newest = DiskWeightStore(folder.weights).latest()
    if newest is None:
        raise UsageError(f"run {folder.path} has published no weights yet. Let it run first, or name a recipe")
    weights = folder.weights / f"v{newest.version:08d}.json"
    return _Student(
        config_file=folder.path / "config.yaml",
        weights=weights,
        version=newest.version,
        start=_started_from_folder(folder, newest.version)
        if isinstance(folder.config.policy.config, VlaConfig)
        else tuple(f"policy.components.{part}.checkpoint={weights}" for part in newest.components),
    )


def _started_from_folder(folder: RunFolder, version: int) -> tuple[str, ...]:
    """A vision-language-action model starts from a LeRobot folder, which has weights and statistics. The run keeps it."""
    exported = folder.path / EXPORTS / f"v{version:08d}"
    if not (exported / "model.safetensors").is_file():
        shutil.rmtree(exported, ignore_errors=True)  # an export that was interrupted
        export_run(WeightSource(folder=folder, version=version), exported)
    kept = ("policy.new=null", "policy.fit_stats=false", "policy.stats=null", "policy.adapter=null")
    return (f"policy.checkpoint={exported}", *kept)


def _successful(source: RunFolder) -> list[str]:
    """Its demonstrations and online episodes that succeeded, by the newest label or, without one, by their outcome."""
    log, labels, found = EpisodeLog(source.episodes), LabelStore(source.labels), []
    for one in log.ids():
        manifest, label = log.manifest(one), labels.current(one)
        succeeded = manifest.success if label is None else label.success and not label.discard
        if manifest.purpose is not Purpose.EVAL and succeeded:
            found.append(one)
    return found


def _as_demonstration(episode: Episode) -> Episode:
    """The episode without a base policy's proposals, which are no observations of the robot."""
    segments = tuple(
        dataclasses.replace(
            segment,
            columns={
                name: values
                for name, values in segment.columns.items()
                if name.removeprefix("observation/") not in OF_BASE
            },
            last_observation=_measured(segment.last_observation),
        )
        for segment in episode.segments
    )
    robot = without_proposal(episode.robot)
    return dataclasses.replace(episode, purpose=Purpose.DEMO, robot=robot, segments=segments)


def _measured(observation: Observation | None) -> Observation | None:
    if observation is None:
        return None
    values = {key: value for key, value in observation.values.items() if key not in OF_BASE}
    return dataclasses.replace(observation, values=values)


def _lineage(source: RunFolder, student: _Student) -> dict[str, Any]:
    return {
        "run": str(source.path),
        "config_hash": source.config_hash,
        "version": max(DiskWeightStore(source.weights).versions(), default=None),
        "into": str(student.weights or student.config_file),
        "into_version": student.version,
    }
