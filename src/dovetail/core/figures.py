"""The figures of a set of episodes: success, cycle time, throughput, interventions, return and the task's metrics.

    scores = [EpisodeScore.of(episode) for episode in episodes]
    performance = Performance.of(scores)
    performance.success, performance.cycle_time_s, performance.per_minute

All times are robot time: steps divided by the control rate. A figure that is not known is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.core.stats import Z_95, Rate
from dovetail.core.types import Episode

__all__ = ["REWARD_TERM", "EpisodeScore", "Mean", "Performance", "Quartiles", "add_metrics", "short"]

REWARD_TERM = (
    "reward/"  # a metric with this prefix is a part of the reward, which the total reward contains already
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeScore:
    """What one episode contributes to the figures."""

    success: bool | None  # None: the environment has no success
    duration_s: float  # 0: unknown
    reset_s: float | None = None  # time of the reset before the episode, by the robot's clock; None: unknown
    interventions: int = 0
    total_reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the task: see `add_metrics`
    prompt: str = ""

    @staticmethod
    def of(episode: Episode) -> EpisodeScore:
        """Score an episode by its outcome and the task's own rewards. Labels play no part."""
        names = episode.segments[0].columns
        rewards = [episode.column(name) for name in names if name.startswith("reward/")]
        return EpisodeScore(
            success=episode.success,
            duration_s=len(episode) / episode.robot.control_hz,
            reset_s=episode.reset_s,
            interventions=episode.num_interventions,
            total_reward=float(sum(np.sum(one, dtype=np.float64) for one in rewards)) if rewards else None,
            metrics=_metrics_of(episode),
            prompt=episode.prompt,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quartiles:
    """Median and quartiles, interpolated linearly between values."""

    median: float
    low: float  # a quarter of the values are smaller
    high: float  # a quarter of the values are larger
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Quartiles | None:
        if not values:
            return None
        low, median, high = (float(value) for value in np.percentile(values, (25, 50, 75)))
        return Quartiles(median=median, low=low, high=high, count=len(values))

    def to_json(self) -> dict[str, float | int]:
        return {"median": self.median, "low": self.low, "high": self.high, "count": self.count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """Mean with its 95 % interval (Student's t) and the standard deviation of the values."""

    mean: float
    std: float  # of the sample; 0 for one value
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Mean | None:
        if not values:
            return None
        std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return Mean(mean=float(np.mean(values)), std=std, count=len(values))

    @property
    def low(self) -> float:
        return self.mean - self._margin

    @property
    def high(self) -> float:
        return self.mean + self._margin

    @property
    def _margin(self) -> float:
        """Half of the interval. One value says nothing about the spread: its interval has no width."""
        return _t_95(self.count - 1) * self.std / math.sqrt(self.count) if self.count > 1 else 0.0

    def to_json(self) -> dict[str, float | int]:
        return {"mean": self.mean, "low": self.low, "high": self.high, "std": self.std, "count": self.count}

    def __str__(self) -> str:
        return f"{short(self.mean)} [{short(self.low)}, {short(self.high)}] of {self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """The figures of a policy over some episodes. `Performance.of` computes them."""

    num_episodes: int
    success: Rate | None  # None: the environment has no success
    cycle_time_s: Quartiles | None = None  # time to success; None: no episode succeeded
    per_minute: float | None = None  # throughput: successes per robot minute
    per_minute_with_resets: float | None = None  # throughput if the time of the resets counts too
    interventions_per_minute: float | None = None
    returns: Mean | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  # means over the episodes that have them
    by_prompt: Mapping[str, Performance] = field(default_factory=dict)  # empty unless there are several prompts

    @staticmethod
    def of(scores: Sequence[EpisodeScore]) -> Performance:
        """Compute the figures. At least one episode is needed."""
        if not scores:
            raise ValueError("figures need at least one episode")
        judged = any(one.success is not None for one in scores)  # then an episode without success is not a success
        solved = [one.duration_s for one in scores if one.success]
        known = [duration_s for duration_s in solved if duration_s > 0.0]
        minutes = sum(one.duration_s for one in scores) / 60.0
        resets = [one.reset_s for one in scores if one.reset_s is not None]
        reset_minutes = sum(resets) / 60.0 if len(resets) == len(scores) else None
        with_resets = None if reset_minutes is None else minutes + reset_minutes
        return Performance(
            num_episodes=len(scores),
            success=Rate(successes=len(solved), episodes=len(scores)) if judged else None,
            cycle_time_s=Quartiles.of(known),
            per_minute=_per(len(solved), minutes) if judged else None,
            per_minute_with_resets=_per(len(solved), with_resets) if judged else None,
            interventions_per_minute=_per(sum(one.interventions for one in scores), minutes),
            returns=Mean.of([one.total_reward for one in scores if one.total_reward is not None]),
            metrics=_mean_metrics(scores),
            by_prompt=_by_prompt(scores),
        )

    @property
    def main(self) -> Rate | Mean | None:
        """The figure that decides: success where there is one, otherwise the return."""
        return self.success or self.returns

    @property
    def value(self) -> float | None:
        """The main figure as one number: the success rate or the mean return. More is better."""
        main = self.main
        return main.rate if isinstance(main, Rate) else main.mean if main else None

    @property
    def headline(self) -> str:
        """The main figure with its 95 % interval."""
        main = self.main
        if main is None:
            return f"no figures of {self.num_episodes}"
        return f"{main}" if isinstance(main, Rate) else f"return {main}"

    @property
    def details(self) -> str:
        """The other known figures, in words; empty for an evaluation of 0.6."""
        cycle, per_minute, with_resets = self.cycle_time_s, self.per_minute, self.per_minute_with_resets
        parts = []
        if cycle is not None:
            spread = "one success" if cycle.count == 1 else f"{cycle.low:.1f} to {cycle.high:.1f}"
            parts.append(f"cycle time {cycle.median:.1f} s ({spread})")
        if per_minute is not None:
            both = "" if with_resets is None else f" ({with_resets:.1f} with resets)"
            parts.append(f"{per_minute:.1f} successes per minute{both}")
        if self.interventions_per_minute:
            parts.append(f"{self.interventions_per_minute:.1f} interventions per minute")
        if self.returns is not None and self.success is not None:
            parts.append(f"return {short(self.returns.mean)}")
        return ", ".join(parts)

    def __str__(self) -> str:
        return f"{self.headline}, {self.details}" if self.details else self.headline

    def to_json(self) -> dict[str, Any]:
        """`from_json` reads it. Success has the keys that evaluations have had since 0.1; null: no success."""
        success = self.success
        rate = success.to_json() if success else dict.fromkeys(("rate", "low", "high"))
        return {
            "successes": success.successes if success else None,
            **rate,
            "episodes": self.num_episodes,
            "cycle_time_s": self.cycle_time_s.to_json() if self.cycle_time_s else None,
            "per_minute": self.per_minute,
            "per_minute_with_resets": self.per_minute_with_resets,
            "interventions_per_minute": self.interventions_per_minute,
            "return": self.returns.to_json() if self.returns else None,
            "metrics": dict(self.metrics),
            **(
                {"by_prompt": {text: of.to_json() for text, of in self.by_prompt.items()}}
                if self.by_prompt
                else {}
            ),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Performance:
        """From the output of `to_json`, or from an evaluation of 0.6, which has the success rate only."""
        episodes, cycle, returns = data["episodes"], data.get("cycle_time_s"), data.get("return")
        successes = data.get("successes")
        if successes is None and data.get("rate") is not None:  # an event of 0.6
            successes = round(data["rate"] * episodes)
        return Performance(
            num_episodes=episodes,
            success=None if successes is None else Rate(successes=successes, episodes=episodes),
            cycle_time_s=Quartiles(**cycle) if cycle else None,
            per_minute=data.get("per_minute"),
            per_minute_with_resets=data.get("per_minute_with_resets"),
            interventions_per_minute=data.get("interventions_per_minute"),
            returns=Mean(mean=returns["mean"], std=returns["std"], count=returns["count"]) if returns else None,
            metrics=data.get("metrics") or {},
            by_prompt={text: Performance.from_json(of) for text, of in data.get("by_prompt", {}).items()},
        )


def short(value: float) -> str:
    """A number with three significant digits, without an exponent for usual sizes. A rounding error of 0 is 0.00."""
    if 0.0 < abs(value) < 1e-6:
        return "0.00"
    if value == 0.0 or not math.isfinite(value) or not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def add_metrics(figures: dict[str, float], metrics: Mapping[str, float]) -> None:
    """Add the metrics of the next step to those of an episode: the sum of a part of the reward, else the last value.

    NaN is a value that the task did not measure in this step.
    """
    for name, value in metrics.items():
        if not math.isnan(value):
            figures[name] = float(value) + (figures.get(name, 0.0) if name.startswith(REWARD_TERM) else 0.0)


def _metrics_of(episode: Episode) -> dict[str, float]:
    figures: dict[str, float] = {}
    for column in episode.segments[0].columns:
        if column.startswith("metric/"):
            name, values = column.removeprefix("metric/"), episode.column(column)
            known = values[~np.isnan(values)]
            if len(known):
                total = np.sum(known, dtype=np.float64) if name.startswith(REWARD_TERM) else known[-1]
                figures[name] = float(total)
    return figures


def _per(count: int, minutes: float | None) -> float | None:
    return count / minutes if minutes else None


def _mean_metrics(scores: Sequence[EpisodeScore]) -> dict[str, float]:
    names = dict.fromkeys(name for one in scores for name in one.metrics)
    return {name: float(np.mean([one.metrics[name] for one in scores if name in one.metrics])) for name in names}


def _by_prompt(scores: Sequence[EpisodeScore]) -> dict[str, Performance]:
    prompts = sorted({one.prompt for one in scores})
    if len(prompts) < 2:
        return {}
    return {prompt: Performance.of([one for one in scores if one.prompt == prompt]) for prompt in prompts}


def _t_95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: Cornish-Fisher expansion, within 0.2 %."""
    if freedom <= 2:
        return (12.706204736, 4.302652730)[freedom - 1]
    z = Z_95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** (power + 1) for power, term in enumerate(terms))
