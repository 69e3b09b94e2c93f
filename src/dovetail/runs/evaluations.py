"""The evaluations of a run: each is made once and stored in `evaluations/NAME.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.core.figures import Performance
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus

__all__ = [
    "MAIN",
    "evaluation_curve",
    "figure_curve",
    "record_evaluation",
    "set_aside_offline_evaluation",
    "stored_evaluation",
]

MAIN = ("untrained", "cloning", "after")  # in every run; others are made on a schedule


def stored_evaluation(folder: RunFolder, name: str) -> Performance | None:
    """The figures of an evaluation that was made."""
    found = folder.read_json(f"evaluations/{name}.json")
    return Performance.from_json(found) if found else None


def record_evaluation(
    folder: RunFolder,
    name: str,
    performance: Performance,
    *,
    status: RunStatus,
    version: int | None,
    shown: list[str],
    facts: Mapping[str, Any],
) -> None:
    """Store an evaluation. It is not made again. `shown` are the episodes for the report's video."""
    when = {"env_steps": status.env_steps, "robot_minutes": status.robot_minutes}
    figures = performance.to_json()
    folder.write_json(f"evaluations/{name}.json", {"shown": shown, **when, **figures, **facts})
    folder.event("evaluated", name=name, version=version, **when, **figures, **facts)
    status.evaluations[name] = performance


def set_aside_offline_evaluation(folder: RunFolder, status: RunStatus) -> None:
    """Rename the result of `dovetail train` when `dovetail run` continues from it, because it learns further."""
    name = "evaluations/after.json"
    if (folder.read_json(name) or {}).get("offline"):
        (folder.path / name).rename(folder.path / "evaluations/trained.json")
        status.evaluations.pop("after", None)


def evaluation_curve(name: str, performance: Performance, by_arm: Mapping[str, Performance]) -> dict[str, float]:
    """The points of an evaluation in the metrics, with the main figure of each arm if there are several."""
    of = name if name in MAIN else "scheduled"
    points: dict[str, float] = {}
    if performance.success is not None:
        points[of] = performance.success.rate
        if name not in MAIN:
            points |= {f"{of}_low": performance.success.low, f"{of}_high": performance.success.high}
    points |= {f"{of}_{figure}": value for figure, value in figure_curve(performance).items()}
    if len(by_arm) > 1:
        points |= {f"{of}_{arm}": value for arm, one in by_arm.items() if (value := one.value) is not None}
    return points


def figure_curve(performance: Performance) -> dict[str, float]:
    """The known figures apart from success, by name; the task's metrics as `metric/<name>`."""
    cycle, returns = performance.cycle_time_s, performance.returns
    known = {
        "cycle_time_s": cycle.median if cycle else None,
        "per_minute": performance.per_minute,
        "per_minute_with_resets": performance.per_minute_with_resets,
        "interventions_per_minute": performance.interventions_per_minute,
        "return": returns.mean if returns else None,
        "return_low": returns.low if returns else None,
        "return_high": returns.high if returns else None,
        **{f"metric/{name}": value for name, value in performance.metrics.items()},
    }
    return {name: value for name, value in known.items() if value is not None}
