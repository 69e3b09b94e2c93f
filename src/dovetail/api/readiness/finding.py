"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was checked, and what to do if it is not ok. A run can start only if every `needed` finding is ok."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True

    @property
    def line(self) -> str:
        return self.detail if self.ok or not self.remedy else f"{self.detail}. {self.remedy}"
