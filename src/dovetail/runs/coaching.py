"""What the coach is told of a run, gathered from its episodes, its learner and its weights; and where its words go."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from dovetail.core.abilities import CountsSampledActions, HasCanonicalSpace, WrapsCanonicalPolicy
from dovetail.core.contracts import ReplayReader
from dovetail.core.types import (
    Array,
    Episode,
    Labels,
    Purpose,
    SampleRequest,
    Source,
    View,
    WeightSnapshot,
)
from dovetail.learn.batches import rows_to_draw
from dovetail.learn.coach import Coach, EpisodeFacts, Facts, returns_to_go
from dovetail.learn.metrics import MetricsLog
from dovetail.policies.embodiments.canonical_space import CanonicalSpace
from dovetail.policies.normalizer import CLIP
from dovetail.policies.trainable import TrainablePolicy
from dovetail.runs.trusted_outcomes import TrustedOutcomes
from dovetail.runs.advice import BEGUN, OVER, open_advice
from dovetail.runs.experience import EpisodeRecord
from dovetail.runs.folder import RunFolder
from dovetail.runs.rollout_history import RolloutResult
from dovetail.runs.status import RunStatus

__all__ = ["Coaching", "LearnerView", "batch_sources", "settings_of"]

_KEPT = 50  # episodes
_SEEN = 1000  # those that may wait for their labels
_EARLY = 20
_ROLLOUTS = 10
_TIMED = 5  # episodes and their updates

_HANDS = {  # who took the steps of a part of the replay
    "all": ("demo", "human", "policy"),
    "prior": ("demo", "human"),
    "online": ("human", "policy"),
    **{hand: (hand,) for hand in ("demo", "human", "policy")},
}


class LearnerView(Protocol):
    """What is looked at of a learner, wherever it is."""

    @property
    def sample_request(self) -> SampleRequest: ...

    @property
    def num_online_updates(self) -> int: ...

    def owed(self, env_steps: int) -> int: ...


class Coaching:
    """Tell it who has `acted`, `count` every episode that is learned from, say what was `published`, then `look`."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        status: RunStatus,
        metrics: MetricsLog,
        policy: TrainablePolicy,
        real_time: bool,
    ) -> None:
        self._folder, self._status, self._metrics, self._real_time = folder, status, metrics, real_time
        self._settings = settings_of(folder.config.model_dump(mode="json"))
        spec = policy.spec
        sampled = policy.num_drawn if isinstance(policy, CountsSampledActions) else None
        self._num_actions = sampled or spec.horizon * spec.action.shape[0]
        gamma = self._settings.get("algorithm.gamma")
        self._gamma = float(gamma) if isinstance(gamma, (int, float)) else None
        self._coach = Coach(open_advice(folder))
        self._verdicts = TrustedOutcomes(folder)
        self._episodes: deque[tuple[str, EpisodeFacts]] = deque(maxlen=_KEPT)  # by id, where they have one
        self._seen: dict[str, dict[str, Any]] = {}  # by id, what the steps of an episode showed; the oldest first
        self._early: list[float] = []  # human shares
        self._best, self._lowest, self._largest = -math.inf, math.inf, 0.0  # of all that is learned from
        self._normalizer: Mapping[str, Array] = {}
        inner = policy.canonical if isinstance(policy, WrapsCanonicalPolicy) else policy
        self._canonical_space: CanonicalSpace | None = inner.canonical_space if isinstance(inner, HasCanonicalSpace) else None
        self._newest: int | None = None  # published version; none that this process knows of
        self._newest_updates: int | None = None  # it was made after
        self._pinned: int | None = None
        self._act_s: deque[float] = deque(maxlen=_TIMED)
        self._learn_s: deque[float] = deque(maxlen=_TIMED)
        self._lessons: deque[Mapping[str, float]] = deque(maxlen=_ROLLOUTS)
        self._turn_s = time.monotonic()  # when acting last gave way to learning, or the other way round
        status.advice = self._coach.current

    # ---- what happened

    def count(self, known: EpisodeRecord) -> None:
        """A demonstration or an online episode that has labels; of one that an earlier process ran, only what the books
        say."""
        labels, info = known.labels, known.info
        self._verdicts.hear(info)
        if labels is None or labels.discard:
            return
        value = self._weigh(labels) if known.trains else None
        if info.purpose is not Purpose.ONLINE:
            return
        self._keep(
            EpisodeFacts(
                success=labels.success,
                rewarded=_rewarded(labels),
                solved=self._verdicts.solved(known),
                value=value,
                human_share=info.num_human_steps / info.num_steps,
                **self._seen.get(info.id, {}),
            ),
            episode_id=info.id,
        )

    def correct(self, known: EpisodeRecord) -> None:
        """What is said now of an episode that may have been counted before; it is not too long ago, or not at all."""
        labels, episode_id = known.labels, known.info.id
        for place, (counted, facts) in enumerate(self._episodes):
            if counted != episode_id:
                continue
            if labels is None or labels.discard:
                del self._episodes[place]
                return
            value = self._weigh(labels) if known.trains else None
            solved, rewarded = self._verdicts.solved(known), _rewarded(labels)
            again = replace(facts, success=labels.success, rewarded=rewarded, solved=solved, value=value)
            self._episodes[place] = (episode_id, again)
            return
        self.count(known)

    def acted(self, episode: Episode) -> None:
        """An online episode has ended. What only its steps tell is kept until its labels come, however late: by then they
        may be far away, and the weights that were new are old."""
        self._act_s.append(self._turn())
        self._seen[episode.id] = {
            "saturated": _saturated(episode),
            "outside": _outside(episode, self._statistics(episode)),
            "versions_behind": self._behind(episode),
        }
        while len(self._seen) > _SEEN:
            del self._seen[next(iter(self._seen))]

    def published(self, newest: int, served: WeightSnapshot, *, updates: int) -> None:
        """The version that was published last, after so many online updates, and the one that the robot is given."""
        self._newest, self._newest_updates = newest, updates
        self._pinned = served.version if served.version != newest else None
        self._normalizer = served.components.get("normalizer", {})

    # ---- a look

    def look(self, learner: LearnerView, replay: ReplayReader) -> None:
        self._learn_s.append(self._turn())
        status, published = self._status, self._newest_updates
        timed = self._real_time and len(self._act_s) == len(self._learn_s) == _TIMED
        self._tell(
            Facts(
                **self._common(),
                sources=batch_sources(learner.sample_request, replay),
                updates=learner.num_online_updates,
                owed=learner.owed(status.trained_steps),
                unpublished=None if published is None else max(0, learner.num_online_updates - published),
                act_s=sum(self._act_s) if timed else None,
                learn_s=sum(self._learn_s) if timed else None,
                pinned=self._pinned,
                waiting=dict(status.waiting),
            )
        )

    def look_at(self, lesson: RolloutResult) -> None:
        """After a rollout: on-policy learning has no replay, and nobody to help. What one rollout says is mostly noise."""
        self._lessons.append(lesson.metrics)
        varied = lesson.metrics["reward_std"] > 0.0
        ended = (lesson.episodes.get(name, ()) for name in ("success", "at_limit"))
        for success, at_limit, worth in zip(*ended, lesson.returns, strict=True):
            rewarded = bool(success) or varied or worth > 0.0
            self._keep(EpisodeFacts(success=bool(success), rewarded=rewarded, saturated=float(at_limit)))
        # an actor that still waits, or an update that was skipped, says less than others do
        told = {name: [m[name] for m in self._lessons if name in m] for name in lesson.metrics}
        means = {name: sum(values) / len(values) for name, values in told.items()}
        self._tell(Facts(**(self._common() | {"metrics": means}), updates=self._status.updates))

    def _common(self) -> dict[str, Any]:
        status, weighed = self._status, math.isfinite(self._best)
        return {
            "settings": self._settings,
            "num_episodes": status.episodes,
            "env_steps": status.env_steps,
            "episodes": tuple(facts for _, facts in self._episodes),
            "early_human": sum(self._early) / _EARLY if len(self._early) == _EARLY else None,
            "metrics": dict(status.metrics),
            "num_actions": self._num_actions,
            "best_value": self._best if weighed else None,
            "lowest_value": self._lowest if weighed else None,
            "largest_reward": self._largest,
        }

    def _tell(self, facts: Facts) -> None:
        look, step = self._coach.check(facts), self._status.env_steps
        self._status.advice = self._coach.current
        for advice in look.begun:
            self._folder.event(BEGUN, env_steps=step, **advice.to_json())
            self._metrics.write_text("coach", f"**{advice.name}**: {advice.message}. Try: {advice.try_}", step=step)
        for advice in look.over:
            self._folder.event(OVER, env_steps=step, name=advice.name)
            self._metrics.write_text("coach", f"**{advice.name}**: over", step=step)
        wrong = {advice.name for advice in self._coach.current}
        self._metrics.write("coach", {name: float(name in wrong) for name in self._coach.names}, step=step)

    # ---- small things

    def _keep(self, facts: EpisodeFacts, *, episode_id: str = "") -> None:
        self._episodes.append((episode_id, facts))
        if len(self._early) < _EARLY:
            self._early.append(facts.human_share)

    def _weigh(self, labels: Labels) -> float | None:
        """What an episode was worth, discounted as the algorithm does."""
        if self._gamma is None:
            return None
        values = returns_to_go(labels.rewards, labels.discounts, self._gamma)
        self._best, self._lowest = max(self._best, values.mean()), min(self._lowest, values.min())
        self._largest = max(self._largest, float(np.abs(labels.rewards).max()))
        return float(values[0])

    def _behind(self, episode: Episode) -> int | None:
        versions = episode.column("policy_version")[episode.column("source") == Source.POLICY]
        newest = self._newest
        return newest - int(versions.max()) if len(versions) and newest is not None else None

    def _statistics(self, episode: Episode) -> Mapping[str, tuple[Array, Array]]:
        """Mean and standard deviation of each observation, by the robot's own names; in a shared policy, its own ones."""
        normalizer, canonical_space = self._normalizer, self._canonical_space
        keys = [name.removeprefix("mean/") for name in normalizer if name.startswith("mean/")]
        if canonical_space is None:
            return {key: (normalizer[f"mean/{key}"], normalizer[f"std/{key}"]) for key in keys}
        arm = canonical_space.arm(episode.robot)
        there = {key: canonical_space.observation_masks[key][arm.index] for key in keys if key in arm.keys}
        return {
            arm.keys[key]: (
                normalizer[f"mean/{key}"][arm.index][real],
                normalizer[f"std/{key}"][arm.index][real],
            )
            for key, real in there.items()
        }

    def _turn(self) -> float:
        before_s, self._turn_s = self._turn_s, time.monotonic()
        return self._turn_s - before_s


def settings_of(plain: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """A config's settings by dotted key, as the command line names them."""
    flat: dict[str, object] = {}
    for name, value in plain.items():
        if isinstance(value, dict) and value:
            flat |= settings_of(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def batch_sources(wants: SampleRequest, replay: ReplayReader) -> dict[str, float]:
    """Share of a batch by whose hand took its steps; nothing where views ask for more than that."""
    held = {hand: replay.size(View(part=hand)) for hand in _HANDS["all"]}
    drawn = dict.fromkeys(held, 0.0)
    for view, num_rows in rows_to_draw(wants, replay):
        if view != View(part=view.part) or view.part not in _HANDS:
            return {}
        hands = _HANDS[view.part]
        for hand in hands:
            drawn[hand] += num_rows * held[hand] / max(1, sum(held[one] for one in hands))
    total = sum(drawn.values())
    return {hand: share / total for hand, share in drawn.items()} if total else {}


def _rewarded(labels: Labels) -> bool:
    """Whether some step was better than the others, or than nothing."""
    return labels.success or bool(labels.rewards.max() > min(0.0, float(np.median(labels.rewards))))


def _saturated(episode: Episode) -> float | None:
    """Of the numbers that the policy proposed."""
    proposed = episode.column("proposed")[episode.column("source") == Source.POLICY]
    return float(episode.robot.action.at_limits(proposed).mean()) if len(proposed) else None


def _outside(episode: Episode, statistics: Mapping[str, tuple[Array, Array]]) -> dict[str, float]:
    """By observation key: the share of its values that normalisation cuts off."""
    outside = {}
    for key, (mean, std) in statistics.items():
        away = np.abs(episode.column(f"observation/{key}") - mean) / std
        outside[key] = float((away >= CLIP).mean())
    return outside
