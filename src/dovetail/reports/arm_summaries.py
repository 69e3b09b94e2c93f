"""The results of each arm of a run, for the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.episodes.log import EpisodeInfo

__all__ = ["arm_summaries", "tasks_of"]

_RATES = {"untrained": "untrained", "cloning": "success_before", "after": "success_after"}


def arm_summaries(
    online: Sequence[EpisodeInfo],
    demos: Sequence[EpisodeInfo],
    *,
    success: Callable[[EpisodeInfo], bool],
    evaluations: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """By the name of the arm. With several arms, the rates are those of the evaluations of that arm."""
    summaries: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(info.robot.name for info in (*online, *demos)):
        own = [info for info in online if info.robot.name == name]
        own_demos = [info for info in demos if info.robot.name == name]
        num_steps = sum(info.num_steps for info in own)
        summaries[name] = {
            "task": (own or own_demos)[0].task,
            "embodiment": (own or own_demos)[0].robot.embodiment,
            "episodes": len(own),
            "env_steps": num_steps,
            "robot_minutes": sum(info.duration_s for info in own) / 60.0,
            "successes": sum(success(info) for info in own),  # with or without help
            "interventions": sum(info.num_interventions for info in own),
            "human_share": sum(info.num_human_steps for info in own) / max(1, num_steps),
            "demos": sum(success(info) for info in own_demos),
            **{
                key: evaluations[evaluation]["robots"][name]
                for evaluation, key in _RATES.items()
                if name in evaluations.get(evaluation, {}).get("robots", {})
            },
        }
    return summaries


def tasks_of(infos: Sequence[EpisodeInfo]) -> str:
    """The name of the task, or several joined by a plus."""
    return " + ".join(sorted({info.task for info in infos}))
