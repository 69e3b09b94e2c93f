"""The prompt of an episode, for tasks with several."""

from __future__ import annotations

from dovetail.core.abilities import DrawsPrompt
from dovetail.core.contracts import Task
from dovetail.core.streams import stream
from dovetail.core.types import EpisodeOrder

__all__ = ["prepare_prompt"]


def prepare_prompt(task: Task, order: EpisodeOrder) -> None:
    """Let the task choose the prompt of this episode. Every process that holds the task gets the same one."""
    if isinstance(task, DrawsPrompt):
        task.draw_prompt(rng=stream(order.seed, f"{order.purpose}/prompt", order.index))
