"""The numbers of a Gymnasium environment's `info["metrics"]` and `info["rewards"]` as metrics of a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.core.figures import REWARD_TERM

__all__ = ["InfoMetrics"]

_MAX_NAMES = 40
_MAX_LENGTH = 80


class InfoMetrics:
    """Reads `info` after each step.

    The environment's reward contains what `info["rewards"]` lists, so these numbers are metrics with the prefix `reward/`
    and not rewards. An episode has the same names at every step: a missing number is NaN, and a name that appears in the
    middle of an episode counts from the next one on.
    """

    def __init__(self) -> None:
        self._known: dict[str, None] = {}  # in the order in which they appeared
        self._names: tuple[str, ...] = ()  # of the current episode

    def read(self, info: Mapping[str, Any], *, first: bool) -> dict[str, float]:
        """The metrics of a step; `first` is that of an episode."""
        found = {
            **_numbers(info.get("metrics"), prefix=""),
            **_numbers(info.get("rewards"), prefix=REWARD_TERM),
        }
        self._known |= dict.fromkeys(list(found)[: max(0, _MAX_NAMES - len(self._known))])
        if first:
            self._names = tuple(self._known)
        return {name: found.get(name, math.nan) for name in self._names}


def _numbers(values: Any, *, prefix: str) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {}
    numbers: dict[str, float] = {}
    for name, value in values.items():
        is_number = (
            isinstance(value, bool | int | float | np.bool_ | np.number | np.ndarray) and np.size(value) == 1
        )
        if is_number and isinstance(name, str) and 0 < len(name) <= _MAX_LENGTH:
            number = float(np.reshape(value, ()))
            numbers[f"{prefix}{name}"] = number if math.isfinite(number) else math.nan
    return numbers
