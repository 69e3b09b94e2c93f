"""What the coach has said of a run, as its events keep it. No torch here: reports are written without."""

from __future__ import annotations

from dovetail.learn.coach import Advice
from dovetail.runs.folder import RunFolder

__all__ = ["BEGUN", "OVER", "open_advice"]

BEGUN, OVER = "coach", "coach: over"  # kinds of events


def open_advice(folder: RunFolder) -> tuple[Advice, ...]:
    """What was told, by any process of the run, and has not been over since; the worst first."""
    told: dict[str, Advice] = {}
    for event in folder.events(BEGUN, OVER):
        if event["event"] == BEGUN:
            told[event["name"]] = Advice.from_json(event)
        else:
            told.pop(event["name"], None)
    return tuple(sorted(told.values(), key=lambda advice: -advice.severity))
