"""Episodes whose prompt changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dovetail.core.types import Episode, PromptChange


def with_prompts(episode: Episode, prompts: Mapping[int, str]) -> Episode:
    """The episode with these prompts from these steps on."""
    segments = tuple(
        dataclasses.replace(
            segment,
            prompt_changes=tuple(
                PromptChange(step=step, prompt=prompts[step])
                for step in sorted(prompts)
                if segment.first <= step < segment.first + len(segment)
            ),
        )
        for segment in episode.segments
    )
    return dataclasses.replace(episode, segments=segments)


def prompts_of(episode: Episode) -> dict[int, str]:
    return {change.step: change.prompt for change in episode.prompt_changes}
