"""Conformance suite for labelers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dovetail.core.abilities import ChecksRobot, HasVersion, JudgesObservations, RewardsAtEnd, SlowLabeler
from dovetail.core.contracts import Labeler
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, Labels, Outcome
from dovetail.testing._episodes import random_episode
from dovetail.testing._rig import copied, expect, expect_same

__all__ = ["check_labeler"]


def check_labeler(
    make_labeler: Callable[[], Labeler], *, robot: RobotSpec | None = None, episodes: Sequence[Episode] = ()
) -> None:
    """Label episodes and check the labels and every optional ability of the labeler.

    The default `episodes` are random: a success, a failure and a timeout of `robot`, by default one with a small camera
    `front`. Pass your own if the labeler needs metrics. A labeler that calls a server needs one, or a fake.
    """
    labeler = make_labeler()
    expect(isinstance(labeler, Labeler), f"{type(labeler).__name__} does not implement Labeler: label")
    outcomes = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIMEOUT)
    episodes = episodes or [
        random_episode(number, robot=robot, outcome=one) for number, one in enumerate(outcomes)
    ]
    if isinstance(labeler, ChecksRobot):
        labeler.check(episodes[0].robot)
    labels = [_check_labels(labeler, episode) for episode in episodes]
    for episode, first in zip(episodes, labels, strict=True):
        _expect_equal(first, labeler.label(episode), "label() gave different labels for the same episode")
        _expect_equal(
            first, make_labeler().label(episode), "two labelers with the same config gave different labels"
        )
    if isinstance(labeler, SlowLabeler):
        _check_concurrency(labeler, episodes, labels)
    if isinstance(labeler, JudgesObservations):
        _check_judge(labeler, episodes)


def _check_labels(labeler: Labeler, episode: Episode) -> Labels:
    before = [copied(segment.columns) for segment in episode.segments]
    labels = labeler.label(episode)
    for old, segment in zip(before, episode.segments, strict=True):
        expect_same(old, segment.columns, "label() changed the episode")
    expect(isinstance(labels, Labels), f"label() should return Labels, got {type(labels).__name__}")
    expect(
        labels.episode_id == episode.id, f"labels.episode_id should be '{episode.id}', got '{labels.episode_id}'"
    )
    for name, values in (("rewards", labels.rewards), ("discounts", labels.discounts)):
        _check_column(name, values, episode)
    ones = (labels.discounts[:-1] == 1.0).all() and labels.discounts[-1] in (0.0, 1.0)
    expect(ones, f"labels.discounts should be 1, or 0 at a terminal last step, got {labels.discounts.tolist()}")
    expect(isinstance(labels.success, bool), f"labels.success should be a bool, got {labels.success!r}")
    expect(0.0 <= labels.confidence <= 1.0, f"labels.confidence should be from 0 to 1, got {labels.confidence}")
    expect(labels.labeler, "labels.labeler is empty: it names the source of the labels")
    expect(labels.version, "labels.version is empty: it tells old labels from new ones")
    if isinstance(labeler, HasVersion):
        same = labels.version == labeler.version
        expect(same, f"labels.version is '{labels.version}' but the labeler's version is '{labeler.version}'")
    if isinstance(labeler, RewardsAtEnd) and labeler.rewards_at_the_end:
        expect(
            not labels.rewards[:-1].any(), "rewards_at_the_end is true, but a step before the last has a reward"
        )
    return labels


def _check_column(name: str, values: Array, episode: Episode) -> None:
    expect(isinstance(values, np.ndarray), f"labels.{name} should be a numpy array, got {type(values).__name__}")
    expect(
        values.shape == (len(episode),) and values.dtype == np.float32,
        f"labels.{name} should be float32[{len(episode)}], one per step, got {values.dtype}{list(values.shape)}",
    )
    expect(np.isfinite(values).all(), f"labels.{name} is not finite: {values.tolist()}")
    recorded = (column for segment in episode.segments for column in segment.columns.values())
    shared = any(np.shares_memory(values, column) for column in recorded)
    expect(not shared, f"labels.{name} shares memory with the episode: copy it")


def _check_concurrency(labeler: SlowLabeler, episodes: Sequence[Episode], labels: Sequence[Labels]) -> None:
    limit = labeler.max_concurrent
    expect(isinstance(limit, int) and limit >= 1, f"max_concurrent should be at least 1, got {limit!r}")
    assert isinstance(labeler, Labeler)
    with ThreadPoolExecutor(limit) as pool:
        for first, again in zip(labels, pool.map(labeler.label, episodes), strict=True):
            _expect_equal(first, again, f"labels differ when {limit} threads call label() at once")


def _check_judge(labeler: JudgesObservations, episodes: Sequence[Episode]) -> None:
    for episode in episodes:
        observation = episode.last_observation
        before = copied(observation.values)
        probability = labeler.judge(observation)
        expect_same(before, observation.values, "judge() changed the observation")
        expect(0.0 <= probability <= 1.0, f"judge() should return a probability from 0 to 1, got {probability!r}")
        expect(
            labeler.judge(observation) == probability, "judge() gave different answers for the same observation"
        )


def _expect_equal(first: Labels, second: Labels, message: str) -> None:
    theirs = dataclasses.asdict(second)
    for name, value in dataclasses.asdict(first).items():
        expect(np.array_equal(value, theirs[name]), f"{message}: '{name}' was {value!r}, then {theirs[name]!r}")
