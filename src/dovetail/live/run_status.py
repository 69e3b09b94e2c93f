"""The run's status for consoles: phase, figures, the coach's advice."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

from dovetail.live.link import LiveLink
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus, StatusListener

__all__ = ["figures", "with_live_link"]

_PERIOD_S = 0.1
_NUM_EPISODES = 100  # of each curve
_MAX_ADVICE = 5


def with_live_link(listener: StatusListener, link: LiveLink, folder: RunFolder) -> StatusListener:
    """A listener that also writes the status to the link."""
    link.update(run=folder.path.name, task=folder.config.task.type if folder.config.task else "")
    link.update(mode=folder.config.actor.type, operator=folder.config.operator.type)
    updated_s, phase = 0.0, ""

    def listen(status: RunStatus) -> None:
        nonlocal updated_s, phase
        listener(status)
        now_s = time.monotonic()
        if now_s - updated_s >= _PERIOD_S or status.phase != phase:
            updated_s, phase = now_s, status.phase
            link.update(**figures(status, folder))

    return listen


def figures(status: RunStatus, folder: RunFolder) -> dict[str, Any]:
    """The status as plain values."""
    recent = status.performance()
    return {
        **_newest_weights(folder),
        "phase": status.phase,
        "done": status.done,
        "total": status.total,
        "seconds_left": status.seconds_left,
        "env_steps": status.env_steps,
        "episodes": status.episodes,
        "updates": status.updates,
        "interventions": status.interventions,
        "robot_minutes": status.robot_minutes,
        "success": _known(status.recent_success),
        "return": [round(value, 4) for value in _known(status.recent_return)],
        "waiting": dict(status.waiting),
        "human_share": [round(value, 3) for value in list(status.recent_human)[-_NUM_EPISODES:]],
        "usual_steps": status.usual_steps,
        "has_success": status.has_success,
        "recent": recent.to_json() if recent else None,  # figures of the last 20 episodes
        "rates": {name: one.to_json() for name, one in list(status.evaluations.items())[-10:]},
        "telemetry": {name: round(value, 3) for name, value in status.telemetry.items()},
        "advice": [advice.to_json() for advice in status.advice[:_MAX_ADVICE]],
    }


def _known(values: Iterable[float]) -> list[float]:
    """Without the episodes whose labels are still missing."""
    return [value for value in values if not math.isnan(value)][-_NUM_EPISODES:]


def _newest_weights(folder: RunFolder) -> dict[str, Any]:
    """When weights were last published."""
    try:
        return {"weights_unix_s": folder.weights.stat().st_mtime}
    except OSError:
        return {}
