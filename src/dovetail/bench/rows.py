"""What a measurement gives: rows, each with what it is compared with and what we aim for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Row", "at_least", "at_most"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. `ratio` is value over that of the named `baseline`, measured in the same run."""

    name: str
    value: float
    unit: str
    baseline: str | None = None
    ratio: float | None = None
    aim: float | None = None
    met: bool | None = None  # None: nothing is aimed for

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def at_least(
    name: str, value: float, unit: str, aim: float, *, baseline: str | None = None, ratio: float | None = None
) -> Row:
    return Row(name=name, value=value, unit=unit, baseline=baseline, ratio=ratio, aim=aim, met=value >= aim)


def at_most(
    name: str, value: float, unit: str, aim: float, *, baseline: str | None = None, ratio: float | None = None
) -> Row:
    return Row(name=name, value=value, unit=unit, baseline=baseline, ratio=ratio, aim=aim, met=value <= aim)
