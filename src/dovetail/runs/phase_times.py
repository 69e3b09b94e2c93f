"""Seconds that a run spends on each activity, such as acting, labeling, sampling, updating or evaluating."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["PhaseTimes"]


class PhaseTimes:
    """Seconds of each activity in this process. A nested activity counts for the outer one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._last_lap: dict[str, float] = {}
        self._last_counts: tuple[int, int] | None = None
        self._inside = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self._inside:
            yield
            return
        began_s, self._inside = time.monotonic(), True
        try:
            yield
        finally:
            self._inside = False
            self.seconds[name] += time.monotonic() - began_s

    def add(self, seconds: Mapping[str, float]) -> None:
        for name, value in seconds.items():
            self.seconds[name] += value

    def lap(self, *, env_steps: int, updates: int) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of each activity since the last call, and the rates of steps and updates in that time."""
        spent = {name: value - self._last_lap.get(name, 0.0) for name, value in self.seconds.items()}
        before, self._last_lap, self._last_counts = self._last_counts, dict(self.seconds), (env_steps, updates)
        total_s = sum(spent.values())
        rates: dict[str, float] = {}
        if before is not None and total_s > 0.0:
            rates["env_steps_per_s"] = (env_steps - before[0]) / total_s
            updating_s = spent.get("sampling", 0.0) + spent.get("updating", 0.0)
            if updating_s > 0.0:
                rates["updates_per_s"] = (updates - before[1]) / updating_s
        return {f"{name}_s": value for name, value in spent.items()}, rates
