"""Checks of episodes, segments and labels. They run before the replay changes anything."""

from __future__ import annotations

import dataclasses

import numpy as np

from dovetail.core.errors import SpecMismatch, UsageError, did_you_mean, shown
from dovetail.core.prompts import check_prompt_changes
from dovetail.core.specs import ArraySpec, RobotSpec, match
from dovetail.core.types import Array, EpisodeStart, Labels, Outcome, Purpose, Segment
from dovetail.replay._layout import TABLES

__all__ = ["check_labels", "check_same_robot", "check_segment", "check_start"]

_MAX_ID_BYTES = TABLES["episodes"]["id"].itemsize


def check_start(start: EpisodeStart, *, outcome: Outcome | None = None, judgement: Outcome | None = None) -> None:
    """Refuse evaluation episodes and aborted episodes."""
    if len(start.id.encode()) > _MAX_ID_BYTES:
        raise UsageError(f"the id of episode {start.id} is longer than {_MAX_ID_BYTES} bytes")
    if start.purpose is Purpose.EVAL:
        raise UsageError(f"episode {start.id} is an evaluation and cannot be added to the replay")
    if Outcome.ABORTED in (outcome, judgement):
        raise UsageError(f"episode {start.id} was aborted and cannot be added to the replay")


def check_labels(labels: Labels, episode_id: str, num_steps: int) -> None:
    if labels.episode_id != episode_id:
        raise UsageError(f"labels of episode {labels.episode_id} were given for episode {episode_id}")
    for name, values in (("rewards", labels.rewards), ("discounts", labels.discounts)):
        if values.shape != (num_steps,):
            raise UsageError(
                f"{name} of episode {episode_id} have shape {list(values.shape)}, expected [{num_steps}]"
            )
        if not np.isfinite(values).all():
            raise UsageError(f"{name} of episode {episode_id} are not all finite")


def check_segment(segment: Segment, robot: RobotSpec, *, keys: tuple[str, ...]) -> None:
    """Refuse a segment whose columns do not match the robot's spec."""
    if segment.final != (segment.last_observation is not None):
        raise UsageError(
            f"a segment of episode {segment.episode_id} must have a last observation if, and only if, it is final"
        )
    check_prompt_changes(segment.prompt_changes, first=segment.first, num_steps=len(segment))
    for key in keys:
        if key not in robot.observation:
            raise SpecMismatch(
                f"the replay stores observation '{key}', but robot '{robot.name}' of episode {segment.episode_id} "
                "does not have it." + did_you_mean(key, robot.observation)
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
    expected = f"the spec of robot '{robot.name}' says {spec.describe()}"
    if column is None:
        raise SpecMismatch(f"episode {episode_id} has no {what}, but {expected}")
    if column.dtype != spec.dtype or column.shape[1:] != spec.shape:
        got = f"{column.dtype}{list(column.shape[1:])}"
        raise SpecMismatch(f"{what} of episode {episode_id} is {got}, but {expected}")
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        raise UsageError(
            f"{what} of episode {episode_id} contains NaN or infinity, which would destroy the weights"
        )


def check_same_robot(first: RobotSpec, start: EpisodeStart, *, keys: tuple[str, ...]) -> None:
    """Refuse an episode of another kind of robot. Observations that the replay does not store may differ."""
    match(first.with_only(keys), stored=start.robot.with_only(keys))
    for what, ours, theirs in (
        ("embodiment", first.embodiment, start.robot.embodiment),
        ("control_hz", first.control_hz, start.robot.control_hz),
    ):
        if ours != theirs:
            raise SpecMismatch(
                f"the first robot of the replay, '{shown(first.name)}', has {what} {shown(ours)}, "
                f"but robot '{shown(start.robot.name)}' of episode {start.id} has {shown(theirs)}"
            )
