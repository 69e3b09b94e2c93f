"""Episodes of runs whose end somebody has vouched for, as a success classifier is trained on them.

A person's label comes first, then what was said at the robot, then the task's own verdict. What a classifier or another
model said never counts: it would learn its own mistakes.
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
from dovetail.labels.learned.frames import JudgedEpisode, judged, shown
from dovetail.labels.learned.training import TrainingConfig
from dovetail.labels.store import LabelStore
from dovetail.runs.folder import RunFolder

__all__ = ["Truth", "judged_episodes", "truth_of", "truths"]

_TRUE = {HUMAN, "outcome"}  # labelers that are no models
_MODELS = {"classifier", "vlm"}  # who may also end episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """How an episode ended, and who says so."""

    run: Path
    info: EpisodeInfo
    success: bool
    by_person: bool
    rewards: Array | None = None


def truths(folder: RunFolder) -> list[Truth]:
    """Of all episodes of a run that anybody has vouched for, in their order."""
    log, labels = EpisodeLog(folder.episodes), LabelStore(folder.labels)
    found = (truth_of(folder, log.manifest(episode_id), labels) for episode_id in log.ids())
    return [truth for truth in found if truth is not None]


def truth_of(folder: RunFolder, info: EpisodeInfo, labels: LabelStore) -> Truth | None:
    """None: nobody knows, or it says nothing of the task."""
    if info.outcome is Outcome.ABORTED or not info.num_steps:
        return None
    by_model = any(name in _MODELS for name in info.operator.split("+"))  # such as `scripted+classifier`
    # then an end that was called a success at the robot may be the very model's that is to learn, and `outcome` repeats it
    believed = {HUMAN} if by_model and info.judgement is Outcome.SUCCESS else _TRUE
    said = [
        record.labels
        for record in labels.history(info.id)
        if record.labels.labeler in believed and not record.retracted
    ]
    said.sort(key=lambda one: (one.labeler == HUMAN, one.priority))  # stable: the newest of the best is last
    if said:
        best = said[-1]
        if best.discard:
            return None
        return Truth(
            run=folder.path,
            info=info,
            success=best.success,
            by_person=best.labeler == HUMAN,
            rewards=best.rewards,
        )
    if info.judgement in (Outcome.SUCCESS, Outcome.FAILURE) and not by_model:
        return Truth(run=folder.path, info=info, success=info.judgement is Outcome.SUCCESS, by_person=False)
    if any(section.type in _MODELS for section in folder.config.labels):
        return None  # who labels may also have ended it
    return Truth(run=folder.path, info=info, success=info.outcome is Outcome.SUCCESS, by_person=False)


def judged_episodes(
    found: Sequence[Truth],
    config: TrainingConfig,
    *,
    on_read: Callable[[int], None] = lambda num_read: None,
) -> tuple[list[JudgedEpisode], RobotSpec]:
    """Their frames, and the robot that saw them. All must have been seen by the same cameras at the same size."""
    if not found:
        raise UsageError("nobody has judged any episode of these runs: label some, or collect demonstrations")
    robot = found[-1].info.robot
    specs = shown(robot, cameras=config.cameras, proprio=config.proprio)
    wanted = [*specs["cameras"], *specs["proprio"]]
    episodes = []
    for number, truth in enumerate(found):
        there = truth.info.robot.observation
        for key in wanted:
            if key not in there or there[key].shape != robot.observation[key].shape:
                seen = there[key].describe() if key in there else "nothing"
                raise UsageError(
                    f"run {truth.run} has {seen} of '{key}', where others have {robot.observation[key].describe()}: "
                    "train on runs with the same cameras"
                )
        episode = EpisodeLog(truth.run / "episodes").load(truth.info.id)
        episodes.append(
            judged(
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
