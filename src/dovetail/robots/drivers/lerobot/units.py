"""Units: what LeRobot's numbers mean, and their conversion to the units of action parts. Nothing is guessed.

A number without a physical unit, such as LeRobot's -100..100 of a joint, has to be given as {scale, offset}:
ours = scale * theirs + offset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.errors import ConfigError

__all__ = ["Conversion", "LinearUnit", "conversion", "si_unit"]


class LinearUnit(Config):
    """A unit that only the user knows: ours = scale * theirs + offset."""

    scale: float = Field(allow_inf_nan=False)
    """Factor from LeRobot's number to ours. Not zero."""
    offset: float = Field(default=0.0, allow_inf_nan=False)
    """Added after scaling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """ours = scale * theirs + offset."""

    scale: float
    offset: float = 0.0


_TO_SI: Mapping[str, tuple[str, float]] = {  # LeRobot's unit: ours, factor
    "deg": ("rad", math.pi / 180.0),
    "rad": ("rad", 1.0),
    "percent": ("1", 0.01),
    "1": ("1", 1.0),
    "m": ("m", 1.0),
    "mm": ("m", 0.001),
    "deg/s": ("rad/s", math.pi / 180.0),
    "rad/s": ("rad/s", 1.0),
    "m/s": ("m/s", 1.0),
    "mm/s": ("m/s", 0.001),
}


def si_unit(unit: str, *, key: str) -> str:
    """The SI unit of one of LeRobot's units. Raises ConfigError if it is unknown."""
    if unit not in _TO_SI:
        raise ConfigError(
            f"`units`: unknown unit '{unit}' of '{key}'. Use {', '.join(_TO_SI)}, or {{scale, offset}}"
        )
    return _TO_SI[unit][0]


def conversion(theirs: str | LinearUnit, ours: str, *, key: str) -> Conversion:
    """Raises ConfigError if the units do not measure the same."""
    if isinstance(theirs, LinearUnit):
        if theirs.scale == 0.0:
            raise ConfigError(f"`units`: the scale of '{key}' is zero")
        return Conversion(scale=theirs.scale, offset=theirs.offset)
    base = si_unit(theirs, key=key)
    factor = _TO_SI[theirs][1]
    if ours not in _TO_SI or _TO_SI[ours][0] != base:
        raise ConfigError(
            f"`units`: '{key}' is in {theirs}, which cannot become {ours}. Correct the unit, or give {{scale, offset}}"
        )
    return Conversion(scale=factor / _TO_SI[ours][1])
