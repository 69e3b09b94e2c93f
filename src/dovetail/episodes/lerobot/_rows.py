"""An episode as rows of a dataset: the features for LeRobot, and the additional data for Dovetail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from dovetail.core.disk import parse_json
from dovetail.core.errors import StoreError
from dovetail.core.types import Array, Episode, Labels, Outcome, Purpose, Source
from dovetail.episodes.lerobot._layout import EXPOSED, STATE, Layout, exact_in_float32

__all__ = [
    "episode_facts",
    "features_of",
    "imported",
    "imported_labels",
    "kept_arrays",
    "labels_facts",
    "parse_facts",
    "succeeded",
]

_PLAIN = [field.name for field in fields(Episode) if field.name not in ("robot", "segments")]
IMPORTED = "imported"  # labeler of imported labels
_MAX_CHARS, _MAX_NUMBER = 10_000, 2**63
_OUTCOMES = {"purpose": Purpose, "outcome": Outcome, "judgement": Outcome}


def features_of(episode: Episode, layout: Layout, labels: Labels | None) -> dict[str, Array]:
    """Return columns [T] or [T, D] by feature, without the indices into the dataset."""
    num_steps = len(episode)
    columns = {feature: episode.column(name).reshape(num_steps, -1) for name, (feature, _) in EXPOSED.items()}
    columns = {feature: columns[feature].astype(dtype) for feature, dtype in EXPOSED.values()}
    if layout.state:
        columns[STATE] = np.concatenate([_state(episode, key, layout) for key in layout.state], axis=1)
    rewards, discounts = _rewards(episode, labels)
    last = np.arange(num_steps) == num_steps - 1
    return {
        **columns,
        "next.reward": rewards,
        "next.done": last,
        "next.truncated": last & (discounts > 0),
        "next.success": last & succeeded(episode, labels),
        "complementary_info.is_intervention": episode.column("source") == Source.HUMAN,
        "complementary_info.discount": discounts,
        "timestamp": (np.arange(num_steps) / layout.fps).astype(np.float32),
        "frame_index": np.arange(num_steps),
    }


def succeeded(episode: Episode, labels: Labels | None) -> bool:
    return labels.success if labels is not None else episode.outcome is Outcome.SUCCESS


def _state(episode: Episode, key: str, layout: Layout) -> Array:
    """Return one observation as float32 [T, D]. Values that are rounded are also stored exactly (`kept_arrays`)."""
    spec = layout.robot.observation[key]
    name = f"observation/{key}"
    column = episode.column(name) if name in episode.segments[0].columns else None
    if column is None or column.shape[1:] != spec.shape:
        got = "missing" if column is None else f"{column.dtype}{list(column.shape[1:])}"
        raise StoreError(
            f"episode {episode.id}: observation '{key}' is {got}, but its spec says {spec.describe()}"
        )
    with np.errstate(over="ignore"):
        return column.reshape(len(episode), -1).astype(np.float32)


def _rewards(episode: Episode, labels: Labels | None) -> tuple[Array, Array]:
    """Return rewards and discounts [T]. Without labels, use the task's rewards or 1 for success; timeouts bootstrap."""
    num_steps = len(episode)
    if labels is not None:
        if len(labels.rewards) != num_steps or len(labels.discounts) != num_steps:
            raise StoreError(
                f"labels of episode {episode.id} are for {len(labels.rewards)} steps, but it has {num_steps}"
            )
        return labels.rewards.astype(np.float32), labels.discounts.astype(np.float32)
    rewards = np.zeros(num_steps, np.float32)
    components = [name for name in episode.segments[0].columns if name.startswith("reward/")]
    for name in components:
        rewards += episode.column(name).astype(np.float32)
    if not components:
        rewards[-1] = episode.outcome is Outcome.SUCCESS
    discounts = np.ones(num_steps, np.float32)
    discounts[-1] = episode.outcome in (Outcome.TIMEOUT, Outcome.ABORTED)
    return rewards, discounts


def kept_arrays(episode: Episode, layout: Layout) -> dict[str, Array]:
    """Return every column that no feature holds exactly, and the last observation, which has no row."""
    left_out = {camera.key for camera in layout.cameras} | set(layout.depths) | set(layout.skipped)
    arrays: dict[str, Array] = {}
    for name in episode.segments[0].columns:
        column = episode.column(name)
        if name.removeprefix("observation/") not in left_out and not _held(name, column, layout):
            arrays[f"steps/{name}"] = column
    last = {key: value for key, value in episode.last_observation.values.items() if key not in left_out}
    return {**arrays, **{f"last/{key}": value for key, value in last.items()}}


def _held(name: str, column: Array, layout: Layout) -> bool:
    if name == "source":
        return column.dtype == np.uint8 and bool(np.isin(column, (Source.POLICY, Source.HUMAN)).all())
    if name in EXPOSED:
        plain = column.ndim == (2 if name in ("executed", "proposed") else 1)
        return plain and column.dtype == EXPOSED[name][1]
    key = name.removeprefix("observation/")
    if key == name or key not in layout.state:
        return False
    return column.dtype == layout.robot.observation[key].dtype and exact_in_float32(column.dtype)


def episode_facts(episode: Episode) -> str:
    """Return an episode without its robot and steps, as JSON."""
    facts = {name: getattr(episode, name) for name in _PLAIN}
    return json.dumps({**facts, "last_time_ns": int(episode.last_observation.time_ns)}, default=int)


def parse_facts(text: str) -> tuple[dict[str, Any], int]:
    """Return arguments of `Episode`, and the time of the last observation."""
    try:
        facts = parse_json(text)
        last_time_ns = int(facts.pop("last_time_ns"))
        facts = {name: facts[name] for name in _PLAIN if name in facts}
        for name, kind in _OUTCOMES.items():
            facts[name] = kind(facts[name]) if facts[name] is not None else None
        for name in ("id", "task", "prompt", "operator", "config_hash"):
            if not isinstance(facts[name], str) or len(facts[name]) > _MAX_CHARS:
                raise ValueError(f"{name} should be a text")
        for name in ("seed", "started_unix_ns"):
            if type(facts[name]) is not int or not 0 <= facts[name] < _MAX_NUMBER:
                raise ValueError(f"{name} should be a number")
        if not isinstance(facts.get("boot_id", ""), str) or abs(last_time_ns) >= _MAX_NUMBER:
            raise ValueError("boot_id or last_time_ns is not valid")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the facts of an episode are not valid: {' '.join(str(error).split())[:200]}") from error
    return facts, last_time_ns


def imported_labels(text: str, *, episode_id: str, rewards: Array, discounts: Array) -> Labels:
    """Labels of a dataset. Who gave them is kept as information in `version`."""
    try:
        facts = parse_json(text)
        confidence = float(facts["confidence"])
        if not 0 <= confidence <= 1 or not all(isinstance(facts[name], bool) for name in ("success", "discard")):
            raise ValueError("success, discard or confidence is out of range")
        return Labels(
            episode_id=episode_id,
            rewards=rewards,
            discounts=discounts,
            success=facts["success"],
            confidence=confidence,
            labeler=IMPORTED,
            version=f"{facts['labeler']} {facts['version']}, priority {facts['priority']}"[:200],
            discard=facts["discard"],
            why=str(facts["why"])[:1000],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"a label of the dataset is not valid: {' '.join(str(error).split())[:200]}") from error


def imported(labels: Labels) -> Labels:
    """The same for labels of a run from elsewhere."""
    version = f"{labels.labeler} {labels.version}, priority {labels.priority}"[:200]
    return replace(labels, labeler=IMPORTED, version=version, priority=0)


def labels_facts(labels: Labels | None) -> str | None:
    """Return the labels as JSON, without rewards and discounts, which are features."""
    if labels is None:
        return None
    columns = ("episode_id", "rewards", "discounts")
    facts: Mapping[str, Any] = {f.name: getattr(labels, f.name) for f in fields(Labels) if f.name not in columns}
    return json.dumps(facts, default=lambda value: value.item())
