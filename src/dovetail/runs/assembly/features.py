"""Replaces the images of an episode by the features of a frozen encoder. Each distinct frame is encoded once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from dovetail.core.abilities import CachesFeatures
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Episode

__all__ = ["encode_episode", "encoded_robot"]


def encoded_robot(robot: RobotSpec, feature_specs: Mapping[str, ArraySpec]) -> RobotSpec:
    """The robot with features as the observations of its cameras, as the replay stores them."""
    if not feature_specs:
        return robot
    return dataclasses.replace(robot, observation={**robot.observation, **feature_specs})


def encode_episode(episode: Episode, encoder: CachesFeatures) -> Episode:
    """The episode with features instead of images. The log keeps the images."""
    last, segments = episode.last_observation, list(episode.segments)
    values = dict(last.values)
    for key in encoder.feature_specs:
        name = f"observation/{key}"
        frames = np.concatenate((episode.column(name), last.values[key][None]))
        encoded = _each_once(encoder, key, frames)
        values[key] = encoded[-1]
        first = 0
        for number, segment in enumerate(segments):
            columns = {**segment.columns, name: encoded[first : first + len(segment)]}
            segments[number] = dataclasses.replace(segment, columns=columns)
            first += len(segment)
    segments[-1] = dataclasses.replace(segments[-1], last_observation=dataclasses.replace(last, values=values))
    robot = encoded_robot(episode.robot, encoder.feature_specs)
    return dataclasses.replace(episode, robot=robot, segments=tuple(segments))


def _each_once(encoder: CachesFeatures, key: str, frames: Array) -> Array:
    """Encode each run of equal frames once: a camera may be slower than the control loop, or the arm may stand still."""
    flat = frames.reshape(len(frames), -1)
    fresh = np.concatenate(([True], (flat[1:] != flat[:-1]).any(axis=1)))
    encoded: Array = encoder.encode(key, frames[fresh])[np.cumsum(fresh) - 1]
    return encoded
