"""What each arm of a run came to, for its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.episodes.log import EpisodeInfo

__all__ = ["arm_figures", "tasks_of"]

_RATES = {"untrained": "untrained", "cloning": "success_before", "after": "success_after"}


def arm_figures(
    online: Sequence[EpisodeInfo],
    demos: Sequence[EpisodeInfo],
    *,
    success: Callable[[EpisodeInfo], bool],
    evaluations: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """By name. Rates are those of evaluations that were made of each, where there are several."""
    figures: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(info.robot.name for info in (*online, *demos)):
        own = [info for info in online if info.robot.name == name]
        shown = [info for info in demos if info.robot.name == name]
        num_steps = sum(info.num_steps for info in own)
        figures[name] = {
            "task": (own or shown)[0].task,
            "embodiment": (own or shown)[0].robot.embodiment,
            "episodes": len(own),
            "env_steps": num_steps,
            "robot_minutes": sum(info.duration_s for info in own) / 60.0,
            "successes": sum(success(info) for info in own),  # helped or not
            "interventions": sum(info.num_interventions for info in own),
            "human_share": sum(info.num_human_steps for info in own) / max(1, num_steps),
            "demos": sum(success(info) for info in shown),
            **{
                key: evaluations[made]["robots"][name]
                for made, key in _RATES.items()
                if name in evaluations.get(made, {}).get("robots", {})
            },
        }
    return figures


def tasks_of(infos: Sequence[EpisodeInfo]) -> str:
    """One name, or several."""
    return " + ".join(sorted({info.task for info in infos}))
