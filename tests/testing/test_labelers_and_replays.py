"""check_labeler and check_replay accept the built-in plugins and reject broken ones with a clear line."""

import contextlib
import dataclasses

import numpy as np
import pytest

from dovetail.core.errors import UsageError
from dovetail.core.types import Outcome
from dovetail.labels.outcome import OutcomeConfig, OutcomeLabeler
from dovetail.replay.mapped import MappedReplay
from dovetail.testing import check_labeler, check_replay
from dovetail.testing._episodes import random_episode


@pytest.mark.parametrize(
    "config", [{}, {"dense": True}, {"step_penalty": 0.1}, {"success_reward": 5.0, "failure_reward": -1.0}]
)
def test_outcome_labeler_passes(config):
    check_labeler(lambda: OutcomeLabeler(OutcomeConfig.model_validate(config)))


def test_labeler_passes_on_own_episodes():
    check_labeler(OutcomeLabeler, episodes=[random_episode(7, num_steps=1, judgement=Outcome.FAILURE)])


class ChangedLabels(OutcomeLabeler):
    """Subclasses change single fields of correct labels."""

    def changes(self, episode, labels):
        raise NotImplementedError

    def label(self, episode):
        labels = super().label(episode)
        return dataclasses.replace(labels, **self.changes(episode, labels))


def changing(change):
    return type("Changed", (ChangedLabels,), {"changes": lambda self, episode, labels: change(episode, labels)})


class ChangesEpisode(OutcomeLabeler):
    def label(self, episode):
        episode.segments[0].columns["executed"][0] += 1.0
        return super().label(episode)


class Random(OutcomeLabeler):
    def label(self, episode):
        rewards = np.random.default_rng().normal(size=len(episode)).astype(np.float32)
        return dataclasses.replace(super().label(episode), rewards=rewards)

    rewards_at_the_end = False


class NoThreads(OutcomeLabeler):
    max_concurrent = 0


class JudgesInPercent(OutcomeLabeler):
    def judge(self, observation):
        return 70.0


class RefusesRobot(OutcomeLabeler):
    def check(self, robot):
        raise UsageError("no camera 'wrist'")


class NotALabeler:
    pass


BROKEN_LABELERS = [
    (changing(lambda e, labels: {"episode_id": "other"}), "labels.episode_id should be"),
    (changing(lambda e, labels: {"rewards": labels.rewards[:-1]}), r"labels.rewards should be float32\[6\]"),
    (changing(lambda e, labels: {"rewards": labels.rewards.astype(np.float64)}), "got float64"),
    (changing(lambda e, labels: {"rewards": labels.rewards * np.nan}), "labels.rewards is not finite"),
    (changing(lambda e, labels: {"rewards": labels.rewards + 1.0}), "a step before the last has a reward"),
    (changing(lambda e, labels: {"rewards": e.segments[0].columns["reward/task"]}), "shares memory"),
    (changing(lambda e, labels: {"discounts": labels.discounts * 0.99}), "labels.discounts should be 1"),
    (changing(lambda e, labels: {"success": np.bool_(True)}), "labels.success should be a bool"),
    (changing(lambda e, labels: {"confidence": 1.5}), "labels.confidence should be from 0 to 1"),
    (changing(lambda e, labels: {"labeler": ""}), "labels.labeler is empty"),
    (changing(lambda e, labels: {"version": "x"}), "labels.version is 'x'"),
    (changing(lambda e, labels: {"why": str(np.random.default_rng().random())}), "different labels for the same"),
    (ChangesEpisode, r"label\(\) changed the episode"),
    (Random, "different labels for the same episode"),
    (NoThreads, "max_concurrent should be at least 1"),
    (JudgesInPercent, r"judge\(\) should return a probability"),
    (NotALabeler, "does not implement Labeler"),
]


@pytest.mark.parametrize(("labeler", "message"), BROKEN_LABELERS)
def test_broken_labeler_fails_with_the_reason(labeler, message):
    with pytest.raises(AssertionError, match=message):
        check_labeler(labeler)


def test_labeler_that_needs_other_cameras_names_them():
    with pytest.raises(UsageError, match="no camera 'wrist'"):
        check_labeler(RefusesRobot)


def mapped(folder):
    return MappedReplay(folder=folder)


def test_mapped_replay_passes():
    check_replay(mapped)


class CountsTwice(MappedReplay):
    def size(self, view):
        return 2 * super().size(view)


class Forgets(MappedReplay):
    def was_added(self, episode_id):
        return False


class AcceptsEvaluations(MappedReplay):
    def add(self, episode, labels):
        with contextlib.suppress(UsageError):
            super().add(episode, labels)


class KeepsDropped(MappedReplay):
    def drop(self, episode_id):
        pass


class IgnoresRelabeling(MappedReplay):
    def relabel(self, labels):
        pass


class WrongReward(MappedReplay):
    def sample(self, into, **options):
        super().sample(into, **options)
        into["reward"][...] += 1.0


class IgnoresView(MappedReplay):
    def sample(self, into, *, view, **options):
        super().sample(into, view=dataclasses.replace(view, part="all"), **options)


class UsesItsOwnRandomness(MappedReplay):
    def sample(self, into, *, rng, **options):
        super().sample(into, rng=np.random.default_rng(), **options)


BROKEN_REPLAYS = [
    (CountsTwice, "size"),
    (Forgets, r"was_added\(\) is false for an episode that was added"),
    (AcceptsEvaluations, r"add\(\) accepted an evaluation"),
    (KeepsDropped, r"was_dropped\(\) is false after drop\(\)"),
    (IgnoresRelabeling, "'reward' should be"),
    (WrongReward, "'reward' should be"),
    (IgnoresView, "view 'demo' returned steps of other episodes"),
    (UsesItsOwnRandomness, "different batches for the same rng seed"),
]


@pytest.mark.parametrize(("replay", "message"), BROKEN_REPLAYS)
def test_broken_replay_fails_with_the_reason(replay, message):
    with pytest.raises(AssertionError, match=message):
        check_replay(lambda folder: replay(folder=folder))


def test_object_without_the_contract_is_no_replay():
    with pytest.raises(AssertionError, match="NotALabeler does not implement all of Replay"):
        check_replay(lambda folder: NotALabeler())
