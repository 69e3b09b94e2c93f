"""A policy on recorded observations, without a robot: its chunks next to the recorded actions, and the errors.

predicted = [predict(policy, episode, ticks=1, every=policy.spec.horizon) for episode in episodes]
errors = OpenLoopErrors.of(predicted, policy.spec)
errors.relative  # [A]; 1.0 is as bad as always giving the mean of the recorded actions
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dovetail.actor.board import Board, BoardLayout
from dovetail.actor.inference import Request, compute_chunk
from dovetail.core.contracts import Policy
from dovetail.core.policy_rate import covering_ticks, nearest_ticks, to_steps
from dovetail.core.poses import nearest_turn
from dovetail.core.specs import PolicySpec
from dovetail.core.types import Array, Episode, Observation, TicksPerStep

__all__ = ["OpenLoopErrors", "Predicted", "predict"]

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The chunks of a policy on one episode. All count steps of the policy; actions have the robot's units."""

    episode_id: str
    prompt: str
    recorded: Array  # [T, A]
    starts: Array  # [N], the step at which each chunk begins
    chunks: Array  # [N, H, A]

    @property
    def targets(self) -> Array:
        """The recorded actions of each chunk, [N, H, A]. NaN after the end of the episode."""
        steps = self.starts[:, None] + np.arange(self.chunks.shape[1])
        exists = steps < len(self.recorded)
        found = self.recorded[np.minimum(steps, len(self.recorded) - 1)]
        return np.where(exists[..., None], found, np.float32(np.nan))


def predict(
    policy: Policy,
    episode: Episode,
    *,
    ticks: TicksPerStep,
    every: int,
    on_chunk: Callable[[int, int], None] = lambda done, total: None,
) -> Predicted:
    """Give the policy the episode's observations and prompts as an actor does, and ask for a chunk every `every` steps.

    A step of the policy lasts `ticks` ticks of the recording; a chunk begins at the tick nearest to its first step.
    `on_chunk` is called with the number of chunks so far and in all.
    """
    spec, keys = policy.spec, tuple(policy.spec.observation)
    executed = np.asarray(episode.column("executed"), np.float32)
    recorded = to_steps(spec.parts, executed, ticks)
    starts = np.arange(0, len(recorded), every)
    start_ticks = set(nearest_ticks(starts, ticks).tolist())
    board = Board(
        BoardLayout.of(
            episode.robot.with_only(keys),
            extras={},
            horizon=spec.horizon,
            num_rows=covering_ticks(max(spec.history.values(), default=1), ticks) + 1,
            ticks_per_step=ticks,
        )
    )
    columns = {key: episode.column(f"observation/{key}") for key in keys}
    policy.reset()
    first = board.begin(prompt=episode.prompt)
    prompts = {change.step: change.prompt for change in episode.prompt_changes}
    chunks: list[Array] = []
    for tick in range(len(executed)):
        values = {key: column[tick] for key, column in columns.items()}
        row = board.observe(Observation(time_ns=tick, values=values))  # a new time: each frame is new
        if tick in prompts:
            board.change_prompt(row, prompts[tick])
        if tick not in start_ticks:
            continue
        request = Request(
            row=row, first=first, delay=0, horizon=spec.horizon, seed=row, deterministic=True, prefix=None
        )
        chunks.append(compute_chunk(board, policy, request).actions)
        on_chunk(len(chunks), len(starts))
    return Predicted(
        episode_id=episode.id,
        prompt=episode.prompt,
        recorded=recorded,
        starts=starts,
        chunks=np.stack(chunks) if chunks else np.zeros((0, spec.horizon, executed.shape[1]), np.float32),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoopErrors:
    """Errors of predicted actions, in the robot's units. `spread` is the standard deviation of the recorded actions."""

    spread: Numbers  # [A]
    num_compared: npt.NDArray[np.int64]  # [H] actions behind each step
    mae_by_step: Numbers  # [H, A]
    rmse_by_step: Numbers  # [H, A]

    @staticmethod
    def of(predicted: Sequence[Predicted], spec: PolicySpec) -> OpenLoopErrors:
        errors = np.concatenate([_errors(one, spec) for one in predicted])  # [N, H, A], NaN after an episode's end
        exists = np.isfinite(errors[..., 0])
        known = np.where(exists[..., None], errors, 0.0)
        count = exists.sum(axis=0)
        share = 1.0 / np.maximum(count, 1)[:, None]
        empty = np.where(count > 0, 0.0, np.nan)[:, None]  # a chunk longer than every episode
        return OpenLoopErrors(
            spread=np.concatenate([one.recorded for one in predicted]).astype(np.float64).std(axis=0),
            num_compared=count,
            mae_by_step=np.abs(known).sum(axis=0) * share + empty,
            rmse_by_step=np.sqrt((known**2).sum(axis=0) * share) + empty,
        )

    @property
    def mae(self) -> Numbers:
        """Mean absolute error of each axis, over all steps of the chunks, [A]."""
        return self._mean(self.mae_by_step)

    @property
    def rmse(self) -> Numbers:
        """Root mean squared error of each axis, [A]."""
        return np.sqrt(self._mean(self.rmse_by_step**2))

    @property
    def relative(self) -> Numbers:
        """`rmse` divided by `spread`, [A]. NaN for an axis that does not move in the data."""
        return _divided(self.rmse, self.spread)

    @property
    def relative_by_step(self) -> Numbers:
        """[H, A]"""
        return _divided(self.rmse_by_step, self.spread)

    def _mean(self, by_step: Numbers) -> Numbers:
        total = (np.nan_to_num(by_step) * self.num_compared[:, None]).sum(axis=0)
        return np.asarray(total / max(1, int(self.num_compared.sum())))


def _errors(one: Predicted, spec: PolicySpec) -> Numbers:
    """Predicted minus recorded. Rotation vectors of targets are compared as rotations: pi and -pi are the same."""
    targets = one.targets.astype(np.float64)
    first = 0
    for part in spec.parts:
        if part.kind == "ee_target" and part.num_axes == 6:
            turns = slice(first + 3, first + 6)
            for row, step in np.argwhere(np.isfinite(targets[..., first])):
                near = one.chunks[row, step, turns].astype(np.float64)
                targets[row, step, turns] = nearest_turn(targets[row, step, turns], near=near)
        first += part.num_axes
    return np.asarray(one.chunks - targets, np.float64)


def _divided(errors: Numbers, spread: Numbers) -> Numbers:
    moves = spread > 1e-9 * max(1.0, float(spread.max(initial=0.0)))
    return np.asarray(np.where(moves, errors / np.where(moves, spread, 1.0), np.nan))
