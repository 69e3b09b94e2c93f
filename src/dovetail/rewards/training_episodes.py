"""Episodes with known success, to train a success classifier on.

A person's label has priority, then the operator's judgement at the robot, then the task's verdict. Labels of classifiers
and other models are never used, because a classifier would learn its own mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Outcome
from dovetail.episodes.log import EpisodeInfo, EpisodeLog
from dovetail.labels.human import HUMAN
from dovetail.labels.learned.frames import LabeledEpisode, labeled_episode, select_observations
from dovetail.labels.learned.training import TrainingConfig
from dovetail.labels.store import LabelStore
from dovetail.runs.folder import RunFolder

__all__ = ["GroundTruth", "ground_truth_of", "ground_truths", "labeled_episodes"]

_TRUSTED = {HUMAN, "outcome"}  # labelers that are not models
_MODELS = {"classifier", "vlm"}  # labelers that may also end episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundTruth:
    """Success of an episode and its source."""

    run: Path
    info: EpisodeInfo
    success: bool
    by_person: bool
    rewards: Array | None = None


def ground_truths(folder: RunFolder) -> list[GroundTruth]:
    """Return the ground truth of all episodes of a run that have one, in order."""
    log, labels = EpisodeLog(folder.episodes), LabelStore(folder.labels)
    found = (ground_truth_of(folder, log.manifest(episode_id), labels) for episode_id in log.ids())
    return [truth for truth in found if truth is not None]


def ground_truth_of(folder: RunFolder, info: EpisodeInfo, labels: LabelStore) -> GroundTruth | None:
    """Return the ground truth of an episode; None if it is unknown or the episode was discarded."""
    if info.outcome is Outcome.ABORTED or not info.num_steps:
        return None
    by_model = any(name in _MODELS for name in info.operator.split("+"))  # such as `scripted+classifier`
    # then the model may have decided the success at the robot, which `outcome` repeats
    trusted = {HUMAN} if by_model and info.judgement is Outcome.SUCCESS else _TRUSTED
    given = [
        record.labels
        for record in labels.history(info.id)
        if record.labels.labeler in trusted and not record.retracted
    ]
    given.sort(key=lambda one: (one.labeler == HUMAN, one.priority))  # stable: the newest of the best is last
    if given:
        best = given[-1]
        if best.discard:
            return None
        return GroundTruth(
            run=folder.path,
            info=info,
            success=best.success,
            by_person=best.labeler == HUMAN,
            rewards=best.rewards,
        )
    if info.judgement in (Outcome.SUCCESS, Outcome.FAILURE) and not by_model:
        return GroundTruth(run=folder.path, info=info, success=info.judgement is Outcome.SUCCESS, by_person=False)
    if any(section.type in _MODELS for section in folder.config.labels):
        return None  # a model may have ended the episode
    return GroundTruth(run=folder.path, info=info, success=info.outcome is Outcome.SUCCESS, by_person=False)


def labeled_episodes(
    found: Sequence[GroundTruth],
    config: TrainingConfig,
    *,
    on_read: Callable[[int], None] = lambda num_read: None,
) -> tuple[list[LabeledEpisode], RobotSpec]:
    """Load the frames of the episodes; returns them and the robot. All must have the same cameras and sizes."""
    if not found:
        raise UsageError("no episode of these runs has a known success. Label some or collect demonstrations.")
    robot = found[-1].info.robot
    specs = select_observations(robot, cameras=config.cameras, proprio=config.proprio)
    wanted = [*specs["cameras"], *specs["proprio"]]
    episodes = []
    for number, truth in enumerate(found):
        there = truth.info.robot.observation
        for key in wanted:
            if key not in there or there[key].shape != robot.observation[key].shape:
                seen = there[key].describe() if key in there else "missing"
                raise UsageError(
                    f"'{key}' is {seen} in run {truth.run}, but {robot.observation[key].describe()} in others. "
                    "Train on runs with the same cameras."
                )
        episode = EpisodeLog(truth.run / "episodes").load(truth.info.id)
        episodes.append(
            labeled_episode(
                episode,
                keys=wanted,
                success=truth.success,
                rewards=truth.rewards,
                by_person=truth.by_person,
                positive_frames=config.positive_frames,
                unsure_frames=config.unsure_frames,
                most_frames=config.most_frames,
            )
        )
        on_read(number + 1)
    return episodes, robot
