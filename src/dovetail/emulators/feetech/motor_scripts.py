"""How a person moves a leader arm, as functions of time."""

from __future__ import annotations

import math

__all__ = ["scripted_shaft"]

_POSES = ((0.0, 0.0, 0.0, 0.0, 0.0, 0.0), (0.6, 0.8, -0.5, 0.3, 0.0, 1.0), (-0.6, 0.4, 0.7, -0.4, 0.8, -1.0))
_GRIPPER, _GRIPPER_FACTOR = 6, 2.9  # a person closes and opens it almost fully
_MOVING = 0.6  # share of a pose's time in which the arm moves to the next one


def scripted_shaft(script: str, *, joint: int, time_s: float, amplitude: float) -> float:
    """Ticks from the middle of a joint (1 to 6). `time_s` is in periods of the script. Starts at 0, without a jump."""
    if script == "wave":
        return amplitude * math.sin(2 * math.pi * time_s * (1 + 0.13 * (joint - 1)))
    if script == "reach":
        phase = time_s % 1.0 * len(_POSES)
        at = int(phase)
        here, there = _POSES[at][joint - 1], _POSES[(at + 1) % len(_POSES)][joint - 1]
        share = min((phase - at) / _MOVING, 1.0)
        smooth = 0.5 - 0.5 * math.cos(math.pi * share)
        factor = _GRIPPER_FACTOR if joint == _GRIPPER else 1.0
        return factor * amplitude * (here + (there - here) * smooth)
    return 0.0
