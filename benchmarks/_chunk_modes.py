"""Trials of chunked acting with a trained flow policy, in simulated time, with delayed inference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dovetail.actor.actors import ActorConfig
from dovetail.config.load import config_hash, load
from dovetail.core.types import Array, Episode, Outcome, WeightSnapshot
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.folder import RunFolder
from dovetail.runs.roles.robot import evaluation_episodes
from dovetail.runtime.inline import InlineRun
from dovetail.weights.store import DiskWeightStore

__all__ = ["MODES", "Paired", "Trial", "paired_difference", "run_trials", "trained_flow"]

_SHORT_RUN = ("run.untrained_episodes=0", "run.eval_episodes=1", "run.video_episodes=0")

MODES = {  # name -> actor type, Jacobian of the guidance
    "sequential": ("sequential", "vjp"),
    "naive": ("naive", "vjp"),
    "rtc": ("rtc", "vjp"),
    "rtc, identity": ("rtc", "identity"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One episode. Jumps and jerks are those of the commanded action, as a share of its range, without grippers."""

    success: bool
    seconds: float
    largest_jump: float  # between the last tick of a chunk and the first of the next
    mean_jump: float
    mean_jerk: float  # second difference at the same ticks


def trained_flow(recipe: str, *, cache: Path) -> WeightSnapshot:
    """Train the policy of a recipe as `dovetail run` does. The run stays in `cache`; an interrupted one is resumed."""
    settings = load([recipe], _SHORT_RUN)
    path = cache / f"{recipe}-{config_hash(settings)}"
    folder = RunFolder.open(path, expect=settings) if path.exists() else RunFolder.create(path, settings)
    if folder.read_json("evaluations/after.json") is None:
        folder.lock()
        InlineRun(folder).run()
    snapshot = DiskWeightStore(folder.weights).latest()
    assert snapshot is not None, "an evaluated run has published weights"
    return snapshot


def run_trials(
    recipe: str, mode: str, delay: int, snapshot: WeightSnapshot, *, num_resets: int, seed: int
) -> list[Trial]:
    """Run a mode with a recipe's policy and execution horizon; inference takes `delay` ticks."""
    (actor, jacobian), settings = MODES[mode], load([recipe]).actor.config
    assert isinstance(settings, ActorConfig)
    overrides = (
        f"actor={{type: {actor}, execution_horizon: {settings.execution_horizon}, simulated_delay_ticks: {delay}}}",
        f"policy.guidance.jacobian={jacobian}",
        f"run.seed={seed}",
    )
    assembly = build_assembly(load([recipe], overrides))
    try:
        spec = assembly.robot.spec
        low, high = spec.action.bounds
        arm = np.array(["gripper" not in name for name in spec.action.names])
        scale = (high - low)[arm]
        return [
            _trial(episode, arm=arm, scale=scale, control_hz=spec.control_hz)
            for episode in evaluation_episodes(assembly, snapshot, num_episodes=num_resets, config_hash="bench")
        ]
    finally:
        assembly.close()


def _trial(episode: Episode, *, arm: Array, scale: Array, control_hz: float) -> Trial:
    commanded = episode.column("executed")[:, arm] / scale
    chunk = episode.column("chunk_id")  # -1 where the arm held
    borders = 1 + np.flatnonzero(np.diff(chunk))
    # starting from rest is not a border, and a jerk needs one more tick
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
    """The difference of two success rates on the same resets, in percentage points, with its 95 % interval."""

    difference: float
    low: float
    high: float


def paired_difference(one: Sequence[Trial], other: Sequence[Trial]) -> Paired:
    """`one` minus `other`. Only resets with different outcomes contribute to the interval (McNemar)."""
    n = len(one)
    gained = sum(a.success and not b.success for a, b in zip(one, other, strict=True))
    lost = sum(b.success and not a.success for a, b in zip(one, other, strict=True))
    difference = (gained - lost) / n
    error = 1.96 * math.sqrt(max(gained + lost - (gained - lost) ** 2 / n, 1.0)) / n
    return Paired(difference=100 * difference, low=100 * (difference - error), high=100 * (difference + error))
