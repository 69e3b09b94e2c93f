"""Faults that the emulator shows on request. Each is a function of the messages that it would publish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

__all__ = ["FAULTS", "SILENCES", "State"]

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The numbers of one round of messages, right side first."""

    stamp_ns: int
    position: Vector
    effort: Vector
    finger_state: Vector
    finger_current: Vector


def _with_nan(values: Vector) -> Vector:
    broken = values.copy()
    broken[3] = np.nan
    return broken


FAULTS: dict[str, Callable[[State], State]] = {
    "missing": lambda state: replace(state, position=state.position[:0]),
    "missing_fingers": lambda state: replace(state, finger_state=state.finger_state[:0]),
    "short": lambda state: replace(state, position=state.position[:-1]),
    "long": lambda state: replace(state, finger_state=np.append(state.finger_state, 0.5)),
    "nan": lambda state: replace(state, position=_with_nan(state.position)),
    "nan_current": lambda state: replace(state, finger_current=_with_nan(state.finger_current)),
    "infinite": lambda state: replace(state, finger_state=state.finger_state + np.inf),
    "wrong_order": lambda state: replace(state, position=np.roll(state.position, 6)),
    "old_stamps": lambda state: replace(state, stamp_ns=state.stamp_ns - 5_000_000_000),
}
SILENCES = {  # topics that are not published; `repeat` publishes the old message, `late` publishes 0.5 s later
    "silent": ("joint_states", "finger_state", "finger_current"),
    "silent_joints": ("joint_states",),
    "silent_fingers": ("finger_state",),
    "silent_current": ("finger_current",),
    "repeat": (),
    "late": (),
    "no_publisher": (),
    "deaf": (),
}
