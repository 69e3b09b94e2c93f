"""`/jointreset`: 21 to 41 s in which the state is stale and no pose has an effect."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dovetail.emulators.franka.arm import EmulatedArm
from dovetail.robots.sim.rotations import Vector

__all__ = ["reset_joints"]

_STOP_S, _CLEAR_S, _UNLOAD_S, _RESTART_S, _SETTLE_S = 1.0, 3.0, 3.0, 3.0, 1.0
_DRIVE_S, _GIVE_UP_S = 10.0, 30.0
_TOLERANCE_RAD = 1e-2
_STEP_S = 0.01


def reset_joints(arm: EmulatedArm, target: Vector, wait: Callable[[float], None]) -> None:
    """Drive linearly in joint space. `wait` waits for seconds of emulated time."""
    arm.freeze_state()
    try:
        arm.hold()
        wait(_STOP_S)
        with arm.lock:
            arm.has_error = False
        wait(_CLEAR_S)
        _drive(arm, target, wait)
        wait(_UNLOAD_S)
        arm.start_impedance()
        wait(_RESTART_S)
    finally:
        arm.thaw_state()
    wait(_SETTLE_S)


def _drive(arm: EmulatedArm, target: Vector, wait: Callable[[float], None]) -> None:
    arm.hold("joints")
    began_ns, start = arm.time_ns, arm.world.joint_positions().copy()
    while (passed_s := (arm.time_ns - began_ns) * 1e-9) < _GIVE_UP_S:
        share = min(passed_s / _DRIVE_S, 1.0)
        arm.set_joint_targets(start + share * (target - start))
        if share < 1.0:
            wait(_STEP_S)
        elif np.abs(arm.world.joint_positions() - target).max() < _TOLERANCE_RAD:
            return
        else:
            wait(1.0)
