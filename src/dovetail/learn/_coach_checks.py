"""The checks of the coach, in the order in which advice of the same severity is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.learn._coach_data_checks import DATA_CHECKS, FALLBACKS
from dovetail.learn._coach_facts import Facts, Result
from dovetail.learn._coach_learner_checks import LEARNER_CHECKS

__all__ = ["CHECKS"]

CHECKS: Mapping[str, Callable[[Facts], Result]] = {
    check.__name__: check for check in (*DATA_CHECKS, *LEARNER_CHECKS, *FALLBACKS)
}
"""By name: that of the function is the name in events and curves."""
