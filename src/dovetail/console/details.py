"""An episode as a page shows it: what is known of it, what was said of it, and its curves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.console.episode_handles import Desk, Episodes, Said, Summary
from dovetail.core.types import Array, Episode, Labels, Source

__all__ = ["details", "row"]

_MAX_POINTS = 2000  # of a curve: more than a screen has across
_MAX_CURVES = 32  # of one observation; a longer vector is no curve
_OBSERVATION = "observation/"


def row(info: Summary, label: Labels | None) -> dict[str, Any]:
    """What a list shows."""
    return {
        "id": info.id,
        "number": info.number,
        "task": info.task,
        "prompt": info.prompt,
        "operator": info.operator,
        "purpose": info.purpose.value,
        "outcome": info.outcome.value,
        "judgement": info.judgement.value if info.judgement else None,
        "started_unix_s": info.started_unix_ns / 1e9,
        "duration_s": info.num_steps / info.robot.control_hz,
        "num_steps": info.num_steps,
        "human_share": info.num_human_steps / max(1, info.num_steps),
        "policy_version": max(info.policy_versions, default=0),
        "label": None if label is None else word(label),
        "labeler": None if label is None else label.labeler,
        "confidence": None if label is None else label.confidence,
    }


def word(label: Labels) -> str:
    if label.discard:
        return "discard"
    return "success" if label.success else "failure"


def details(episodes: Episodes, desk: Desk, episode_id: str) -> dict[str, Any]:
    """All that the player needs but the pictures."""
    info = episodes.summary(episode_id)
    episode = episodes.steps(episode_id)
    current = desk.current(episode_id)
    every = max(1, -(-len(episode) // _MAX_POINTS))
    return {
        **row(info, current),
        "hz": info.robot.control_hz,
        "cameras": [{"name": name, "num_frames": num} for name, num in episodes.cameras(episode_id).items()],
        "every": every,
        "control": _control(episode),
        "rewards": _rewards(episode, current, every),
        "curves": _curves(episode, every),
        "said": [_said(one) for one in desk.said(episode_id)],
    }


def _control(episode: Episode) -> list[list[Any]]:
    """Who moved the arm, as runs of steps: first, last, who."""
    source = episode.column("source")
    if len(source) == 0:
        return []
    cuts = [0, *(np.flatnonzero(np.diff(source)) + 1).tolist(), len(source)]
    return [
        [first, end - 1, "human" if source[first] == Source.HUMAN else "policy"]
        for first, end in itertools.pairwise(cuts)
    ]


def _rewards(episode: Episode, current: Labels | None, every: int) -> dict[str, Any]:
    """By the task as it went, and by the labels that count."""
    names = [name for name in episode.segments[0].columns if name.startswith("reward/")]
    curves = {name.removeprefix("reward/"): _numbers(episode.column(name), every) for name in names}
    if current is not None and len(current.rewards) == len(episode):
        curves["label"] = _numbers(current.rewards, every)
    return curves


def _curves(episode: Episode, every: int) -> list[dict[str, Any]]:
    """The action, then each low-dimensional observation."""
    robot = episode.robot
    curves = [_curve("action", episode.column("executed"), robot.action.names, every)]
    for name in sorted(episode.segments[0].columns):
        key = name.removeprefix(_OBSERVATION)
        values = episode.column(name) if name.startswith(_OBSERVATION) else np.empty(0)
        if values.ndim == 2 and 0 < values.shape[1] <= _MAX_CURVES and values.dtype.kind in "fiub":
            spec = robot.observation.get(key)
            curves.append(_curve(key, values, spec.names if spec else (), every))
    return curves


def _curve(name: str, values: Array, names: Sequence[str], every: int) -> dict[str, Any]:
    kept = names if len(names) == values.shape[1] else [str(number) for number in range(values.shape[1])]
    return {"name": name, "names": list(kept), "values": [_numbers(column, every) for column in values.T]}


def _numbers(values: Array, every: int) -> list[float | None]:
    """Short, and what is not finite as nothing: JSON knows no NaN."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values[::every].tolist()]


def _said(one: Said) -> Mapping[str, Any]:
    label = one.labels
    return {
        "labeler": label.labeler,
        "version": label.version,
        "word": word(label),
        "confidence": label.confidence,
        "return": float(f"{float(np.nansum(label.rewards)):.4g}"),
        "unix_s": one.unix_ns / 1e9,
        "counts": one.counts,
        "retracted": one.retracted,
        "why": label.why,
    }
