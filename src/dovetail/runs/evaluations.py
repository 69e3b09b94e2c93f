"""The evaluations of a run: each is made once and stored in `evaluations/NAME.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.core.stats import Rate
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus

__all__ = ["MAIN", "evaluation_curve", "record_evaluation", "set_aside_offline_evaluation", "stored_evaluation"]

MAIN = ("untrained", "cloning", "after")  # in every run; others are made on a schedule


def stored_evaluation(folder: RunFolder, name: str) -> Rate | None:
    """The success rate of an evaluation that was made."""
    found = folder.read_json(f"evaluations/{name}.json")
    return Rate(successes=found["successes"], episodes=found["episodes"]) if found else None


def record_evaluation(
    folder: RunFolder,
    name: str,
    rate: Rate,
    *,
    status: RunStatus,
    version: int | None,
    shown: list[str],
    facts: Mapping[str, Any],
) -> None:
    """Store an evaluation. It is not made again. `shown` are the episodes for the report's video."""
    when = {"env_steps": status.env_steps, "robot_minutes": status.robot_minutes}
    stored = {"successes": rate.successes, "shown": shown, **when, **rate.to_json(), **facts}
    folder.write_json(f"evaluations/{name}.json", stored)
    folder.event("evaluated", name=name, version=version, **when, **rate.to_json(), **facts)
    status.rates[name] = rate


def set_aside_offline_evaluation(folder: RunFolder, status: RunStatus) -> None:
    """Rename the result of `dovetail train` when `dovetail run` continues from it, because it learns further."""
    name = "evaluations/after.json"
    if (folder.read_json(name) or {}).get("offline"):
        (folder.path / name).rename(folder.path / "evaluations/trained.json")
        status.rates.pop("after", None)


def evaluation_curve(name: str, rate: Rate) -> dict[str, float]:
    """The points of an evaluation in the metrics."""
    if name in MAIN:
        return {name: rate.rate}
    return {"scheduled": rate.rate, "scheduled_low": rate.low, "scheduled_high": rate.high}
