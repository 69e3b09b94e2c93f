"""Changes of the prompt as JSON: [[step, prompt], ...]. A file may come from an untrusted source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.core.errors import UsageError
from dovetail.core.prompts import check_prompt_changes
from dovetail.core.types import PromptChange

__all__ = ["changes_from_json", "changes_to_json"]


def changes_to_json(changes: Sequence[PromptChange]) -> list[list[Any]]:
    return [[int(change.step), change.prompt] for change in changes]


def changes_from_json(data: Any, *, first: int = 0, num_steps: int) -> tuple[PromptChange, ...]:
    """Raise ValueError unless these are few changes with short prompts, in order, at these steps of an episode."""
    if not isinstance(data, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and isinstance(pair[1], str)
        for pair in data
    ):
        raise ValueError("prompt_changes should be pairs of a step and a text")
    try:
        changes = tuple(PromptChange(step=step, prompt=prompt) for step, prompt in data)
        check_prompt_changes(changes, first=first, num_steps=num_steps)
    except UsageError as error:
        raise ValueError(str(error)) from error
    return changes
