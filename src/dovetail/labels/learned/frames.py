"""Training examples of a success classifier: labeled frames, and the split into training and held-out episodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.core.errors import UsageError, did_you_mean
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Episode

__all__ = ["LabeledEpisode", "hold_out", "labeled_episode", "observation_arrays", "select_observations"]

YES, NO, UNSURE = 1, 0, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LabeledEpisode:
    """Frames of an episode whose success is known. `truth` [N] is YES, NO or UNSURE."""

    id: str
    success: bool
    by_person: bool  # labeled by a person: has a higher weight
    frames: Mapping[str, Array]  # key -> [N, ...], including the last observation
    truth: Array
    rows: Array  # [N] indices of the frames among the episode's T + 1 observations


def select_observations(
    robot: RobotSpec, *, cameras: Sequence[str], proprio: Sequence[str]
) -> dict[str, dict[str, ArraySpec]]:
    """Return the specs of the given observations as `cameras` and `proprio`; by default all cameras."""
    there = {key: spec for key, spec in robot.observation.items() if spec.is_image}
    others = {key: spec for key, spec in robot.observation.items() if len(spec.shape) < 2}
    if not there:
        raise UsageError(f"robot '{robot.name}' has no camera for a success classifier. Record with robot.images.")
    for wanted, found, what in ((cameras, there, "camera"), (proprio, others, "low-dimensional observation")):
        for key in wanted:
            if key not in found:
                raise UsageError(f"robot '{robot.name}' has no {what} '{key}'.{did_you_mean(key, found)}")
    return {
        "cameras": {key: there[key] for key in cameras or there},
        "proprio": {key: others[key] for key in proprio},
    }


def observation_arrays(episode: Episode, keys: Sequence[str]) -> dict[str, Array]:
    """Return arrays [T + 1, ...] by key, including the last observation."""
    last = episode.last_observation.values
    return {key: np.concatenate((episode.column(f"observation/{key}"), last[key][None])) for key in keys}


def labeled_episode(
    episode: Episode,
    *,
    keys: Sequence[str],
    success: bool,
    rewards: Array | None = None,
    by_person: bool = False,
    positive_frames: int = 2,
    unsure_frames: int = 1,
    most_frames: int = 60,
) -> LabeledEpisode:
    """Label the frames of an episode.

    The last frames of a success, and all frames after a step with a reward of 1 or more, show success. The frames just
    before are unsure, because the exact time of success is unknown. All others show no success.
    """
    num_rows = len(episode) + 1
    truth = np.full(num_rows, NO, np.int8)
    if success:
        first = num_rows - positive_frames
        if rewards is not None and len(earned := np.flatnonzero(np.asarray(rewards) >= 1.0)):
            first = min(first, int(earned[0]) + 1)
        first = max(first, 1)  # no episode starts with success
        truth[first:] = YES
        truth[max(0, first - unsure_frames) : first] = UNSURE
    rows = np.arange(num_rows)
    negatives = rows[truth == NO]
    num_negatives = max(1, most_frames - int((truth != NO).sum()))
    if len(negatives) > num_negatives:  # evenly spaced, including the last one
        negatives = negatives[np.unique(np.linspace(0, len(negatives) - 1, num_negatives).round().astype(int))]
    rows = np.sort(np.concatenate([negatives, rows[truth != NO]]))
    frames = {key: values[rows] for key, values in observation_arrays(episode, keys).items()}
    return LabeledEpisode(
        id=episode.id, success=success, by_person=by_person, frames=frames, truth=truth[rows], rows=rows
    )


def hold_out(episodes: Sequence[LabeledEpisode], *, share: float) -> tuple[list[int], list[int]]:
    """Return the indices of training episodes and of held-out episodes.

    The split depends on the episode ids, so an episode stays on its side when others are added. If there are two successes,
    each side has one; the same holds for failures.
    """
    train: list[int] = []
    held: list[int] = []
    for success in (True, False):
        places = [place for place, one in enumerate(episodes) if one.success is success]
        places.sort(key=lambda place: _hash_to_unit_interval(episodes[place].id))
        num_held = sum(_hash_to_unit_interval(episodes[place].id) < share for place in places)
        num_held = min(max(1, num_held), len(places) - 1) if places else 0
        held += places[:num_held]
        train += places[num_held:]
    return sorted(train), sorted(held)


def _hash_to_unit_interval(episode_id: str) -> float:
    """Map an id to a fixed number from 0 to 1."""
    return int.from_bytes(hashlib.sha256(episode_id.encode()).digest()[:8], "big") / 2**64
