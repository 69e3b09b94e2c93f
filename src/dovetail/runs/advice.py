"""The coach's advice in the events of a run. It does not import torch, because reports read it."""

from __future__ import annotations

from dovetail.learn.coach import Advice
from dovetail.runs.folder import RunFolder

__all__ = ["BEGUN", "OVER", "open_advice"]

BEGUN, OVER = "coach", "coach: over"  # event names


def open_advice(folder: RunFolder) -> tuple[Advice, ...]:
    """Advice that still holds, from any process of the run; the most severe first."""
    found: dict[str, Advice] = {}
    for event in folder.events(BEGUN, OVER):
        if event["event"] == BEGUN:
            found[event["name"]] = Advice.from_json(event)
        else:
            found.pop(event["name"], None)
    return tuple(sorted(found.values(), key=lambda advice: -advice.severity))
