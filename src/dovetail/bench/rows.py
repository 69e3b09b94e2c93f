"""The result of a measurement: rows, each with its baseline and its aim."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Row", "at_least", "at_most"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured value. `ratio` is the value divided by that of `baseline`, measured in the same run."""

    name: str
    value: float
    unit: str
    baseline: str | None = None
    ratio: float | None = None
    aim: float | None = None
    met: bool | None = None  # None: there is no aim
    samples: tuple[float, ...] = ()  # all measurements behind the value, if it sums up several
    interval: tuple[float, float] | None = None  # its meaning is in the name; of a success rate: 95 %

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        for name in ("samples", "interval"):
            if not values[name]:
                del values[name]
        return values


def at_least(
    name: str, value: float, unit: str, aim: float, *, baseline: str | None = None, ratio: float | None = None
) -> Row:
    return Row(name=name, value=value, unit=unit, baseline=baseline, ratio=ratio, aim=aim, met=value >= aim)


def at_most(
    name: str, value: float, unit: str, aim: float, *, baseline: str | None = None, ratio: float | None = None
) -> Row:
    return Row(name=name, value=value, unit=unit, baseline=baseline, ratio=ratio, aim=aim, met=value <= aim)
