"""Modes of chunked acting on one trained policy, in simulated time: the same resets for each, answers that take long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dovetail.actor.actors import ActorConfig
from dovetail.config.load import load
from dovetail.core.types import Array, Episode, Outcome, WeightSnapshot
from dovetail.runs.assembly.build import build_station
from dovetail.runs.evaluate import evaluation_episodes

__all__ = ["MODES", "Paired", "Trial", "paired_difference", "run_trials"]

MODES = {  # actor, and the guidance's Jacobian
    "sequential": ("sequential", "vjp"),
    "naive": ("naive", "vjp"),
    "rtc": ("rtc", "vjp"),
    "rtc, identity": ("rtc", "identity"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One episode. Jumps and jerks are of the commanded action, in shares of its range, grippers left out."""

    success: bool
    seconds: float
    largest_jump: float  # between two ticks, the second of which begins another chunk
    mean_jump: float
    mean_jerk: float  # there: the second difference


def run_trials(
    recipe: str, mode: str, delay: int, snapshot: WeightSnapshot, *, num_resets: int, seed: int
) -> list[Trial]:
    """A mode on a recipe's policy, with the recipe's execution horizon, under a delay of so many ticks."""
    (actor, jacobian), settings = MODES[mode], load([recipe]).actor.config
    assert isinstance(settings, ActorConfig)
    overrides = (
        f"actor={{type: {actor}, execution_horizon: {settings.execution_horizon}, simulated_delay_ticks: {delay}}}",
        f"policy.guidance.jacobian={jacobian}",
        f"run.seed={seed}",
    )
    station = build_station(load([recipe], overrides))
    try:
        spec = station.robot.spec
        low, high = spec.action.bounds
        arm = np.array(["gripper" not in name for name in spec.action.names])
        scale = (high - low)[arm]
        return [
            _trial(episode, arm=arm, scale=scale, control_hz=spec.control_hz)
            for episode in evaluation_episodes(station, snapshot, num_episodes=num_resets, config_hash="bench")
        ]
    finally:
        station.close()


def _trial(episode: Episode, *, arm: Array, scale: Array, control_hz: float) -> Trial:
    commanded = episode.column("executed")[:, arm] / scale
    chunk = episode.column("chunk_id")  # -1 where the arm held
    borders = 1 + np.flatnonzero(np.diff(chunk))
    # to start from rest is no border, and the last one needs a tick behind it
    borders = borders[(chunk[borders] != 0) & (borders + 1 < len(commanded))]
    jumps = np.abs(commanded[borders] - commanded[borders - 1]).max(axis=1)
    jerks = np.abs(commanded[borders + 1] - 2 * commanded[borders] + commanded[borders - 1]).max(axis=1)
    return Trial(
        success=episode.outcome is Outcome.SUCCESS,
        seconds=len(episode) / control_hz,
        largest_jump=float(jumps.max(initial=0.0)),
        mean_jump=float(jumps.mean()) if len(jumps) else 0.0,
        mean_jerk=float(jerks.mean()) if len(jerks) else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """A difference of two success rates on the same resets, in points, and its 95 % interval."""

    difference: float
    low: float
    high: float


def paired_difference(one: Sequence[Trial], other: Sequence[Trial]) -> Paired:
    """`one` minus `other`: only resets where they differ tell them apart."""
    n = len(one)
    gained = sum(a.success and not b.success for a, b in zip(one, other, strict=True))
    lost = sum(b.success and not a.success for a, b in zip(one, other, strict=True))
    difference = (gained - lost) / n
    error = 1.96 * math.sqrt(max(gained + lost - (gained - lost) ** 2 / n, 1.0)) / n
    return Paired(difference=100 * difference, low=100 * (difference - error), high=100 * (difference + error))


def to_json(trials: Sequence[Trial]) -> list[dict[str, float]]:
    return [asdict(trial) for trial in trials]
