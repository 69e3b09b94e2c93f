"""The frame in which the values of a Cartesian part are given."""

from __future__ import annotations

from dovetail.core.specs import ActionPart
from dovetail.core.types import Array, Observation
from dovetail.human.rotations import from_quaternion

__all__ = ["PartFrame"]


class PartFrame:
    """Call `observe` with every observation: the frame `reset` is the pose of the first one after `begin`."""

    def __init__(self, part: ActionPart) -> None:
        self._part = part
        self.from_base: Array | None = None
        """[3, 3] that turns vectors of the base frame into this one. None: the base frame, or nothing measures the pose."""

    def begin(self) -> None:
        self.from_base = None

    def observe(self, observation: Observation) -> None:
        is_new = self.from_base is None or self._part.frame == "tool"
        seen = observation.values.get(self._part.measured_key)
        if is_new and self._part.frame in ("reset", "tool") and seen is not None:
            self.from_base = from_quaternion(seen.reshape(-1)[self._part.measured_slice][3:7]).T
