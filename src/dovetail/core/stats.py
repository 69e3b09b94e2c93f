"""Success rates with confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Rate"]

Z_95 = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Success rate with its 95 % Wilson interval, which is also valid near 0, near 1 and for few episodes."""

    successes: int
    episodes: int

    @property
    def rate(self) -> float:
        return self.successes / self.episodes

    @property
    def low(self) -> float:
        return self._bound(-1.0)

    @property
    def high(self) -> float:
        return self._bound(1.0)

    def _bound(self, sign: float) -> float:
        n, p, z = self.episodes, self.rate, Z_95
        if self.successes == (0 if sign < 0 else n):
            return p  # exactly 0 or 1, without rounding
        center = p + z * z / (2 * n)
        spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (center + sign * spread) / (1 + z * z / n)

    def to_json(self) -> dict[str, float | int]:
        return {"rate": self.rate, "low": self.low, "high": self.high, "episodes": self.episodes}

    def __str__(self) -> str:
        return f"{100 * self.rate:.0f} % [{100 * self.low:.0f}, {100 * self.high:.0f}] of {self.episodes}"
