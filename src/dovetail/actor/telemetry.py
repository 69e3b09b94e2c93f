"""Timing of the control loop and of inference, in fixed memory."""

from __future__ import annotations

from collections import Counter

import numpy as np

__all__ = ["Telemetry"]

_KEPT = 1 << 14  # newest samples of each kind: five minutes at 50 Hz


class _Samples:
    """The newest samples, and the maximum of all."""

    def __init__(self) -> None:
        self._values = np.zeros(_KEPT)
        self._num = 0
        self._max = 0.0

    def add(self, value: float) -> None:
        self._values[self._num % _KEPT] = value
        self._num += 1
        self._max = max(self._max, value)

    def summary(self, name: str, unit: str) -> dict[str, float]:
        if not self._num:
            return {}
        values = self._values[: min(self._num, _KEPT)]
        p50, p99 = np.percentile(values, (50, 99))
        return {
            f"{name}_p50_{unit}": float(p50),
            f"{name}_p99_{unit}": float(p99),
            f"{name}_max_{unit}": self._max,
        }


class Telemetry:
    """Counts and samples since construction."""

    def __init__(self) -> None:
        self._lateness, self._latency, self._delay, self._jump = _Samples(), _Samples(), _Samples(), _Samples()
        self._counts: Counter[str] = Counter()
        self.inference_ns = 0  # of the last chunk

    def tick(self, *, late_ns: int, overrun: bool, missed: bool) -> None:
        """`overrun`: the work took longer than the period. `missed`: the tick was late by more than a period."""
        self._counts["ticks"] += 1
        self._counts["overruns"] += overrun
        self._counts["missed"] += missed
        self._lateness.add(late_ns / 1e6)

    def answer(self, *, latency_ns: int, delay: int, jump: float | None) -> None:
        """`jump`: difference between the old and new plan at the switch, relative to the action's range."""
        self._counts["chunks"] += 1
        self.inference_ns = latency_ns
        self._latency.add(latency_ns / 1e6)
        self._delay.add(delay)
        if jump is not None:
            self._jump.add(jump)

    def count(self, what: str, num: int = 1) -> None:
        self._counts[what] += num

    def __getitem__(self, what: str) -> int:
        return self._counts[what]

    def summary(self) -> dict[str, float]:
        """Names and numbers for logs: `lateness_p99_ms`, `overruns`, `delay_max_ticks` and so on."""
        return {
            **{name: float(num) for name, num in sorted(self._counts.items())},
            **self._lateness.summary("lateness", "ms"),
            **self._latency.summary("inference", "ms"),
            **self._delay.summary("delay", "ticks"),
            **self._jump.summary("chunk_jump", "share"),
        }
