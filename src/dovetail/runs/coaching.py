"""Collects facts for the coach from episodes, learner and weights, and writes its advice to events and metrics."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dovetail.config.load import SAVED_NAME, load
from dovetail.core.abilities import CountsSampledActions, HasCanonicalSpace, WrapsCanonicalPolicy
from dovetail.core.contracts import ReplayReader
from dovetail.core.errors import DovetailError
from dovetail.core.types import (
    Array,
    Episode,
    Labels,
    Outcome,
    Purpose,
    SampleRequest,
    Source,
    View,
    WeightSnapshot,
)
from dovetail.learn.batches import rows_to_draw
from dovetail.learn.coach import FEW, Coach, CoachResult, EpisodeFacts, Facts, Offers, returns_to_go
from dovetail.learn.metrics import MetricsLog
from dovetail.policies.embodiments.canonical_space import CanonicalSpace
from dovetail.policies.trainable import TrainablePolicy
from dovetail.runs.advice import BEGUN, OVER, open_advice
from dovetail.runs.demo_facts import DemoCollection
from dovetail.runs.experience import EpisodeRecord
from dovetail.runs.folder import RunFolder
from dovetail.runs.rollout_history import RolloutResult
from dovetail.runs.status import RunStatus
from dovetail.runs.step_facts import StepFacts
from dovetail.runs.trusted_outcomes import TrustedOutcomes

__all__ = ["Coaching", "LearnerView", "batch_sources", "settings_of"]

_NUM_EPISODES = 50  # that the coach sees
_NUM_PENDING = 1000  # episodes whose step facts are kept until their labels come
_NUM_EARLY = 20
_NUM_ROLLOUTS = 10
_NUM_TIMED = 5  # episodes and their updates

_SOURCES = {  # who controlled the arm in the steps of a part of the replay
    "all": ("demo", "human", "policy"),
    "prior": ("demo", "human"),
    "online": ("human", "policy"),
    **{source: (source,) for source in ("demo", "human", "policy")},
}


class LearnerView(Protocol):
    """The learner's figures that the coach reads. The learner may be in another process."""

    @property
    def sample_request(self) -> SampleRequest: ...

    @property
    def num_online_updates(self) -> int: ...

    def owed(self, env_steps: int) -> int: ...


class Coaching:
    """Call `acted` and `count` for each episode and `published` for weights; then `check` asks the coach."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        status: RunStatus,
        metrics: MetricsLog,
        policy: TrainablePolicy,
        real_time: bool,
        offers: Offers | None = None,
    ) -> None:
        self._folder, self._status, self._metrics, self._real_time = folder, status, metrics, real_time
        self._settings = settings_of(folder.config.model_dump(mode="json"))
        spec = policy.spec
        sampled = policy.num_drawn if isinstance(policy, CountsSampledActions) else None
        self._num_actions = sampled or spec.horizon * spec.action.shape[0]
        gamma = self._settings.get("algorithm.gamma")
        self._gamma = float(gamma) if isinstance(gamma, (int, float)) else None
        self._coach = Coach(open_advice(folder), is_valid=self._is_valid)
        self._offers = offers or Offers()
        self._demos = DemoCollection(self._offers.inputs)
        self._outcomes = TrustedOutcomes(folder)
        self._episodes: deque[tuple[str, EpisodeFacts]] = deque(maxlen=_NUM_EPISODES)  # with their ids
        self._step_facts: dict[str, StepFacts] = {}  # by episode id; the oldest first
        self._early_human: list[float] = []  # human shares of the first episodes
        self._early_totals: list[float] = []  # their returns
        # of episodes in the replay
        self._best, self._lowest, self._highest, self._largest = -math.inf, math.inf, -math.inf, 0.0
        self._normalizer: Mapping[str, Array] = {}
        inner = policy.canonical if isinstance(policy, WrapsCanonicalPolicy) else policy
        self._canonical_space: CanonicalSpace | None = (
            inner.canonical_space if isinstance(inner, HasCanonicalSpace) else None
        )
        self._newest: int | None = None  # version that this process published last
        self._newest_updates: int | None = None  # its number of online updates
        self._pinned: int | None = None
        self._act_s: deque[float] = deque(maxlen=_NUM_TIMED)
        self._learn_s: deque[float] = deque(maxlen=_NUM_TIMED)
        self._rollouts: deque[Mapping[str, float]] = deque(maxlen=_NUM_ROLLOUTS)
        self._switched_s = time.monotonic()  # between acting and learning
        status.advice = self._coach.current

    # ---- events

    def count(self, record: EpisodeRecord) -> None:
        """Add a demonstration or online episode. Without labels, only its outcome is used."""
        labels, info = record.labels, record.info
        self._outcomes.add(info)
        if labels is None or labels.discard:
            return
        value = self._discounted_return(labels) if record.trains else None
        if info.purpose is not Purpose.ONLINE:
            return
        steps = self._step_facts.get(info.id, StepFacts())
        self._keep(
            EpisodeFacts(
                success=labels.success,
                rewarded=_rewarded(labels),
                solved=self._outcomes.solved(record),
                timeout=info.outcome is Outcome.TIMEOUT,
                failed=info.outcome is Outcome.FAILURE,
                total=float(labels.rewards.sum()),
                value=value,
                human_share=info.num_human_steps / info.num_steps,
                **steps.for_labels(labels),
            ),
            episode_id=info.id,
        )

    def correct(self, record: EpisodeRecord) -> None:
        """Apply new labels of an episode that may have been counted before."""
        labels, episode_id = record.labels, record.info.id
        for place, (counted, facts) in enumerate(self._episodes):
            if counted != episode_id:
                continue
            if labels is None or labels.discard:
                del self._episodes[place]
                return
            value = self._discounted_return(labels) if record.trains else None
            solved, rewarded = self._outcomes.solved(record), _rewarded(labels)
            again = replace(facts, success=labels.success, rewarded=rewarded, solved=solved, value=value)
            again = replace(again, total=float(labels.rewards.sum()))
            self._episodes[place] = (episode_id, again)
            return
        self.count(record)

    def acted(self, episode: Episode) -> None:
        """Note the end of an online episode. Facts from its steps are kept until its labels come."""
        self._act_s.append(self._since_switch())
        self._step_facts[episode.id] = StepFacts.of(
            episode, statistics=self._statistics(episode), versions_behind=self._behind(episode)
        )
        while len(self._step_facts) > _NUM_PENDING:
            del self._step_facts[next(iter(self._step_facts))]

    def demonstrated(self, episode: Episode) -> None:
        """Note a demonstration that trains."""
        self._demos.add(episode)

    def published(self, newest: int, served: WeightSnapshot, *, updates: int) -> None:
        """Note the newest version, its number of online updates, and the version that the robot acts with."""
        self._newest, self._newest_updates = newest, updates
        self._pinned = served.version if served.version != newest else None
        self._normalizer = served.components.get("normalizer", {})

    # ---- checks

    def check(self, learner: LearnerView, replay: ReplayReader) -> None:
        self._learn_s.append(self._since_switch())
        status, published = self._status, self._newest_updates
        timed = self._real_time and len(self._act_s) == len(self._learn_s) == _NUM_TIMED
        self._ask(
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

    def check_rollout(self, result: RolloutResult) -> None:
        """Check on-policy learning, which has no replay and no operator. A single rollout is noisy, so metrics are means."""
        self._rollouts.append(result.metrics)
        varied = result.metrics["reward_std"] > 0.0
        ended = (result.episodes.get(name, ()) for name in ("success", "at_limit"))
        for success, at_limit, total in zip(*ended, result.returns, strict=True):
            solved = bool(success) and not math.isnan(success)  # NaN: the task does not detect success
            self._keep(
                EpisodeFacts(
                    success=solved,
                    rewarded=solved or varied or bool(total > 0.0),
                    total=float(total),
                    saturated=float(at_limit),
                )
            )
        # a skipped update, or one without an actor step, has fewer metrics
        values = {name: [m[name] for m in self._rollouts if name in m] for name in result.metrics}
        means = {name: sum(each) / len(each) for name, each in values.items()}
        self._ask(Facts(**(self._common() | {"metrics": means}), updates=self._status.updates))

    def conclude(self, num_successes: int | None) -> None:
        """The last check of a run. A policy without a success in the last evaluation gets advice. If there was none, a
        policy that never succeeded alone online does."""
        facts = Facts(**self._common())
        failed = not facts.num_alone if num_successes is None else num_successes == 0
        if facts.offers.success and failed:
            result = self._coach.conclude(facts)
            if result.begun:
                self._report(result)

    def _common(self) -> dict[str, Any]:
        status, has_values = self._status, math.isfinite(self._best)
        return {
            "settings": self._settings,
            "run": str(self._folder.path),
            "next_name": _next_name(self._folder.path),
            "offers": replace(self._offers, success=status.has_success is not False),
            "demos": self._demos.facts(explain=self._may_lack_information()),
            "early_totals": tuple(self._early_totals) if len(self._early_totals) == _NUM_EARLY else (),
            "num_successes": sum(one == 1.0 for one in status.recent_success),
            "num_alone": sum(
                one == 1.0 and not share
                for one, share in zip(status.recent_success, status.recent_human, strict=True)
            ),
            "num_episodes": status.episodes,
            "env_steps": status.env_steps,
            "episodes": tuple(facts for _, facts in self._episodes),
            "early_human": sum(self._early_human) / _NUM_EARLY if len(self._early_human) == _NUM_EARLY else None,
            "metrics": dict(status.metrics),
            "num_actions": self._num_actions,
            "best_value": self._best if has_values else None,
            "lowest_value": self._lowest if has_values else None,
            "highest_value": self._highest if has_values else None,
            "largest_reward": self._largest,
        }

    def _ask(self, facts: Facts) -> None:
        self._report(self._coach.check(facts))

    def _report(self, result: CoachResult) -> None:
        step = self._status.env_steps
        self._status.advice = self._coach.current
        for advice in result.begun:
            self._folder.event(BEGUN, env_steps=step, **advice.to_json())
            text = f"**{advice.name}**: {advice.message}. Try: `{advice.command}`"
            self._metrics.write_text("coach", text, step=step)
        for advice in result.over:
            self._folder.event(OVER, env_steps=step, name=advice.name)
            self._metrics.write_text("coach", f"**{advice.name}**: over", step=step)
        current = {advice.name for advice in self._coach.current}
        self._metrics.write("coach", {name: float(name in current) for name in self._coach.names}, step=step)

    # ---- helpers

    def _keep(self, facts: EpisodeFacts, *, episode_id: str = "") -> None:
        self._episodes.append((episode_id, facts))
        if len(self._early_human) < _NUM_EARLY:
            self._early_human.append(facts.human_share)
        if len(self._early_totals) < _NUM_EARLY and facts.total is not None:
            self._early_totals.append(facts.total)

    def _may_lack_information(self) -> bool:
        """Whether to spend the time to compare the information in observations: not in a run that goes well."""
        latest = [facts.success for _, facts in self._episodes][-2 * FEW :]
        return len(latest) >= FEW and sum(latest) < 0.75 * len(latest)

    def _is_valid(self, overrides: Sequence[str]) -> bool:
        """Whether the run's config accepts these settings."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # renamed keys
                load([self._folder.path / SAVED_NAME], overrides)
        except DovetailError:
            return False
        return True

    def _discounted_return(self, labels: Labels) -> float | None:
        """The return of an episode with the algorithm's gamma; also updates the extremes."""
        if self._gamma is None:
            return None
        values = returns_to_go(labels.rewards, labels.discounts, self._gamma)
        self._best, self._lowest = max(self._best, values.mean()), min(self._lowest, values.min())
        self._highest = max(self._highest, values.max())
        self._largest = max(self._largest, float(np.abs(labels.rewards).max()))
        return float(values[0])

    def _behind(self, episode: Episode) -> int | None:
        versions = episode.column("policy_version")[episode.column("source") == Source.POLICY]
        newest = self._newest
        return newest - int(versions.max()) if len(versions) and newest is not None else None

    def _statistics(self, episode: Episode) -> Mapping[str, tuple[Array, Array]]:
        """Mean and standard deviation of each observation by the robot's own key; in a shared policy, those of its arm."""
        normalizer, canonical_space = self._normalizer, self._canonical_space
        keys = [name.removeprefix("mean/") for name in normalizer if name.startswith("mean/")]
        if canonical_space is None:
            # act and diffusion also keep statistics of actions, images and a checkpoint's whole state
            seen = {key for key, spec in episode.robot.observation.items() if not spec.is_picture}
            return {key: (normalizer[f"mean/{key}"], normalizer[f"std/{key}"]) for key in keys if key in seen}
        arm = canonical_space.arm(episode.robot)
        there = {key: canonical_space.observation_masks[key][arm.index] for key in keys if key in arm.keys}
        return {
            arm.keys[key]: (
                normalizer[f"mean/{key}"][arm.index][real],
                normalizer[f"std/{key}"][arm.index][real],
            )
            for key, real in there.items()
        }

    def _since_switch(self) -> float:
        before_s, self._switched_s = self._switched_s, time.monotonic()
        return self._switched_s - before_s


def _next_name(path: Path) -> str:
    """The name of a run after this one, with the next free number: `first-2` after `first`."""
    numbered = re.fullmatch(r"(.+)-(\d{1,3})", path.name)  # longer: the time in a generated name
    base, number = (numbered[1], int(numbered[2]) + 1) if numbered else (path.name, 2)
    while (path.parent / f"{base}-{number}").exists():
        number += 1
    return f"{base}-{number}"


def settings_of(plain: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """A config's settings by dotted key, as the command line names them."""
    flat: dict[str, object] = {}
    for name, value in plain.items():
        if isinstance(value, dict) and value:
            flat |= settings_of(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def batch_sources(request: SampleRequest, replay: ReplayReader) -> dict[str, float]:
    """Share of each source of steps in a batch; empty if the views select by more than their source."""
    held = {source: replay.size(View(part=source)) for source in _SOURCES["all"]}
    drawn = dict.fromkeys(held, 0.0)
    for view, num_rows in rows_to_draw(request, replay):
        if view != View(part=view.part) or view.part not in _SOURCES:
            return {}
        sources = _SOURCES[view.part]
        for source in sources:
            drawn[source] += num_rows * held[source] / max(1, sum(held[one] for one in sources))
    total = sum(drawn.values())
    return {source: share / total for source, share in drawn.items()} if total else {}


def _rewarded(labels: Labels) -> bool:
    """Whether a step had a reward above the median of the episode, or above zero."""
    return labels.success or bool(labels.rewards.max() > min(0.0, float(np.median(labels.rewards))))
