"""What a run's own process knows, for whoever watches: figures, what is being done, the coach's advice."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

from dovetail.live.link import LiveLink
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus, Watcher

__all__ = ["figures", "tell_also"]

_EVERY_S = 0.1
_CURVE = 100  # the newest episodes of each curve
_MOST_ADVICE = 5


def tell_also(watch: Watcher, link: LiveLink, folder: RunFolder) -> Watcher:
    """Whoever watched before, and the link."""
    link.tell(run=folder.path.name, task=folder.config.task.type if folder.config.task else "")
    link.tell(mode=folder.config.actor.type)
    told_s, phase = 0.0, ""

    def told(status: RunStatus) -> None:
        nonlocal told_s, phase
        watch(status)
        now_s = time.monotonic()
        if now_s - told_s >= _EVERY_S or status.phase != phase:
            told_s, phase = now_s, status.phase
            link.tell(**figures(status, folder))

    return told


def figures(status: RunStatus, folder: RunFolder) -> dict[str, Any]:
    """All of it, as plain values."""
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
        "human_share": [round(value, 3) for value in list(status.recent_human)[-_CURVE:]],
        "usual_steps": status.usual_steps,
        "rates": {name: rate.to_json() for name, rate in list(status.rates.items())[-10:]},
        "telemetry": {name: round(value, 3) for name, value in status.telemetry.items()},
        "advice": [advice.to_json() for advice in status.advice[:_MOST_ADVICE]],
    }


def _known(values: Iterable[float]) -> list[float]:
    """Without those of which the labels are still to come."""
    return [value for value in values if not math.isnan(value)][-_CURVE:]


def _newest_weights(folder: RunFolder) -> dict[str, Any]:
    """When something was last published."""
    try:
        return {"weights_unix_s": folder.weights.stat().st_mtime}
    except OSError:
        return {}
