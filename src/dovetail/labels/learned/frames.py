"""Which frames of which episodes show success, and which are kept for finding out how well that is told."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.core.errors import UsageError, did_you_mean
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Episode

__all__ = ["JudgedEpisode", "hold_out", "judged", "observed", "shown"]

YES, NO, UNSURE = 1, 0, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedEpisode:
    """What was seen in an episode of which somebody has said how it ended. `truth` [T + 1] is YES, NO or UNSURE."""

    id: str
    success: bool
    by_person: bool  # who corrects, counts for more
    frames: Mapping[str, Array]  # key -> [T + 1, ...], the last observation included
    truth: Array
    rows: Array  # [T + 1] which of the episode's observations these are, where some were left out


def shown(robot: RobotSpec, *, cameras: Sequence[str], proprio: Sequence[str]) -> dict[str, dict[str, ArraySpec]]:
    """What a robot offers of what is wanted, as `cameras` and `proprio`; no camera named: all it has."""
    there = {key: spec for key, spec in robot.observation.items() if spec.is_image}
    others = {key: spec for key, spec in robot.observation.items() if len(spec.shape) < 2}
    if not there:
        raise UsageError(
            f"robot '{robot.name}' has no camera for a success classifier to look through: record with robot.images"
        )
    for wanted, found, what in ((cameras, there, "camera"), (proprio, others, "low-dimensional observation")):
        for key in wanted:
            if key not in found:
                raise UsageError(f"robot '{robot.name}' has no {what} '{key}'.{did_you_mean(key, found)}")
    return {
        "cameras": {key: there[key] for key in cameras or there},
        "proprio": {key: others[key] for key in proprio},
    }


def observed(episode: Episode, keys: Sequence[str]) -> dict[str, Array]:
    """key -> [T + 1, ...], the last observation included."""
    last = episode.last_observation.values
    return {key: np.concatenate((episode.column(f"observation/{key}"), last[key][None])) for key in keys}


def judged(
    episode: Episode,
    *,
    keys: Sequence[str],
    success: bool,
    rewards: Array | None = None,
    by_person: bool = False,
    positive_frames: int = 2,
    unsure_frames: int = 1,
    most_frames: int = 60,
) -> JudgedEpisode:
    """The last frames of a success show it, and all after the step that earned a whole reward; those just before are
    left out, for nobody has said when it came true. All else shows no success."""
    num_rows = len(episode) + 1
    truth = np.full(num_rows, NO, np.int8)
    if success:
        first = num_rows - positive_frames
        if rewards is not None and len(earned := np.flatnonzero(np.asarray(rewards) >= 1.0)):
            first = min(first, int(earned[0]) + 1)
        first = max(first, 1)  # no episode begins with success
        truth[first:] = YES
        truth[max(0, first - unsure_frames) : first] = UNSURE
    rows = np.arange(num_rows)
    negatives = rows[truth == NO]
    room = max(1, most_frames - int((truth != NO).sum()))
    if len(negatives) > room:  # evenly, the last ones always among them
        negatives = negatives[np.unique(np.linspace(0, len(negatives) - 1, room).round().astype(int))]
    rows = np.sort(np.concatenate([negatives, rows[truth != NO]]))
    frames = {key: values[rows] for key, values in observed(episode, keys).items()}
    return JudgedEpisode(
        id=episode.id, success=success, by_person=by_person, frames=frames, truth=truth[rows], rows=rows
    )


def hold_out(episodes: Sequence[JudgedEpisode], *, share: float) -> tuple[list[int], list[int]]:
    """Places of those to train on, and of those held out: whole episodes, never frames of one on both sides.

    By their ids, so that an episode is on the same side whenever it is met again, whatever came since. Of successes and
    of others there is at least one on each side where there are two.
    """
    train: list[int] = []
    held: list[int] = []
    for success in (True, False):
        places = [place for place, one in enumerate(episodes) if one.success is success]
        places.sort(key=lambda place: _draw(episodes[place].id))
        num_held = sum(_draw(episodes[place].id) < share for place in places)
        num_held = min(max(1, num_held), len(places) - 1) if places else 0
        held += places[:num_held]
        train += places[num_held:]
    return sorted(train), sorted(held)


def _draw(episode_id: str) -> float:
    """From 0 to 1, always the same for an id."""
    return int.from_bytes(hashlib.sha256(episode_id.encode()).digest()[:8], "big") / 2**64
