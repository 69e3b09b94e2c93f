"""Whether an arm follows its commands. The server does not report errors of the arm: `/pose` says `Moved` in any case."""

from __future__ import annotations

import numpy as np

from dovetail.core.errors import RobotError
from dovetail.robots.drivers.franka.poses import Vector
from dovetail.robots.drivers.franka.settings import FrankaConfig
from dovetail.robots.drivers.franka.state import ArmState

__all__ = ["FollowCheck"]

_STIFFNESS = 2000.0  # N/m, the controller's default
_CLIP_M = 0.01  # its default
_MIN_FORCE_N = 8.0  # a weaker pull may not overcome the friction of the joints
_FELT = 0.3  # share of the pull that something in the way would show as measured force
_SLOW_M_S = 0.002
_AFTER_S = 1.0


class FollowCheck:
    """An arm that is pulled, does not move and feels no obstacle has an error, or its controller is off."""

    def __init__(self, config: FrankaConfig) -> None:
        compliance = config.compliance
        self._stiffness = compliance.get("translational_stiffness", _STIFFNESS)
        clips = [
            compliance.get(f"translational_clip_{sign}{axis}", _CLIP_M) for axis in "xyz" for sign in ("", "neg_")
        ]
        self.clip_m = min(clips)  # a longer pull is not stronger
        self._since_ns: int | None = None
        self.has_failed = False

    def restart(self) -> None:
        self._since_ns = None

    def check(self, state: ArmState, error: Vector, *, where: str) -> None:
        """`error` is equilibrium minus measured pose, [6]."""
        pull_n = self._stiffness * float(np.minimum(np.abs(error[:3]), self.clip_m).max())
        is_slow = float(np.linalg.norm(state.twist[:3])) < _SLOW_M_S
        is_free = float(np.linalg.norm(state.force)) < _FELT * pull_n
        if not (pull_n >= _MIN_FORCE_N and is_slow and is_free):
            self._since_ns = None
            return
        if self._since_ns is None:
            self._since_ns = state.time_ns
        elif state.time_ns - self._since_ns > _AFTER_S * 1e9:
            self.has_failed = True
            raise RobotError(
                f"the arm of {where} does not follow: its equilibrium is {np.abs(error[:3]).max():.3f} m away. Look for "
                "an error at the arm and at the server. Acknowledging clears it and restarts the controller"
            )
