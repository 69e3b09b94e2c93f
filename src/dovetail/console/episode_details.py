"""An episode as a page shows it: its summary, labels and curves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.console.episode_labels import EpisodeLabels
from dovetail.console.recorded_episodes import RecordedEpisodes
from dovetail.core.types import Array, Episode, Labels, Source
from dovetail.episodes.log import EpisodeInfo

if TYPE_CHECKING:
    from dovetail.labels._label_file import LabelRecord

__all__ = ["details", "summary_row", "verdict"]

_MAX_POINTS = 2000  # of a curve: more than a screen is wide
_MAX_CURVES = 32  # of one observation; longer vectors are not shown
_OBSERVATION = "observation/"


def summary_row(info: EpisodeInfo, label: Labels | None) -> dict[str, Any]:
    """One row of the list of episodes."""
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
        "label": None if label is None else verdict(label),
        "labeler": None if label is None else label.labeler,
        "confidence": None if label is None else label.confidence,
    }


def verdict(label: Labels) -> str:
    if label.discard:
        return "discard"
    return "success" if label.success else "failure"


def details(episodes: RecordedEpisodes, labels: EpisodeLabels, episode_id: str) -> dict[str, Any]:
    """All that the player needs except the images."""
    info = episodes.summary(episode_id)
    episode = episodes.steps(episode_id)
    current = labels.current(episode_id)
    every = max(1, -(-len(episode) // _MAX_POINTS))
    return {
        **summary_row(info, current),
        "prompt_changes": [{"step": change.step, "prompt": change.prompt} for change in info.prompt_changes],
        "hz": info.robot.control_hz,
        "cameras": [{"name": name, "num_frames": num} for name, num in episodes.cameras(episode_id).items()],
        "every": every,
        "control": _control(episode),
        "rewards": _rewards(episode, current, every),
        "curves": _curves(episode, every),
        "labels": [_label(record, counts=counts) for record, counts in labels.history(episode_id)],
    }


def _control(episode: Episode) -> list[list[Any]]:
    """Spans of steps with the same source of actions: [first, last, "human" or "policy"]."""
    source = episode.column("source")
    if len(source) == 0:
        return []
    cuts = [0, *(np.flatnonzero(np.diff(source)) + 1).tolist(), len(source)]
    return [
        [first, end - 1, "human" if source[first] == Source.HUMAN else "policy"]
        for first, end in itertools.pairwise(cuts)
    ]


def _rewards(episode: Episode, current: Labels | None, every: int) -> dict[str, Any]:
    """Rewards of the task, and of the labels that count."""
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
    shown = names if len(names) == values.shape[1] else [str(number) for number in range(values.shape[1])]
    return {"name": name, "names": list(shown), "values": [_numbers(column, every) for column in values.T]}


def _numbers(values: Array, every: int) -> list[float | None]:
    """Rounded; NaN and infinity become None, because JSON has neither."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values[::every].tolist()]


def _label(record: LabelRecord, *, counts: bool) -> Mapping[str, Any]:
    label = record.labels
    return {
        "labeler": label.labeler,
        "version": label.version,
        "verdict": verdict(label),
        "confidence": label.confidence,
        "return": float(f"{float(np.nansum(label.rewards)):.4g}"),
        "unix_s": record.added_unix_ns / 1e9,
        "counts": counts,
        "retracted": record.retracted,
        "why": label.why,
    }
