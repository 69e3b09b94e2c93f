"""The prompt at the start of an episode and at each step, for tasks with several."""

from __future__ import annotations

from dovetail.core.abilities import ChangesPrompt, DrawsPrompt
from dovetail.core.contracts import Task
from dovetail.core.streams import stream
from dovetail.core.types import EpisodeOrder

__all__ = ["next_prompt", "prepare_prompt"]


def prepare_prompt(task: Task, order: EpisodeOrder) -> None:
    """Let the task choose the prompt of this episode. Every process that holds the task gets the same one."""
    if isinstance(task, DrawsPrompt):
        task.draw_prompt(rng=stream(order.seed, f"{order.purpose}/prompt", order.index))


def next_prompt(task: Task) -> str | None:
    """After `judge`: the prompt of the next step; None if the task has one prompt per episode."""
    return task.stage_prompt if isinstance(task, ChangesPrompt) else None
