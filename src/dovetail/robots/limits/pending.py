"""Deltas that were sent but that no measurement shows yet."""

from __future__ import annotations

from collections import deque

import numpy as np

from dovetail.robots.limits.axes import Vector

__all__ = ["PendingDeltas"]

_MOST = 1000  # commands; more within the delay of an arm means that something is wrong, and nothing more may move


class PendingDeltas:
    """The sums of all deltas, before each recent command. `delay_ns` is the longest time until an arm shows a command."""

    def __init__(self, size: int, *, num_arms: int, delay_ns: int) -> None:
        self._delay_ns = delay_ns
        self._sum = np.zeros(size)  # in the frame of the actions
        self._moved = np.zeros((num_arms, 3))  # in the base frame
        self._sent: deque[tuple[int, Vector, Vector]] = deque()  # time, and both sums before it
        self._measured_ns = 0

    def measure(self, measured_ns: int) -> None:
        self._measured_ns = measured_ns
        while self._sent and self._sent[0][0] < measured_ns - self._delay_ns:
            self._sent.popleft()

    def add(self, delta: Vector, moved: Vector, now_ns: int) -> None:
        """Count a command; `moved` is its motion in the base frame, [arms, 3]."""
        if delta.any():
            self._sent.append((now_ns, self._sum, self._moved))
            self._sum, self._moved = self._sum + delta, self._moved + moved

    def clear(self) -> None:
        self._sent.clear()

    @property
    def is_empty(self) -> bool:
        return not self._sent

    @property
    def is_full(self) -> bool:
        return len(self._sent) >= _MOST

    def since_measured(self) -> Vector | None:
        """Sum of the deltas that were sent since the last measurement, whatever the delay. None: there are none."""
        for time_ns, before, _ in self._sent:
            if time_ns >= self._measured_ns:
                return self._sum - before
        return None

    def extremes(self, arm: int) -> tuple[Vector, Vector]:
        """How far an arm may still move down and up in the base frame, [3] each.

        Commands take effect in order, so that the rest of the motion is one of the sums from some command to the last.
        """
        rest = self._moved[arm] - np.array([moved[arm] for _, _, moved in self._sent])
        return np.minimum(rest.min(axis=0), 0.0), np.maximum(rest.max(axis=0), 0.0)
