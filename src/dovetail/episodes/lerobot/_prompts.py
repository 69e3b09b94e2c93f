"""The prompts of the episodes of a dataset: the first one of each, and its changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.core.errors import StoreError
from dovetail.core.prompts import MAX_PROMPT_BYTES, MAX_PROMPT_CHANGES
from dovetail.core.types import PromptChange
from dovetail.episodes.lerobot import _tables
from dovetail.episodes.lerobot._meta import Meta

__all__ = ["Prompts"]


class Prompts:
    """Reads prompts from the `rows` of all episodes and from the numbers of the tasks in their tables."""

    def __init__(self, meta: Meta, rows: Sequence[Mapping[str, Any]]) -> None:
        self._root, self._rows, self._tasks = meta.root, rows, meta.tasks()

    def first(self, index: int, table: pa.Table) -> str:
        """The prompt of the first step. The row of an episode names its tasks in any order."""
        named = self._rows[index].get("tasks")
        if named and (len(named) == 1 or "task_index" not in table.column_names):
            return self._checked_prompt(str(named[0]), index)
        if "task_index" not in table.column_names:
            raise StoreError(f"{self._root}: the data files have no column 'task_index'")
        return self._task_text(int(_tables.column(table, "task_index").reshape(-1)[0]), index)

    def changes(self, index: int, table: pa.Table) -> tuple[PromptChange, ...]:
        if "task_index" not in table.column_names:
            return ()
        numbers = _tables.column(table, "task_index").reshape(-1)
        steps = np.flatnonzero(np.diff(numbers)) + 1
        if len(steps) > MAX_PROMPT_CHANGES:
            raise StoreError(
                f"{self._root}: the prompt of episode {index} changes {len(steps)} times, but at most "
                f"{MAX_PROMPT_CHANGES} are allowed"
            )
        texts = [self._task_text(int(numbers[step]), index) for step in steps]
        return tuple(PromptChange(step=int(step), prompt=text) for step, text in zip(steps, texts, strict=True))

    def _task_text(self, number: int, index: int) -> str:
        if number not in self._tasks:
            raise StoreError(f"{self._root}: there is no task {number}")
        return self._checked_prompt(str(self._tasks[number]), index)

    def _checked_prompt(self, prompt: str, index: int) -> str:
        if len(prompt.encode()) > MAX_PROMPT_BYTES:
            raise StoreError(
                f"{self._root}: the prompt of episode {index} has {len(prompt.encode())} bytes, but at most "
                f"{MAX_PROMPT_BYTES} are allowed. Shorten it in the dataset's tasks"
            )
        return prompt
