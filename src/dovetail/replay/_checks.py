"""What the replay refuses, and why, before anything in it has changed."""

from __future__ import annotations

import dataclasses

import numpy as np

from dovetail.core.errors import SpecMismatch, UsageError, did_you_mean
from dovetail.core.specs import ArraySpec, RobotSpec, match
from dovetail.core.types import Array, Episode, Labels, Outcome, Purpose

__all__ = ["check_episode", "check_labels", "check_same_robot", "low_dimensional"]


def check_episode(episode: Episode, labels: Labels, *, keys: tuple[str, ...], capacity_steps: int) -> None:
    """Refuse what must not train, is not whole, or does not fit."""
    if episode.purpose is Purpose.EVAL:
        raise UsageError(f"episode {episode.id} is an evaluation: it never enters replay")
    if Outcome.ABORTED in (episode.outcome, episode.judgement):
        raise UsageError(f"episode {episode.id} was aborted: it never trains")
    num_steps = 0
    for segment in episode.segments:
        if segment.first != num_steps:
            raise UsageError(f"episode {episode.id} has a gap: step {segment.first} follows {num_steps - 1}")
        num_steps += len(segment)
    if not num_steps or episode.segments[-1].last_observation is None:
        raise UsageError(f"episode {episode.id} has no steps, or no last observation")
    if num_steps > capacity_steps:
        raise UsageError(
            f"episode {episode.id} has {num_steps} steps, the whole replay holds {capacity_steps}: "
            "raise capacity_steps"
        )
    check_labels(labels, episode.id, num_steps)
    _check_arrays(episode, keys)


def low_dimensional(robot: RobotSpec) -> tuple[str, ...]:
    return tuple(key for key, spec in robot.observation.items() if len(spec.shape) < 3)


def check_labels(labels: Labels, episode_id: str, num_steps: int) -> None:
    if labels.episode_id != episode_id:
        raise UsageError(f"labels of episode {labels.episode_id} were given for episode {episode_id}")
    for name, values in (("rewards", labels.rewards), ("discounts", labels.discounts)):
        if values.shape != (num_steps,):
            raise UsageError(f"episode {episode_id} has {num_steps} steps, its {name} are {list(values.shape)}")
        if not np.isfinite(values).all():
            raise UsageError(f"{name} of episode {episode_id} are not all finite")


def _check_arrays(episode: Episode, keys: tuple[str, ...]) -> None:
    """What was recorded is what the robot's spec says; a float image where uint8 was promised ends here."""
    robot = episode.robot
    for key in keys:
        if key not in robot.observation:
            raise SpecMismatch(
                f"the replay keeps observation '{key}', but robot '{robot.name}' of episode {episode.id} "
                "gives no such thing." + did_you_mean(key, robot.observation)
            )
        rows = [segment.columns.get(f"observation/{key}") for segment in episode.segments]
        last = episode.last_observation.values.get(key)
        for column in (*rows, None if last is None else last[None]):
            _check_column(column, robot.observation[key], what=f"observation '{key}'", episode=episode)
    for segment in episode.segments:
        _check_column(segment.columns["executed"], robot.action, what="executed action", episode=episode)


def _check_column(column: Array | None, spec: ArraySpec, *, what: str, episode: Episode) -> None:
    there = f"robot '{episode.robot.name}' gives {spec.describe()}"
    if column is None:
        raise SpecMismatch(f"episode {episode.id} has no {what}, but {there}")
    if column.dtype != spec.dtype or column.shape[1:] != spec.shape:
        got = f"{column.dtype}{list(column.shape[1:])}"
        raise SpecMismatch(f"{what} of episode {episode.id} is {got}, but {there}")
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        raise UsageError(f"{what} of episode {episode.id} is not finite: one such row would ruin every weight")


def check_same_robot(first: RobotSpec, episode: Episode, *, keys: tuple[str, ...]) -> None:
    """Rows of one replay mean the same thing. Observations that are not kept may differ."""

    def kept(robot: RobotSpec) -> RobotSpec:
        return dataclasses.replace(robot, observation={key: robot.observation[key] for key in keys})

    match(kept(first), stored=kept(episode.robot))
    here, there = f"robot '{first.name}'", f"episode {episode.id} of robot '{episode.robot.name}'"
    for what in ("embodiment", "control_hz"):
        ours, theirs = getattr(first, what), getattr(episode.robot, what)
        if ours != theirs:
            raise SpecMismatch(f"the replay began with {here}, {what} {ours}, but {there} has {theirs}")
