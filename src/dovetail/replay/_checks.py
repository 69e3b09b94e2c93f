"""What the replay refuses, and why, before anything in it has changed."""

from __future__ import annotations

import dataclasses

import numpy as np

from dovetail.core.errors import SpecMismatch, UsageError, did_you_mean
from dovetail.core.specs import ArraySpec, RobotSpec, match
from dovetail.core.types import Array, EpisodeStart, Labels, Outcome, Purpose, Segment
from dovetail.replay._layout import TABLES

__all__ = ["check_labels", "check_same_robot", "check_segment", "check_start"]

_LONGEST_ID = TABLES["episodes"]["id"].itemsize


def check_start(start: EpisodeStart, *, outcome: Outcome | None = None, judgement: Outcome | None = None) -> None:
    """Refuse what must not train."""
    if len(start.id.encode()) > _LONGEST_ID:
        raise UsageError(f"the id of episode {start.id} is longer than {_LONGEST_ID} bytes")
    if start.purpose is Purpose.EVAL:
        raise UsageError(f"episode {start.id} is an evaluation: it never enters replay")
    if Outcome.ABORTED in (outcome, judgement):
        raise UsageError(f"episode {start.id} was aborted: it never trains")


def check_labels(labels: Labels, episode_id: str, num_steps: int) -> None:
    if labels.episode_id != episode_id:
        raise UsageError(f"labels of episode {labels.episode_id} were given for episode {episode_id}")
    for name, values in (("rewards", labels.rewards), ("discounts", labels.discounts)):
        if values.shape != (num_steps,):
            raise UsageError(f"episode {episode_id} has {num_steps} steps, its {name} are {list(values.shape)}")
        if not np.isfinite(values).all():
            raise UsageError(f"{name} of episode {episode_id} are not all finite")


def check_segment(segment: Segment, robot: RobotSpec, *, keys: tuple[str, ...]) -> None:
    """What was recorded is what the robot's spec says; a float image where uint8 was promised ends here."""
    if segment.final != (segment.last_observation is not None):
        raise UsageError(
            f"a segment of episode {segment.episode_id} is final without a last observation, or not so with"
        )
    for key in keys:
        if key not in robot.observation:
            raise SpecMismatch(
                f"the replay keeps observation '{key}', but robot '{robot.name}' of episode {segment.episode_id} "
                "gives no such thing." + did_you_mean(key, robot.observation)
            )
        columns = [segment.columns.get(f"observation/{key}")]
        if segment.last_observation is not None:
            last = segment.last_observation.values.get(key)
            columns.append(None if last is None else last[None])
        for column in columns:
            _check_column(column, robot, robot.observation[key], f"observation '{key}'", segment.episode_id)
    executed = dataclasses.replace(robot.action, dtype="float32")
    _check_column(segment.columns["executed"], robot, executed, "executed action", segment.episode_id)
    for name in ("source", "policy_version", *(f"observation/{key}" for key in keys)):
        num_rows = len(segment.columns.get(name, ()))
        if num_rows != len(segment):
            raise UsageError(
                f"column '{name}' of episode {segment.episode_id} has {num_rows} rows for {len(segment)} steps"
            )


def _check_column(column: Array | None, robot: RobotSpec, spec: ArraySpec, what: str, episode_id: str) -> None:
    there = f"robot '{robot.name}' gives {spec.describe()}"
    if column is None:
        raise SpecMismatch(f"episode {episode_id} has no {what}, but {there}")
    if column.dtype != spec.dtype or column.shape[1:] != spec.shape:
        got = f"{column.dtype}{list(column.shape[1:])}"
        raise SpecMismatch(f"{what} of episode {episode_id} is {got}, but {there}")
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        raise UsageError(f"{what} of episode {episode_id} is not finite: one such row would ruin every weight")


def check_same_robot(first: RobotSpec, start: EpisodeStart, *, keys: tuple[str, ...]) -> None:
    """Rows of one replay mean the same thing. Observations that are not kept may differ."""

    def kept(robot: RobotSpec) -> RobotSpec:
        held = {key: robot.observation[key] for key in keys if key in robot.observation}
        return dataclasses.replace(robot, observation=held)

    match(kept(first), stored=kept(start.robot))
    here, there = f"robot '{first.name}'", f"episode {start.id} of robot '{start.robot.name}'"
    for what in ("embodiment", "control_hz"):
        ours, theirs = getattr(first, what), getattr(start.robot, what)
        if ours != theirs:
            raise SpecMismatch(f"the replay began with {here}, {what} {ours}, but {there} has {theirs}")
